package access_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/testbed/fleettest"
)

// A backup of etcd must not allow a join: it contains only a hash of a token's secret.
func TestTokensAreStoredHashed(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	s := fleettest.Open(t, server, "")
	now := time.Now().UTC().Truncate(time.Second)
	text, made, err := access.TokensIn(s).Create(t.Context(), access.Token{Environment: "dev", Uses: 1, Created: now, Expires: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	id, secret, err := access.ParseToken(text)
	if err != nil || id != made.ID || !made.Matches(secret) || made.Matches(secret[1:]+"0") || made.Matches("") {
		t.Errorf("the token %+v does not match what was printed: %v", made, err)
	}
	resp, err := server.Client().Get(t.Context(), "/pulley/v1/tokens/nodes/"+id)
	if err != nil || len(resp.Kvs) != 1 || strings.Contains(string(resp.Kvs[0].Value), secret) {
		t.Errorf("etcd has %v (%v)", resp.Kvs, err)
	}
	for _, bad := range []string{"", "plt_", text[1:], text + "0", strings.ToUpper(text), "plt_" + id + "_" + secret[1:]} {
		if _, _, err := access.ParseToken(bad); err == nil {
			t.Errorf("%q is taken for a token", bad)
		}
	}
	if _, err := access.TokensIn(s).Revoke(t.Context(), "ffffffff", access.Revoked{}); !errors.Is(err, etcd.ErrNotFound) {
		t.Errorf("a token that there is not: %v", err)
	}
	// The creation of a token deletes a long-ended one.
	later := now.Add(30*24*time.Hour + 2*time.Hour)
	if _, _, err := access.TokensIn(s).Create(t.Context(), access.Token{Environment: "dev", Created: later, Expires: later.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if all, _, err := access.TokensIn(s).List(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("the tokens are %v (%v)", all, err)
	}
}

// Otherwise each lookup of a token would read all tokens of the past years.
func TestOldTokensAreDeleted(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	s := fleettest.Open(t, server, "")
	now := time.Now().UTC().Truncate(time.Second)
	for n := range 300 {
		old := access.Token{Environment: "dev", Created: now.Add(-90 * 24 * time.Hour), Expires: now.Add(-60 * 24 * time.Hour)}
		if n%2 == 1 {
			old.Environment, old.Operator, old.As = "", "ann", access.RoleAdmin
		}
		if _, _, err := access.TokensIn(s).Create(t.Context(), old); err != nil {
			t.Fatal(err)
		}
	}
	for _, expires := range []time.Time{now.Add(time.Hour), now.Add(-29 * 24 * time.Hour)} {
		if _, _, err := access.TokensIn(s).Create(t.Context(), access.Token{Environment: "dev", Created: now.Add(-90 * 24 * time.Hour), Expires: expires}); err != nil {
			t.Fatal(err)
		}
	}
	if err := access.TokensIn(s).DeleteEnded(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if all, _, err := access.TokensIn(s).List(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("%d tokens are left, want 2 (%v)", len(all), err)
	}
}

// Operators may write any value below the tokens of nodes. The contents of such a record must not make serve write,
// delete or keep another token.
func TestKeyDeterminesScopeOfToken(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	s, c, ref := fleettest.Open(t, server, ""), server.Client(), model.Ref{Environment: "dev"}
	now := time.Now().UTC().Truncate(time.Second)
	_, ann, err := access.TokensIn(s).Create(t.Context(), access.Token{Operator: "ann", As: access.RoleAdmin, Created: now, Expires: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	_, node, err := access.TokensIn(s).Create(t.Context(), access.Token{Environment: "dev", Created: now, Expires: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	put := func(key, value string) {
		t.Helper()
		if _, err := c.Put(t.Context(), "/pulley/v1/tokens/"+key, value); err != nil {
			t.Fatal(err)
		}
	}
	var unreadable *etcd.UnreadableError
	for key, value := range map[string]string{
		"nodes/aaaaaaaa":     `{"v":1,"operator":"ann","as":"admin"}`,
		"nodes/aaaaaaab":     `{"v":1,"environment":"dev","operator":"ann"}`,
		"nodes/aaaaaaac":     `{"v":1,"environment":"dev","as":"admin"}`,
		"nodes/aaaaaaad":     `{"v":1}`,
		"operators/aaaaaaae": `{"v":1,"environment":"dev"}`,
		"operators/aaaaaaaf": `{"v":1,"environment":"dev","operator":"ann","as":"admin"}`,
	} {
		put(key, value)
		_, id, _ := strings.Cut(key, "/")
		if got, err := access.TokensIn(s).Find(t.Context(), id); !errors.As(err, &unreadable) {
			t.Errorf("%s is taken for %+v, %v", key, got, err)
		}
		if strings.HasPrefix(key, "nodes/") {
			if f, err := access.JoinsIn(s).Facts(t.Context(), id, ref, "controller1", "m", ""); !errors.As(err, &unreadable) {
				t.Errorf("%s is taken for %+v, %v", key, f.Token, err)
			}
		} else if f, err := access.JoinsIn(s).OperatorFacts(t.Context(), id, "ann"); !errors.As(err, &unreadable) {
			t.Errorf("%s is taken for %+v, %v", key, f.Token, err)
		}
	}
	if _, damaged, err := access.TokensIn(s).List(t.Context()); err != nil || len(damaged) != 6 {
		t.Errorf("listed as damaged are %q (%v)", damaged, err)
	}

	// A use is counted at the key where the token was read.
	put("nodes/bbbbbbbb", `{"v":1,"environment":"dev","id":"`+ann.ID+`"}`)
	f, err := access.JoinsIn(s).Facts(t.Context(), "bbbbbbbb", ref, "controller1", "m", "")
	if err != nil || f.Token.ID != "bbbbbbbb" {
		t.Fatalf("its id is %+v, %v", f.Token, err)
	}
	used := *f.Token
	used.Used, used.ID, used.Operator = 1, node.ID, "ann"
	if err := access.JoinsIn(s).Commit(t.Context(), ref, f, access.Join{Token: used, Identity: access.Identity{Node: "controller1", Machine: "m"}, Machine: access.FirstBoot{Machine: "m"}}); err != nil {
		t.Fatal(err)
	}
	resp, err := c.Get(t.Context(), "/pulley/v1/tokens/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		if written, want := kv.Version > 1, strings.HasSuffix(string(kv.Key), "/nodes/bbbbbbbb"); written != want {
			t.Errorf("%s was written %d times", kv.Key, kv.Version)
		}
	}

	// The long-ended record is deleted, not the record that it names.
	put("nodes/cccccccc", `{"v":1,"environment":"dev","id":"`+node.ID+`","expires":"2020-01-01T00:00:00Z"}`)
	if _, _, err := access.TokensIn(s).Create(t.Context(), access.Token{Environment: "dev", Created: now, Expires: now.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if got, err := access.TokensIn(s).Find(t.Context(), node.ID); got == nil || err != nil {
		t.Errorf("another token is gone: %v", err)
	}
	if got, err := access.TokensIn(s).Find(t.Context(), "cccccccc"); got != nil || err != nil {
		t.Errorf("one that ended long ago still exists: %+v, %v", got, err)
	}

	// An ID with two tokens is invalid, and a record below the tokens of nodes keeps no other token valid.
	for _, value := range []string{`{"v":1,"environment":"dev"}`, `junk`} {
		put("nodes/"+ann.ID, value)
		if got, err := access.TokensIn(s).Find(t.Context(), ann.ID); !errors.As(err, &unreadable) {
			t.Errorf("an id that two have is %+v, %v", got, err)
		}
	}
	if got, err := access.TokensIn(s).Revoke(t.Context(), ann.ID, access.Revoked{At: now}); err != nil || got.Operator != "ann" {
		t.Errorf("revoked is %+v, %v", got, err)
	}
	if f, err := access.JoinsIn(s).OperatorFacts(t.Context(), ann.ID, "ann"); err != nil || f.Token.Revoked == nil {
		t.Errorf("the operator's token is alive: %+v, %v", f.Token, err)
	}
}

// Without leases, unfinished first boots would be shown forever and fill etcd.
func TestRecordsOfFirstBootsEnd(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	s, ref := fleettest.Open(t, server, ""), model.Ref{Environment: "dev"}
	lease := func(machine string) time.Duration {
		t.Helper()
		c := server.Client()
		resp, err := c.Get(t.Context(), "/pulley/v1/firstboots/dev/"+machine)
		if err != nil || len(resp.Kvs) != 1 || resp.Kvs[0].Lease == 0 {
			t.Fatalf("the record has no lease: %v, %v", resp.Kvs, err)
		}
		left, err := c.TimeToLive(t.Context(), clientv3.LeaseID(resp.Kvs[0].Lease))
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(left.TTL) * time.Second
	}
	b := access.FirstBoot{Machine: "m", Node: "controller1", Step: "puppet", State: access.BootStarted, Heard: time.Now()}
	if err := access.FirstBootsIn(s).Put(t.Context(), ref, b, 0); err != nil {
		t.Fatal(err)
	}
	if got := lease("m"); got < 25*24*time.Hour || got > 31*24*time.Hour {
		t.Errorf("one that is not over ends in %s", got)
	}
	_, revision, err := access.FirstBootsIn(s).Get(t.Context(), ref, "m")
	if err != nil {
		t.Fatal(err)
	}
	if err := access.FirstBootsIn(s).Put(t.Context(), ref, b, revision); err != nil {
		t.Fatal(err)
	}
	if got := lease("m"); got < 25*24*time.Hour {
		t.Errorf("after another word it ends in %s", got)
	}
	if err := access.FirstBootsIn(s).Put(t.Context(), ref, b, revision); !errors.Is(err, etcd.ErrConflict) {
		t.Errorf("a word that comes late replaces a newer one: %v", err)
	}
	_, revision, _ = access.FirstBootsIn(s).Get(t.Context(), ref, "m")
	b.Finished = time.Now()
	if err := access.FirstBootsIn(s).Put(t.Context(), ref, b, revision); err != nil {
		t.Fatal(err)
	}
	if got := lease("m"); got > 25*time.Hour {
		t.Errorf("one that is over ends in %s", got)
	}
}

// deafKV is an etcd that takes writes and answers no reads.
type deafKV struct{ clientv3.KV }

func (deafKV) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return nil, context.DeadlineExceeded
}

// A token whose creation is reported as failed would be valid, and nobody would know it.
func TestFailedCreationLeavesNoToken(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	client := server.Client()
	client.KV = deafKV{client.KV}
	now := time.Now().UTC().Truncate(time.Second)
	_, _, err := access.TokensIn(etcd.Over(client, nil, server.Endpoint, "", 0)).Create(t.Context(), access.Token{Environment: "dev", Uses: 1, Created: now, Expires: now.Add(time.Hour)})
	if err == nil {
		t.Error("etcd answers no reads, and the creation succeeded")
	}
	if all, _, err := access.TokensIn(fleettest.Open(t, server, "")).List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("there are %v (%v)", all, err)
	}
}
