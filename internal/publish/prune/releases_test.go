package prune_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/choice"
	"pulley/internal/release/content"
	"pulley/internal/release/trust"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// following returns a release at a position of line 1.0.0, with the delta that leads to it.
func following(v, tree string, seq int64, delta string) (release.Release, []byte) {
	r := fleettest.ARelease(v, tree)
	r.Content.Chain = content.Chain{Line: "1.0.0", Seq: seq}
	if delta == "" {
		return r, nil
	}
	sum := sha256.Sum256([]byte(delta))
	r.Content.Chain.Delta = &content.Object{Hash: hex.EncodeToString(sum[:]), Size: int64(len(delta)), Raw: 1}
	return r, []byte(delta)
}

// ssh-keygen must be able to verify a release without Pulley.
func TestSSHKeygenVerifiesRelease(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	ann, annAllowed := fleettest.Signer(t, "ann", "*")
	bob, bobAllowed := fleettest.Signer(t, "bob", "dev")
	r := fleettest.ARelease("1.0.0", "a")
	r.Message, r.Commit, r.Ref, r.CommitAuthor, r.Modules = "line\nbreak and ünicode <&>", "c0ffee", "v1", "Eve <eve@example.com>", "r10k"
	if created, err := release.In(st).Put(ctx, fleettest.Publishing(t, st, "ann"), r, nil, ann.Sign); err != nil || !created {
		t.Fatal(created, err)
	}
	got, err := release.In(st).Get(ctx, "1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	if !got.At.Equal(r.At) || got.Message != r.Message || got.Modules != r.Modules || got.Ref != r.Ref || got.CommitAuthor != r.CommitAuthor || got.Content.Tree != r.Content.Tree {
		t.Errorf("got %+v, want %+v", got.Release, r)
	}
	if by, err := fleettest.Signers(t, annAllowed).Verify(trust.Release, "dev", got.Record, got.Signatures, time.Now()); err != nil || by != "ann" {
		t.Errorf("signed by %q, %v", by, err)
	}

	dir := t.TempDir()
	raw := fleettest.Value(t, server, "/pulley/v1/releases/1.0.0").Kvs[0].Value
	line, signature, _ := bytes.Cut(raw, []byte("\n"))
	for name, b := range map[string][]byte{"allowed": []byte(annAllowed), "sig": signature} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	verify := func(message []byte) error {
		cmd := exec.Command("ssh-keygen", "-Y", "verify", "-f", "allowed", "-I", "ann@dev", "-n", "pulley-release", "-s", "sig")
		cmd.Dir, cmd.Stdin = dir, bytes.NewReader(message)
		return cmd.Run()
	}
	if err := verify(append(line, '\n')); err != nil {
		t.Errorf("ssh-keygen does not take the signature: %v", err)
	}
	if err := verify(append(bytes.Replace(line, []byte("c0ffee"), []byte("c0ffef"), 1), '\n')); err == nil {
		t.Error("ssh-keygen takes the signature of another record")
	}

	// A second signature is added to the first, then another key signs alone. The record stays.
	both, onlyBob := fleettest.Signers(t, annAllowed), fleettest.Signers(t, bobAllowed)
	if err := release.In(st).Sign(ctx, "1.0.0", bob.Sign, true); err != nil {
		t.Fatal(err)
	}
	added, err := release.In(st).Get(ctx, "1.0.0")
	if err != nil || !bytes.Equal(added.Record, got.Record) {
		t.Fatalf("%s, %v", added.Record, err)
	}
	for who, s := range map[string]*trust.Signers{"ann": both, "bob": onlyBob} {
		if by, err := s.Verify(trust.Release, "dev", added.Record, added.Signatures, time.Now()); err != nil || by != who {
			t.Errorf("by %q, %v, want %s", by, err, who)
		}
	}
	if err := release.In(st).Sign(ctx, "1.0.0", bob.Sign, false); err != nil {
		t.Fatal(err)
	}
	replaced, err := release.In(st).Get(ctx, "1.0.0")
	if err != nil || !bytes.Equal(replaced.Record, got.Record) {
		t.Fatalf("%s, %v", replaced.Record, err)
	}
	if by, err := both.Verify(trust.Release, "dev", replaced.Record, replaced.Signatures, time.Now()); err == nil {
		t.Errorf("the first signature is still there, by %s", by)
	}

	// Of two concurrent signatures none may be lost silently.
	err = release.In(st).Sign(ctx, "1.0.0", func(ctx context.Context, ns trust.Namespace, record []byte) ([]byte, error) {
		if err := release.In(st).Sign(ctx, "1.0.0", ann.Sign, true); err != nil {
			return nil, err
		}
		return bob.Sign(ctx, ns, record)
	}, true)
	if !errors.Is(err, etcd.ErrConflict) {
		t.Errorf("a signature over one that came between: %v", err)
	}
	if all, err := release.In(st).List(ctx); err != nil || len(all) != 1 || len(all[0].Signatures) == 0 {
		t.Errorf("%+v, %v", all, err)
	}
}

// Two releases at one position of a line would send nodes a delta that fits neither.
func TestOneReleaseAPosition(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	fleettest.Published(t, st, "1.0.0", "a")
	var wg sync.WaitGroup
	results := make([]error, 2)
	for i := range results {
		p := fleettest.Publishing(t, st, fmt.Sprint("publisher ", i))
		wg.Go(func() {
			r, delta := following(fmt.Sprintf("1.1.%d", i), fmt.Sprint(i), 1, fmt.Sprint("delta ", i))
			_, results[i] = release.In(st).Put(ctx, p, r, delta, nil)
		})
	}
	wg.Wait()
	if (results[0] == nil) == (results[1] == nil) || !errors.Is(errors.Join(results...), etcd.ErrConflict) {
		t.Fatalf("two followers of one release: %v", results)
	}
	if all, err := release.In(st).List(ctx); err != nil || len(all) != 2 {
		t.Errorf("%d releases, %v", len(all), err)
	}

	// A release without a delta may not share a position either.
	p := fleettest.Publishing(t, st, "ann")
	r, _ := following("1.2.0", "c", 2, "")
	if created, err := release.In(st).Put(ctx, p, r, nil, nil); err != nil || !created {
		t.Fatal(created, err)
	}
	r, delta := following("1.3.0", "d", 2, "delta")
	if _, err := release.In(st).Put(ctx, p, r, delta, nil); !errors.Is(err, etcd.ErrConflict) || !strings.Contains(err.Error(), "position 2 of line 1.0.0 is taken") {
		t.Errorf("the position of a release without a delta: %v", err)
	}
	if _, err := release.In(st).Deltas(ctx, "1.0.0", 1, 2); !errors.Is(err, etcd.ErrNotFound) || !strings.Contains(err.Error(), "position 2") {
		t.Errorf("a delta that is none: %v", err)
	}
	if got, delta, err := release.In(st).GetWithDelta(ctx, "1.2.0", "1.0.0", 2); err != nil || got.Version != "1.2.0" || delta != nil {
		t.Errorf("%q, %v", delta, err)
	}

	// A published release is not signed again, and takes no second position.
	asked := func(context.Context, trust.Namespace, []byte) ([]byte, error) {
		return nil, errors.New("asked for a signature for nothing")
	}
	r, delta = following("1.2.0", "c", 3, "delta")
	if created, err := release.In(st).Put(ctx, p, r, delta, asked); err != nil || created {
		t.Errorf("the same tree again: created %v, %v", created, err)
	}
	if keys := strings.Join(server.Keys(), " "); strings.Contains(keys, "deltas/1.0.0/000000003") {
		t.Errorf("a delta without a release: %s", keys)
	}
	if _, err := release.In(st).Put(ctx, p, r, nil, nil); err == nil || !strings.Contains(err.Error(), "do not match") {
		t.Errorf("a record without its delta: %v", err)
	}
	r, delta = following("2.0.0", "e", 3, strings.Repeat("x", release.MaxValueBytes+1))
	if _, err := release.In(st).Put(ctx, p, r, delta, nil); err == nil || !strings.Contains(err.Error(), "of one value") {
		t.Errorf("a delta that is too large: %v", err)
	}
	r = fleettest.ARelease("2.0.0", "e")
	r.Message = model.Prose(strings.Repeat("x", release.MaxValueBytes))
	if _, err := release.In(st).Put(ctx, p, r, nil, nil); err == nil || !strings.Contains(err.Error(), "of one value") {
		t.Errorf("a record that is too large: %v", err)
	}
}

// Two versions that name one environment of a Puppet server would be the same code: a rollback between them changes nothing. The
// second publish comes between the first one's check and its write.
func TestOnePuppetEnvironmentAVersion(t *testing.T) {
	t.Parallel()
	st, ctx := fleettest.Open(t, fleettest.Shared.Keyspace(t), ""), t.Context()
	key, _ := fleettest.Signer(t, "ann", "*")
	put := func(version, environment string, sign release.Sign) error {
		r := fleettest.ARelease(version, version)
		r.PuppetEnvironment = environment
		_, err := release.In(st).Put(ctx, fleettest.Publishing(t, st, "publisher "+version), r, nil, sign)
		return err
	}
	between := func(version, environment string) release.Sign {
		return func(ctx context.Context, ns trust.Namespace, record []byte) ([]byte, error) {
			if err := put(version, environment, nil); err != nil {
				t.Error(err)
			}
			return key.Sign(ctx, ns, record)
		}
	}
	if err := put("1.0.0", "production", between("2.0.0", "production")); !errors.Is(err, etcd.ErrConflict) {
		t.Errorf("a second version that names the environment was published: %v", err)
	}
	if err := put("1.0.0", "production", nil); err == nil || !strings.Contains(err.Error(), "release 2.0.0 names environment production of the Puppet server already") {
		t.Errorf("the repetition: %v", err)
	}
	if all, err := release.In(st).List(ctx); err != nil || len(all) != 1 {
		t.Errorf("%d releases, %v", len(all), err)
	}
	if err := put("1.0.0", "staging", nil); err != nil {
		t.Error(err)
	}
}

// A prune may have deleted the objects of a publisher that lost its lock. Its release would name missing objects.
func TestPublishWithoutLockPublishesNothing(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	for _, end := range []string{"its lease ends", "it is closed", "its mark was set anew"} {
		p := fleettest.Publishing(t, st, "ann")
		marks, err := server.Client().Get(ctx, "/pulley/v1/publishing/", clientv3.WithPrefix())
		if err != nil || len(marks.Kvs) != 1 {
			t.Fatal(marks, err)
		}
		key, lease := string(marks.Kvs[0].Key), clientv3.LeaseID(marks.Kvs[0].Lease)
		if ttl, err := server.Client().TimeToLive(ctx, lease); err != nil || ttl.GrantedTTL != 60 {
			t.Errorf("the mark lasts %+v, %v", ttl, err)
		}
		switch end {
		case "it is closed":
			err = p.Close()
		default:
			_, err = server.Client().Revoke(ctx, lease)
		}
		if err != nil {
			t.Fatal(err)
		}
		if end == "its mark was set anew" {
			if _, err := server.Client().Put(ctx, key, `{"v":1}`); err != nil {
				t.Fatal(err)
			}
		}
		r, delta := following("1.1.0", "b", 1, "delta")
		created, err := release.In(st).Put(ctx, p, r, delta, nil)
		if err == nil || created {
			t.Errorf("%s: published, %v", end, err)
		}
		server.Drop("/pulley/v1/publishing/")
		if keys := server.Keys(); len(keys) != 0 {
			t.Errorf("%s: left %v", end, keys)
		}
	}
}

// A release whose answer was lost is published. A false failure would make the publisher use a new version.
func TestLostAnswerOfPublishIsReadAgain(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	ctx := t.Context()
	for version, back := range map[string]bool{"1.0.0": true, "2.0.0": false} {
		wire := fleettest.NewWire(t, strings.TrimPrefix(server.Endpoint, "http://"))
		st, err := etcd.Open(etcd.Config{Endpoints: []string{wire.Address()}, Timeout: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = st.Close() })
		p := fleettest.Publishing(t, st, "ann")
		watched := server.Client().Watch(ctx, "/pulley/v1/releases/"+version)
		go func() { // cut the wire only after etcd has the release
			for w := range watched {
				if len(w.Events) > 0 {
					wire.Cut(back)
					return
				}
			}
		}()
		created, err := release.In(st).Put(ctx, p, fleettest.ARelease(version, "a"), nil, func(context.Context, trust.Namespace, []byte) ([]byte, error) {
			wire.Mute() // all reads are done; only the write remains
			return nil, nil
		})
		if back && (err != nil || !created) {
			t.Errorf("it is published, and yet: %v", err)
		}
		if !back && (!errors.Is(err, model.ErrUnreachable) || !strings.Contains(err.Error(), "the outcome is unknown: publish it again")) {
			t.Errorf("the outcome is unknown, but the error is: %v", err)
		}
	}
}

// A node must get a change of one line in one request: ten thousand nodes make it at once.
func TestApproachIsOneRequest(t *testing.T) {
	server := etcdtest.Start(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	fleettest.Published(t, st, "1.0.0", "a")
	p := fleettest.Publishing(t, st, "ann")
	r, delta := following("1.1.0", "b", 1, "the delta")
	if _, err := release.In(st).Put(ctx, p, r, delta, nil); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	before := server.Requests()
	got, found, err := release.In(st).GetWithDelta(ctx, "1.1.0", "1.0.0", 1)
	if n := server.Requests() - before; err != nil || got.Version != "1.1.0" || string(found) != "the delta" || n != 1 {
		t.Errorf("%s with %q after %d requests, %v", got.Version, found, n, err)
	}
	if got.Revision == 0 {
		t.Error("no revision to guard a change of it")
	}
	for _, c := range []struct {
		line string
		seq  int64
	}{{"", 1}, {"1.0.0", 2}, {"2.0.0", 1}, {"1.0", 0}} {
		if _, found, err := release.In(st).GetWithDelta(ctx, "1.1.0", c.line, c.seq); err != nil || found != nil {
			t.Errorf("line %q at %d: %q, %v", c.line, c.seq, found, err)
		}
	}
	if _, _, err := release.In(st).GetWithDelta(ctx, "1.2.0", "1.0.0", 1); !errors.Is(err, etcd.ErrNotFound) {
		t.Errorf("a release that is not there: %v", err)
	}
}

// A record under another version's key would pass as that version, with a valid signature.
func TestRecordAtWrongKeyIsRefused(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	fleettest.Published(t, st, "1.0.0", "a")
	copied := fleettest.Value(t, server, "/pulley/v1/releases/1.0.0").Kvs[0].Value
	if _, err := server.Client().Put(ctx, "/pulley/v1/releases/2.0.0", string(copied)); err != nil {
		t.Fatal(err)
	}
	var unreadable *etcd.UnreadableError
	_, err := release.In(st).Get(ctx, "2.0.0")
	if !errors.As(err, &unreadable) || unreadable.Key != server.Prefix+"/pulley/v1/releases/2.0.0" {
		t.Errorf("read: %v", err)
	}
	if _, err := release.In(st).List(ctx); !errors.As(err, &unreadable) {
		t.Errorf("listed: %v", err)
	}
}

// One damaged record must not hide the others, and must be reported.
func TestOneDamagedRecordHidesNoOther(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	fleettest.Published(t, st, "1.0.0", "a")
	for key, text := range map[string]string{"1.2.0": "foreign", "1.1.0": `{"v":99}`} {
		if _, err := server.Client().Put(ctx, "/pulley/v1/releases/"+key, text); err != nil {
			t.Fatal(err)
		}
	}
	all, err := release.In(st).List(ctx)
	var unreadable *release.UnreadableReleases
	if !errors.As(err, &unreadable) || len(all) != 1 || all[0].Version != "1.0.0" || strings.Join(unreadable.Versions, " ") != "1.1.0 1.2.0" {
		t.Fatalf("%+v, %v", all, err)
	}
	for i, next := range []string{"", "restore it from a backup, or delete it: `pulley doctor --delete " + server.Prefix + "/pulley/v1/releases/1.2.0`"} { // a newer format is not garbage
		var one *etcd.UnreadableError
		if !errors.As(unreadable.Errors[i], &one) || one.Hint() != next {
			t.Errorf("%v: %q", unreadable.Errors[i], one.Hint())
		}
	}
	if r, err := (choice.Taker{}).Resolve(ctx, release.In(st), "~> 1.0"); !errors.As(err, new(*etcd.UnreadableError)) {
		t.Errorf("the newest is %s, %v", r.Version, err)
	}
	if r, err := (choice.Taker{}).Resolve(ctx, release.In(st), "1.0.0"); err != nil || r.Version != "1.0.0" {
		t.Errorf("%s, %v", r.Version, err)
	}
}

// A team's fleet must not get another team's code because its version is higher. A repository has few certain marks.
func TestReleasesOfOneRepository(t *testing.T) {
	aRelease := func(version, first string, environments ...string) release.Release {
		return release.Release{Version: version, FirstCommit: first, Environments: environments}
	}
	for _, c := range []struct {
		a, b release.Release
		want bool
	}{
		{aRelease("1.0.0+web", "a", "dev"), aRelease("2.0.0+web", "b", "shop"), true},
		{aRelease("1.0.0+web", "a", "dev"), aRelease("1.0.0", "a", "dev"), false},
		{aRelease("1.0.0+web", "a", "dev"), aRelease("1.0.0+shop", "a", "dev"), false},
		{aRelease("1.0.0", "a", "dev"), aRelease("2.0.0", "a", "shop"), true},
		{aRelease("1.0.0", "a", "dev"), aRelease("2.0.0", "b", "dev"), false},
		{aRelease("1.0.0", "a", "dev"), aRelease("2.0.0", "", "prod", "dev"), true},
		{aRelease("1.0.0", "", "dev"), aRelease("2.0.0", "b", "shop"), false},
		{aRelease("1.0.0", ""), aRelease("2.0.0", ""), true},
		{aRelease("1.0.0", ""), aRelease("2.0.0", "a", "dev"), false},
		{release.Release{Version: "1.0.0", PuppetEnvironment: "v1"}, aRelease("2.0.0", "a", "dev"), true},
	} {
		if got := c.a.Beside(c.b); got != c.want || c.b.Beside(c.a) != got {
			t.Errorf("%+v and %+v: %t", c.a, c.b, got)
		}
	}
}
