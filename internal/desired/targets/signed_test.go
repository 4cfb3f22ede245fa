package targets_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/choice"
	"pulley/internal/release/trust"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// permitsOf reads all permits.
func permitsOf(t *testing.T, st *etcd.DB) (all []trust.SignedPermit, err error) {
	t.Helper()
	err = targets.In(st).Permits(t.Context(), "dev", func(page []trust.SignedPermit) bool {
		all = append(all, page...)
		return true
	})
	return all, err
}

// A signature of dev's data must not be valid for production, nor an old generation for a new one.
func TestDataIsSignedForItsEnvironment(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	stack := model.Ref{Environment: "dev", Stack: "t42"}
	key, allowed := fleettest.Signer(t, "ann", "*")
	author := fleettest.Me
	author.Sign = key.Sign
	c := fleettest.Set(t, st, stack, "x", "1", author)
	g, err := targets.In(st).Generation(ctx, stack.String(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if g.Environment != "dev@t42" || !strings.Contains(string(g.Record), `"environment":"dev@t42"`) || hieradata.Digest(g.Record) != c.After.DataDigest || g.Digest() != c.After.DataDigest {
		t.Errorf("generation %+v for %+v", g.Generation, c.After)
	}
	if by, err := fleettest.Signers(t, allowed).Verify(trust.Data, "dev", g.Record, g.Signatures, time.Now()); err != nil || by != "ann" {
		t.Errorf("signed by %q, %v", by, err)
	}
	if _, err := fleettest.Signers(t, allowed).Verify(trust.Release, "dev", g.Record, g.Signatures, time.Now()); err == nil {
		t.Error("a signature of data counts for a release")
	}
	author.Sign = func(context.Context, trust.Namespace, []byte) ([]byte, error) { return nil, errors.New("no such key") }
	d := fleettest.Desires(t, st, stack)
	data, err := targets.In(st).Data(ctx, stack, d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := targets.In(st).ChangeData(ctx, stack, d, data, nil, author); err == nil || !strings.Contains(err.Error(), "cannot sign data generation 2 of dev@t42: no such key") {
		t.Errorf("without a signature: %v", err)
	}

	const prefix = "/pulley/v1/environments/"
	document := string(fleettest.Value(t, server, prefix+"dev@t42/data/generations/000000000001").Kvs[0].Value)
	legacy := strings.Replace(string(g.Record), `"environment":"dev@t42",`, "", 1)
	for _, c := range []struct{ env, key, value, problem string }{
		{"production", "000000000001", document, `it is data of environment "dev@t42"`},
		{"dev@t42", "000000000007", document, "it is data generation 1"},
		{"dev@t42", "000000000001", document + " ", ""}, // the bytes after the record matter only to the signature check
		{"dev@t42", "000000000001", " " + document, "not in the form that Pulley writes"},
		{"dev", "000000000001", legacy, ""},
		{"dev", "000000000001", legacy + "\n", ""},
	} {
		if _, err := server.Client().Put(ctx, prefix+c.env+"/data/generations/"+c.key, c.value); err != nil {
			t.Fatal(err)
		}
		n := model.Generation(c.key[len(c.key)-1] - '0')
		got, err := targets.In(st).Generation(ctx, c.env, n)
		if c.problem == "" {
			if err != nil || got.Number != 1 {
				t.Errorf("%s: %+v, %v", c.env, got, err)
			}
			continue
		}
		var unreadable *etcd.UnreadableError
		if !errors.As(err, &unreadable) || !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: %v, want %s", c.env, err, c.problem)
		}
	}
}

// One unreadable change must not end all signing: nodes would take nothing new until somebody removed it by hand.
func TestUnreadableChangeEndsNoSigning(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	key, _ := fleettest.Signer(t, "ann", "*")
	author := fleettest.Me
	author.Sign = key.Sign
	for _, value := range []string{"1", "2"} {
		fleettest.Set(t, st, fleettest.Dev, "x", value, author)
	}
	for key, value := range map[string]string{"spec": `{"statement":"24h"}`, "history/000000000001": "?"} {
		if _, err := server.Client().Put(t.Context(), "/pulley/v1/environments/dev/"+key, value); err != nil {
			t.Fatal(err)
		}
	}
	got, err := targets.In(st).State(t.Context(), fleettest.Dev, fleettest.Desires(t, st, fleettest.Dev), targets.Anew, author, nil)
	if err != nil || got.Default.Data != 2 {
		t.Errorf("signed %+v: %v", got, err)
	}
	if c := fleettest.Set(t, st, fleettest.Dev, "x", "3", author); c.Unstated || fleettest.Desires(t, st, fleettest.Dev).Statement.Default.Data != 3 {
		t.Errorf("the next change: %+v", c)
	}
}

// A node that was offline during a rollback finds a lower target. It follows only with a permit, and only to the
// permitted target.
func TestSignaturePermitsRollback(t *testing.T) {
	t.Parallel()
	st := fleettest.Open(t, fleettest.Shared.Keyspace(t), "")
	ctx := t.Context()
	key, allowed := fleettest.Signer(t, "ann", "*")
	author := fleettest.Me
	author.Sign = key.Sign
	for i, v := range []string{"1.0.0", "1.5.0", "2.0.0", "2.1.0"} {
		fleettest.Published(t, st, v, string(rune('a'+i)))
	}
	if err := fleet.In(st).Register(ctx, "dev", model.Host{Node: "odd", Role: "compute"}); err != nil {
		t.Fatal(err)
	}
	promote := func(scope etcd.Scope, wish string) targets.Change {
		t.Helper()
		d := fleettest.Desires(t, st, fleettest.Dev)
		var after model.Target
		if wish != "" {
			r, err := choice.Taker{}.Resolve(ctx, release.In(st), wish)
			if err != nil {
				t.Fatal(err)
			}
			after = r.Target()
			if scope == (etcd.Scope{}) {
				after.Data, after.DataDigest = d.Default.Data, d.Default.DataDigest
			}
		}
		c, err := targets.In(st).Promote(ctx, fleettest.Dev, d, scope, targets.Promoted, after, author)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	back := func() targets.Change {
		t.Helper()
		d := fleettest.Desires(t, st, fleettest.Dev)
		history, err := targets.In(st).HistoryOf(ctx, fleettest.Dev, d)
		if err != nil {
			t.Fatal(err)
		}
		undo, ok := targets.Undo(history, etcd.Scope{})
		if !ok {
			t.Fatal("nothing to revert")
		}
		c, err := targets.In(st).Rollback(ctx, fleettest.Dev, d, undo, author)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	compute, odd := etcd.Scope{Role: "compute"}, etcd.Scope{Node: "odd"}
	list := fleettest.Signers(t, allowed)
	for _, step := range []struct {
		what string
		do   func() targets.Change
		want string
	}{
		{"the first release", func() targets.Change { return promote(etcd.Scope{}, "1.0.0") }, ""},
		{"data", func() targets.Change { return fleettest.Set(t, st, fleettest.Dev, "x", "1", author) }, ""},
		{"a newer release", func() targets.Change { return promote(etcd.Scope{}, "2.0.0") }, ""},
		{"more data", func() targets.Change { return fleettest.Set(t, st, fleettest.Dev, "x", "2", author) }, ""},
		{"the data back", back, "data 2 to 1"},
		{"the release back", back, "2.0.0 to 1.0.0, data 2 to 1"},
		// Higher than the previous target, but lower than the target of a node that was offline.
		{"a release between", func() targets.Change { return promote(etcd.Scope{}, "1.5.0") }, "2.0.0 to 1.5.0, data 2 to 1"},
		{"data above all", func() targets.Change { return fleettest.Set(t, st, fleettest.Dev, "x", "3", author) }, "2.0.0 to 1.5.0"},
		{"a role goes first", func() targets.Change { return promote(compute, "2.1.0") }, ""},
		{"a role inherits again", func() targets.Change { return promote(compute, "") }, "2.1.0 to 1.5.0"},
		{"a role on its own", func() targets.Change { return promote(compute, "2.0.0") }, "2.1.0 to 2.0.0"},
		{"a node goes first", func() targets.Change { return promote(odd, "2.1.0") }, ""},
		{"a node inherits its role's", func() targets.Change { return promote(odd, "") }, "2.1.0 to 2.0.0"},
		{"the highest for all", func() targets.Change { return promote(etcd.Scope{}, "2.1.0") }, ""},
	} {
		before, err := permitsOf(t, st)
		if err != nil {
			t.Fatal(err)
		}
		c := step.do()
		if c.Unsigned {
			t.Errorf("%s: unsigned", step.what)
		}
		permits, err := permitsOf(t, st)
		if err != nil {
			t.Fatal(err)
		}
		if step.want == "" {
			if len(permits) != len(before) {
				t.Errorf("%s: permitted %s", step.what, permits[0].Record)
			}
			continue
		}
		if len(permits) != len(before)+1 {
			t.Errorf("%s: no permit", step.what)
			continue
		}
		p := permits[0]
		var got []string
		if r := p.Release; r != nil {
			got = append(got, r.From+" to "+r.To)
		}
		if d := p.Data; d != nil {
			got = append(got, fmt.Sprintf("data %d to %d", d.From, d.To))
		}
		if strings.Join(got, ", ") != step.want || p.Epoch != int64(c.Epoch) || p.Environment != "dev" || p.By != "ann" || !p.At.Equal(c.At) {
			t.Errorf("%s: permitted %s", step.what, p.Record)
		}
		if by, err := list.Verify(trust.Rollback, "dev", p.Record, p.Signatures, time.Now()); err != nil || by != "ann" {
			t.Errorf("%s: signed by %q, %v", step.what, by, err)
		}
		// A node that had every earlier target can follow with this permit alone.
		role := "compute"
		if c.Scope() == (etcd.Scope{}) {
			role = "controller"
		}
		wanted := fleettest.Desires(t, st, fleettest.Dev).For(role, "odd").Wanted()
		highest := trust.HighWaterMark{Environment: "dev", Release: "2.1.0", Data: 3}
		if c.Epoch <= 8 {
			highest.Release = "2.0.0"
		}
		if c.Epoch < 8 {
			highest.Data = 2
		}
		to := trust.Target{Environment: "dev", Release: wanted.Release, Tree: wanted.Tree, Data: int64(wanted.Data), DataDigest: wanted.DataDigest}
		if _, err := highest.Check(to, []trust.Permit{p.Permit}); err != nil {
			t.Errorf("%s: a node that was away stays away: %v", step.what, err)
		}
		if _, err := highest.Check(to, nil); err == nil {
			t.Errorf("%s: a node needs no permit", step.what)
		}
	}
}

// Without a key, an operator learns that nodes may refuse, and no permit is stored.
func TestNoPermitWithoutKey(t *testing.T) {
	t.Parallel()
	st := fleettest.Open(t, fleettest.Shared.Keyspace(t), "")
	ctx := t.Context()
	for _, step := range []struct {
		version string
		lower   bool
	}{{"1.0.0", false}, {"2.0.0", false}, {"1.5.0", true}, {"2.0.0", false}} {
		c, err := targets.In(st).Promote(ctx, fleettest.Dev, fleettest.Desires(t, st, fleettest.Dev), etcd.Scope{}, targets.Promoted, fleettest.Published(t, st, step.version, "a"), fleettest.Me)
		if err != nil || c.Unsigned != step.lower {
			t.Errorf("%s: unsigned %v, %v", step.version, c.Unsigned, err)
		}
	}
	if permits, err := permitsOf(t, st); err != nil || len(permits) != 0 {
		t.Errorf("%v, %v", permits, err)
	}
	history, _, err := targets.In(st).History(ctx, fleettest.Dev, 0)
	if err != nil || len(history) != 4 || history[1].Unsigned {
		t.Errorf("%+v, %v", history, err)
	}
}

// An operator can sign an unsigned rollback afterwards. A repeated promotion changes nothing.
func TestUnsignedRollbackIsSignedAfterwards(t *testing.T) {
	t.Parallel()
	st := fleettest.Open(t, fleettest.Shared.Keyspace(t), "")
	key, _ := fleettest.Signer(t, "ann", "*")
	signing := fleettest.Me
	signing.Sign = key.Sign
	one, two := fleettest.Published(t, st, "1.0.0", "a"), fleettest.Published(t, st, "2.0.0", "b")
	compute := etcd.Scope{Role: "compute"}
	for _, step := range []struct {
		what   string
		scope  etcd.Scope
		target model.Target
		author targets.Author
		want   bool
	}{
		{"the first", etcd.Scope{}, one, fleettest.Me, true},
		{"up", etcd.Scope{}, two, fleettest.Me, true},
		{"down, unsigned", etcd.Scope{}, one, fleettest.Me, false},
		{"the same, signed", etcd.Scope{}, one, signing, true},
		{"a role up", compute, two, fleettest.Me, true},
		{"a role down: its nodes have used the permit", compute, one, fleettest.Me, false},
		{"the role, signed", compute, one, signing, true},
		{"a role inherits", compute, model.Target{}, fleettest.Me, false},
		{"up again", etcd.Scope{}, two, fleettest.Me, true},
		{"down again, unsigned: the nodes have used the permit", etcd.Scope{}, one, fleettest.Me, false},
		{"the same again, signed", etcd.Scope{}, one, signing, true},
	} {
		if _, err := targets.In(st).Promote(t.Context(), fleettest.Dev, fleettest.Desires(t, st, fleettest.Dev), step.scope, targets.Promoted, step.target, step.author); err != nil {
			t.Fatal(err)
		}
		if got, err := targets.In(st).Permitted(t.Context(), fleettest.Dev, fleettest.Desires(t, st, fleettest.Dev), step.scope, fleettest.Me.At); err != nil || got != step.want {
			t.Errorf("%s: permitted %v, %v", step.what, got, err)
		}
	}
}

// An invalid value must neither permit a target nor hide valid permits.
func TestNewestReadablePermitsAreUsed(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	put := func(epoch int, value []byte) {
		t.Helper()
		if _, err := server.Client().Put(ctx, fmt.Sprintf("/pulley/v1/environments/dev/rollbacks/%012d", epoch), string(value)); err != nil {
			t.Fatal(err)
		}
	}
	permit := func(env string, epoch int64) []byte {
		t.Helper()
		p := trust.Permit{Environment: env, Epoch: epoch, Data: &trust.DataStep{From: 2, To: 1, Digest: "d"}}
		record, err := p.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return record
	}
	for epoch := 1; epoch <= 70; epoch++ {
		put(epoch, permit("dev", int64(epoch)))
	}
	put(70, []byte("hello"))
	put(69, permit("production", 69))
	put(68, permit("dev", 67))
	put(67, trust.Join(permit("dev", 67), []byte("a signature")))
	permits, err := permitsOf(t, st)
	if err != nil || len(permits) != 67 || permits[0].Epoch != 67 || permits[66].Epoch != 1 {
		t.Fatalf("%d permits, %v", len(permits), err)
	}
	if string(permits[0].Signatures) != "a signature" || !bytes.Equal(permits[0].Record, permit("dev", 67)) || permits[1].Signatures != nil {
		t.Errorf("%s %s", permits[0].Record, permits[0].Signatures)
	}
}

// A node that was offline during hundreds of changes of other roles still finds its permit. A node that was online
// needs one read. No node reads without limit.
func TestPermitsAreReadUntilSufficient(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	const n = 2100
	for first := 1; first <= n; first += 100 {
		var ops []clientv3.Op
		for epoch := first; epoch < first+100; epoch++ {
			record, err := trust.Permit{Environment: "dev", Epoch: int64(epoch), Data: &trust.DataStep{From: 2, To: 1, Digest: "d"}}.Encode()
			if err != nil {
				t.Fatal(err)
			}
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("/pulley/v1/environments/dev/rollbacks/%012d", epoch), string(record)))
		}
		if _, err := server.Client().Txn(t.Context()).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	for enough, pages := range map[int64]int{n: 1, n - 63: 1, n - 64: 2, n - 200: 4, 1: 32} {
		got, next := 0, int64(n)
		err := targets.In(st).Permits(t.Context(), "dev", func(page []trust.SignedPermit) bool {
			got++
			for _, p := range page {
				if p.Epoch != next {
					t.Fatalf("%d follows %d", p.Epoch, next+1)
				}
				next--
			}
			return next >= enough
		})
		if err != nil || got != pages {
			t.Errorf("until %d: %d pages, %v", enough, got, err)
		}
	}
}

// Somebody who can write etcd and has no key prepares an epoch near the maximum for a signer to sign: it would void all later permits.
func TestSignerSignsOnlyTheNextEpoch(t *testing.T) {
	t.Parallel()
	const huge = "9223372036854775806"
	key, _ := fleettest.Signer(t, "ann", "*")
	signing := fleettest.Me
	signing.Sign = key.Sign
	for _, c := range []struct {
		name, gate, change string // epochs that are written
		empty              bool   // the history is deleted
		ends               bool   // no epoch is possible after the gate's
		want               string // of a signature; "" is success

		delete, put string // numbers of changes: deleted first, then written with another release
	}{
		{name: "nothing"},
		{name: "the oldest change is deleted", delete: "1", want: "has no change before"},
		{name: "an edited change", put: "1", want: "history/000000000001 again"},
		{name: "the edited last change", put: "2", want: "history/000000000002 again"},
		{name: "a change is replaced", delete: "1", put: "1", want: "history/000000000001 again"},
		{name: "no history", empty: true, want: "the gate of dev has epoch 2, and its history is empty"},
		{name: "a gate without history", empty: true, gate: huge, ends: true, want: "its history is empty"},
		{name: "a change alone", change: huge, want: "which is not that of the last change"},
		{name: "a change and the gate", gate: huge, ends: true, change: huge, want: "has epoch " + huge + ", which no change can have"},
		{name: "a change below the highest", gate: "999999999998", ends: true, change: "999999999998", want: "has epoch 999999999998, which no change can have"},
		{name: "a gap", gate: "000000000050", change: "000000000050", want: "has no change between"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := fleettest.Shared.Keyspace(t)
			st, ctx := fleettest.Open(t, server, ""), t.Context()
			one, two := fleettest.Published(t, st, "1.0.0", "a"), fleettest.Published(t, st, "2.0.0", "b")
			for _, target := range []model.Target{one, two} {
				if _, err := targets.In(st).Promote(ctx, fleettest.Dev, fleettest.Desires(t, st, fleettest.Dev), etcd.Scope{}, targets.Promoted, target, signing); err != nil {
					t.Fatal(err)
				}
			}
			const root = "/pulley/v1/environments/dev/"
			client := server.Client()
			with := func(key, epoch string) string {
				return strings.Replace(string(fleettest.Value(t, server, key).Kvs[0].Value), `"epoch":2`, `"epoch":`+strings.TrimLeft(epoch, "0"), 1)
			}
			var ops []clientv3.Op
			if c.gate != "" {
				ops = append(ops, clientv3.OpPut(root+"gate", with(root+"gate", c.gate)))
			}
			if c.change != "" {
				ops = append(ops, clientv3.OpPut(root+"history/"+c.change, with(root+"history/000000000002", c.change)))
			}
			if c.empty {
				ops = append(ops, clientv3.OpDelete(root+"history/", clientv3.WithPrefix()))
			}
			if _, err := client.Txn(ctx).Then(ops...).Commit(); err != nil {
				t.Fatal(err)
			}
			edited := ""
			if c.put != "" {
				edited = strings.ReplaceAll(string(fleettest.Value(t, server, root+"history/00000000000"+c.put).Kvs[0].Value), `"1.0.0"`, `"0.0.9"`)
			}
			if _, err := client.Delete(ctx, root+"history/00000000000"+c.delete); err != nil {
				t.Fatal(err)
			}
			if c.put != "" {
				if _, err := client.Put(ctx, root+"history/00000000000"+c.put, edited); err != nil {
					t.Fatal(err)
				}
			}
			d := fleettest.Desires(t, st, fleettest.Dev)
			_, err := targets.In(st).State(ctx, fleettest.Dev, d, targets.Off, signing, nil)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("signed: %v, want %q", err, c.want)
			}
			// Nor does a change without a signature continue a gate that somebody wrote: recover refuses such an epoch in the history.
			if _, err := targets.In(st).Promote(ctx, fleettest.Dev, d, etcd.Scope{}, targets.Promoted, one, fleettest.Me); (err != nil) != c.ends || err != nil && !strings.Contains(err.Error(), "after which no change is possible") {
				t.Errorf("unsigned: %v", err)
			}
		})
	}
}

// A change decides one scope. The next statement covers all scopes: a target that somebody wrote into etcd, with a change of the
// history that shows it, would get the signature of the next signer.
func TestStatementContinuesTheLastOne(t *testing.T) {
	t.Parallel()
	key, _ := fleettest.Signer(t, "ann", "*")
	signing := fleettest.Me
	signing.Sign = key.Sign
	web, db := etcd.Scope{Role: "web"}, etcd.Scope{Role: "db"}
	for name, c := range map[string]struct {
		attack func(ctx context.Context, t *testing.T, st *etcd.DB, server *etcdtest.Server, two model.Target) error
		want   string
	}{
		"nothing": {},
		"an unsigned change of another role": {func(ctx context.Context, t *testing.T, st *etcd.DB, _ *etcdtest.Server, two model.Target) error {
			_, err := targets.In(st).Promote(ctx, fleettest.Dev, fleettest.Desires(t, st, fleettest.Dev), db, targets.Promoted, two, fleettest.Me)
			return err
		}, "the target of role db is not that of the last statement"},
		"and the statement is deleted": {func(ctx context.Context, t *testing.T, st *etcd.DB, server *etcdtest.Server, two model.Target) error {
			_, err := server.Client().Delete(ctx, "/pulley/v1/environments/dev/statement")
			return err
		}, "etcd has none for the target of "},
		"and the statement is damaged": {func(ctx context.Context, t *testing.T, st *etcd.DB, server *etcdtest.Server, two model.Target) error {
			_, err := server.Client().Put(ctx, "/pulley/v1/environments/dev/statement", "?")
			return err
		}, "etcd has none for the target of "},
		"the node of an own target is removed": {func(ctx context.Context, t *testing.T, st *etcd.DB, server *etcdtest.Server, two model.Target) error {
			_, err := server.Client().Delete(ctx, "/pulley/v1/environments/dev/desired/nodes/web1")
			return err
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := fleettest.Shared.Keyspace(t)
			st, ctx := fleettest.Open(t, server, ""), t.Context()
			e, err := environments.Parse("dev.yaml", []byte("statement: 24h\nroles:\n  web: {cardinality: 1}\n  db: {cardinality: 1}\n"))
			if err == nil {
				err = specs.In(st).PutSpec(ctx, e, 0)
			}
			if err != nil {
				t.Fatal(err)
			}
			one, two := fleettest.Published(t, st, "1.0.0", "a"), fleettest.Published(t, st, "2.0.0", "b")
			for _, scope := range []etcd.Scope{{}, db, {Node: "web1"}} {
				if c, err := targets.In(st).Promote(ctx, fleettest.Dev, fleettest.Desires(t, st, fleettest.Dev), scope, targets.Promoted, one, signing); err != nil || c.Unstated {
					t.Fatalf("%+v, %v", c, err)
				}
			}
			if c.attack != nil {
				if err := c.attack(ctx, t, st, server, two); err != nil {
					t.Fatal(err)
				}
			}
			_, err = targets.In(st).Promote(ctx, fleettest.Dev, fleettest.Desires(t, st, fleettest.Dev), web, targets.Promoted, two, signing)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "pulley sign -e dev")) {
				t.Errorf("%v, want %q", err, c.want)
			}
			// The signer of all targets ends it.
			if d := fleettest.Desires(t, st, fleettest.Dev); name == "an unsigned change of another role" && (len(d.Differing()) != 1 || d.Differing()[0] != db) {
				t.Errorf("differing: %v", d.Differing())
			}
			if _, err := targets.In(st).State(ctx, fleettest.Dev, fleettest.Desires(t, st, fleettest.Dev), targets.Anew, signing, nil); err != nil {
				t.Error(err)
			}
			if _, err := targets.In(st).Promote(ctx, fleettest.Dev, fleettest.Desires(t, st, fleettest.Dev), web, targets.Promoted, one, signing); err != nil {
				t.Error(err)
			}
		})
	}
}

// A signed change in an environment that demands statements needs the history for its permit, its statement and its epoch. It must
// read it once: it can have more than a thousand changes.
func TestSignedChangeReadsTheHistoryOnce(t *testing.T) { // alone: it counts all requests of this process
	server := etcdtest.Start(t)
	st, ctx := fleettest.Open(t, server, ""), t.Context()
	e, err := environments.Parse("dev.yaml", []byte("statement: 24h\nroles:\n  web: {cardinality: 1}\n"))
	if err == nil {
		err = specs.In(st).PutSpec(ctx, e, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	key, _ := fleettest.Signer(t, "ann", "*")
	signing := fleettest.Me
	signing.Sign = key.Sign
	one, two := fleettest.Published(t, st, "1.0.0", "a"), fleettest.Published(t, st, "2.0.0", "b")
	for _, target := range []model.Target{two, one} {
		d := fleettest.Desires(t, st, fleettest.Dev)
		before := server.Requests()
		c, err := targets.In(st).Promote(ctx, fleettest.Dev, d, etcd.Scope{}, targets.Promoted, target, signing)
		if n := server.Requests() - before; err != nil || c.Unsigned || c.Unstated || n != 2 {
			t.Errorf("%s: %d requests, not one read and one write; %+v, %v", target, n, c, err)
		}
	}
	if permits, err := permitsOf(t, st); err != nil || len(permits) != 1 || fleettest.Desires(t, st, fleettest.Dev).Statement == nil {
		t.Errorf("permits %+v, %v", permits, err)
	}
}

// After a restore, nodes must accept what signers sign: also if a stolen key had raised the epoch of the backup.
func TestRestoredEpochIsOneThatNodesAccept(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st, ctx := fleettest.Open(t, server, ""), t.Context()
	limit := model.Epoch(trust.MaxEpoch(fleettest.Me.At))
	now := model.Epoch(fleettest.Me.At.Unix())
	const ago = 3600 // seconds since the last change of the backup
	changed := fleettest.Me.At.Add(-ago * time.Second).Format(time.RFC3339)
	for gate, want := range map[model.Epoch]model.Epoch{
		0: now, 5: now, now - ago - 1: now, now - ago: now + 1_000_000, now: now + 1_000_000 + ago, limit - 5: limit,
		limit:       limit + 1, // nodes accept it a second later
		limit + 900: now,       // no change wrote this gate
		1<<63 - 1:   now,
	} {
		if _, err := server.Client().Put(ctx, "/pulley/v1/environments/dev/gate", fmt.Sprintf(`{"v":1,"epoch":%d,"state":"open","at":%q}`, gate, changed)); err != nil {
			t.Fatal(err)
		}
		if got, err := targets.In(st).Anchor(ctx, fleettest.Dev, fleettest.Me); err != nil || got != want {
			t.Errorf("of a backup of epoch %d: %d, not %d; %v", gate, got, want, err)
		} else if !trust.PlausibleEpoch(int64(got), fleettest.Me.At.Add(time.Second)) {
			t.Errorf("of a backup of epoch %d: nodes refuse %d", gate, got)
		}
		// Another restore of the same backup is above the first one.
		if _, err := server.Client().Delete(ctx, "/pulley/v1/environments/dev/history/", clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
		later := fleettest.Me
		later.At = fleettest.Me.At.Add(5 * time.Second)
		if _, err := server.Client().Put(ctx, "/pulley/v1/environments/dev/gate", fmt.Sprintf(`{"v":1,"epoch":%d,"state":"open","at":%q}`, gate, changed)); err != nil {
			t.Fatal(err)
		}
		if got, err := targets.In(st).Anchor(ctx, fleettest.Dev, later); err != nil || got <= want {
			t.Errorf("of a second restore of epoch %d: %d, which is not above %d; %v", gate, got, want, err)
		}
		if _, err := server.Client().Delete(ctx, "/pulley/v1/environments/dev/history/", clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
	}
}
