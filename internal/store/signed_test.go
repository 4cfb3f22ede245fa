package store_test

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
	"pulley/internal/model"
	"pulley/internal/release/choice"
	"pulley/internal/release/trust"
	"pulley/internal/store"
	"pulley/internal/testbed/etcdtest"
)

// permitsOf reads all permits.
func permitsOf(t *testing.T, st *store.Store) (all []trust.SignedPermit, err error) {
	t.Helper()
	err = st.Targets.Permits(t.Context(), "dev", func(page []trust.SignedPermit) bool {
		all = append(all, page...)
		return true
	})
	return all, err
}

// A signature of dev's data must not be valid for production, nor an old generation for a new one.
func TestDataIsSignedForItsEnvironment(t *testing.T) {
	t.Parallel()
	server := shared.Keyspace(t)
	st := open(t, server, "")
	ctx := t.Context()
	stack := model.Ref{Environment: "dev", Stack: "t42"}
	key, allowed := signer(t, "ann", "*")
	author := me
	author.Sign = key.Sign
	c := set(t, st, stack, "x", "1", author)
	g, err := st.Targets.Generation(ctx, stack.String(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if g.Environment != "dev@t42" || !strings.Contains(string(g.Record), `"environment":"dev@t42"`) || hieradata.Digest(g.Record) != c.After.DataDigest || g.Digest() != c.After.DataDigest {
		t.Errorf("generation %+v for %+v", g.Generation, c.After)
	}
	if by, err := signers(t, allowed).Verify(trust.Data, "dev", g.Record, g.Signatures, time.Now()); err != nil || by != "ann" {
		t.Errorf("signed by %q, %v", by, err)
	}
	if _, err := signers(t, allowed).Verify(trust.Release, "dev", g.Record, g.Signatures, time.Now()); err == nil {
		t.Error("a signature of data counts for a release")
	}
	author.Sign = func(context.Context, trust.Namespace, []byte) ([]byte, error) { return nil, errors.New("no such key") }
	d := desires(t, st, stack)
	data, err := st.Targets.Data(ctx, stack, d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Targets.ChangeData(ctx, stack, d, data, nil, author); err == nil || !strings.Contains(err.Error(), "cannot sign data generation 2 of dev@t42: no such key") {
		t.Errorf("without a signature: %v", err)
	}

	const prefix = "/pulley/v1/environments/"
	document := string(value(t, server, prefix+"dev@t42/data/generations/000000000001").Kvs[0].Value)
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
		got, err := st.Targets.Generation(ctx, c.env, n)
		if c.problem == "" {
			if err != nil || got.Number != 1 {
				t.Errorf("%s: %+v, %v", c.env, got, err)
			}
			continue
		}
		var unreadable *store.UnreadableError
		if !errors.As(err, &unreadable) || !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: %v, want %s", c.env, err, c.problem)
		}
	}
}

// One unreadable change must not end all signing: nodes would take nothing new until somebody removed it by hand.
func TestUnreadableChangeEndsNoSigning(t *testing.T) {
	t.Parallel()
	server := shared.Keyspace(t)
	st := open(t, server, "")
	key, _ := signer(t, "ann", "*")
	author := me
	author.Sign = key.Sign
	for _, value := range []string{"1", "2"} {
		set(t, st, dev, "x", value, author)
	}
	for key, value := range map[string]string{"spec": `{"statement":"24h"}`, "history/000000000001": "?"} {
		if _, err := server.Client().Put(t.Context(), "/pulley/v1/environments/dev/"+key, value); err != nil {
			t.Fatal(err)
		}
	}
	got, err := st.Targets.State(t.Context(), dev, desires(t, st, dev), store.Anew, author, nil)
	if err != nil || got.Default.Data != 2 {
		t.Errorf("signed %+v: %v", got, err)
	}
	if c := set(t, st, dev, "x", "3", author); c.Unstated || desires(t, st, dev).Statement.Default.Data != 3 {
		t.Errorf("the next change: %+v", c)
	}
}

// A node that was offline during a rollback finds a lower target. It follows only with a permit, and only to the
// permitted target.
func TestSignaturePermitsRollback(t *testing.T) {
	t.Parallel()
	st := open(t, shared.Keyspace(t), "")
	ctx := t.Context()
	key, allowed := signer(t, "ann", "*")
	author := me
	author.Sign = key.Sign
	for i, v := range []string{"1.0.0", "1.5.0", "2.0.0", "2.1.0"} {
		published(t, st, v, string(rune('a'+i)))
	}
	if err := st.Fleet.Register(ctx, "dev", model.Host{Node: "odd", Role: "compute"}); err != nil {
		t.Fatal(err)
	}
	promote := func(scope store.Scope, wish string) store.Change {
		t.Helper()
		d := desires(t, st, dev)
		var after model.Target
		if wish != "" {
			r, err := choice.Taker{}.Resolve(ctx, st.Releases, wish)
			if err != nil {
				t.Fatal(err)
			}
			after = r.Target()
			if scope == (store.Scope{}) {
				after.Data, after.DataDigest = d.Default.Data, d.Default.DataDigest
			}
		}
		c, err := st.Targets.Promote(ctx, dev, d, scope, store.Promoted, after, author)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	back := func() store.Change {
		t.Helper()
		d := desires(t, st, dev)
		history, err := st.Targets.HistoryOf(ctx, dev, d)
		if err != nil {
			t.Fatal(err)
		}
		undo, ok := store.Undo(history, store.Scope{})
		if !ok {
			t.Fatal("nothing to revert")
		}
		c, err := st.Targets.Rollback(ctx, dev, d, undo, author)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	compute, odd := store.Scope{Role: "compute"}, store.Scope{Node: "odd"}
	list := signers(t, allowed)
	for _, step := range []struct {
		what string
		do   func() store.Change
		want string
	}{
		{"the first release", func() store.Change { return promote(store.Scope{}, "1.0.0") }, ""},
		{"data", func() store.Change { return set(t, st, dev, "x", "1", author) }, ""},
		{"a newer release", func() store.Change { return promote(store.Scope{}, "2.0.0") }, ""},
		{"more data", func() store.Change { return set(t, st, dev, "x", "2", author) }, ""},
		{"the data back", back, "data 2 to 1"},
		{"the release back", back, "2.0.0 to 1.0.0, data 2 to 1"},
		// Higher than the previous target, but lower than the target of a node that was offline.
		{"a release between", func() store.Change { return promote(store.Scope{}, "1.5.0") }, "2.0.0 to 1.5.0, data 2 to 1"},
		{"data above all", func() store.Change { return set(t, st, dev, "x", "3", author) }, "2.0.0 to 1.5.0"},
		{"a role goes first", func() store.Change { return promote(compute, "2.1.0") }, ""},
		{"a role inherits again", func() store.Change { return promote(compute, "") }, "2.1.0 to 1.5.0"},
		{"a role on its own", func() store.Change { return promote(compute, "2.0.0") }, "2.1.0 to 2.0.0"},
		{"a node goes first", func() store.Change { return promote(odd, "2.1.0") }, ""},
		{"a node inherits its role's", func() store.Change { return promote(odd, "") }, "2.1.0 to 2.0.0"},
		{"the highest for all", func() store.Change { return promote(store.Scope{}, "2.1.0") }, ""},
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
		if c.Scope() == (store.Scope{}) {
			role = "controller"
		}
		wanted := desires(t, st, dev).For(role, "odd").Wanted()
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
	st := open(t, shared.Keyspace(t), "")
	ctx := t.Context()
	for _, step := range []struct {
		version string
		lower   bool
	}{{"1.0.0", false}, {"2.0.0", false}, {"1.5.0", true}, {"2.0.0", false}} {
		c, err := st.Targets.Promote(ctx, dev, desires(t, st, dev), store.Scope{}, store.Promoted, published(t, st, step.version, "a"), me)
		if err != nil || c.Unsigned != step.lower {
			t.Errorf("%s: unsigned %v, %v", step.version, c.Unsigned, err)
		}
	}
	if permits, err := permitsOf(t, st); err != nil || len(permits) != 0 {
		t.Errorf("%v, %v", permits, err)
	}
	history, _, err := st.Targets.History(ctx, dev, 0)
	if err != nil || len(history) != 4 || history[1].Unsigned {
		t.Errorf("%+v, %v", history, err)
	}
}

// An operator can sign an unsigned rollback afterwards. A repeated promotion changes nothing.
func TestUnsignedRollbackIsSignedAfterwards(t *testing.T) {
	t.Parallel()
	st := open(t, shared.Keyspace(t), "")
	key, _ := signer(t, "ann", "*")
	signing := me
	signing.Sign = key.Sign
	one, two := published(t, st, "1.0.0", "a"), published(t, st, "2.0.0", "b")
	compute := store.Scope{Role: "compute"}
	for _, step := range []struct {
		what   string
		scope  store.Scope
		target model.Target
		author store.Author
		want   bool
	}{
		{"the first", store.Scope{}, one, me, true},
		{"up", store.Scope{}, two, me, true},
		{"down, unsigned", store.Scope{}, one, me, false},
		{"the same, signed", store.Scope{}, one, signing, true},
		{"a role up", compute, two, me, true},
		{"a role down: its nodes have used the permit", compute, one, me, false},
		{"the role, signed", compute, one, signing, true},
		{"a role inherits", compute, model.Target{}, me, false},
		{"up again", store.Scope{}, two, me, true},
		{"down again, unsigned: the nodes have used the permit", store.Scope{}, one, me, false},
		{"the same again, signed", store.Scope{}, one, signing, true},
	} {
		if _, err := st.Targets.Promote(t.Context(), dev, desires(t, st, dev), step.scope, store.Promoted, step.target, step.author); err != nil {
			t.Fatal(err)
		}
		if got, err := st.Targets.Permitted(t.Context(), dev, desires(t, st, dev), step.scope, me.At); err != nil || got != step.want {
			t.Errorf("%s: permitted %v, %v", step.what, got, err)
		}
	}
}

// An invalid value must neither permit a target nor hide valid permits.
func TestNewestReadablePermitsAreUsed(t *testing.T) {
	t.Parallel()
	server := shared.Keyspace(t)
	st := open(t, server, "")
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
	server := shared.Keyspace(t)
	st := open(t, server, "")
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
		err := st.Targets.Permits(t.Context(), "dev", func(page []trust.SignedPermit) bool {
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
	key, _ := signer(t, "ann", "*")
	signing := me
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
			server := shared.Keyspace(t)
			st, ctx := open(t, server, ""), t.Context()
			one, two := published(t, st, "1.0.0", "a"), published(t, st, "2.0.0", "b")
			for _, target := range []model.Target{one, two} {
				if _, err := st.Targets.Promote(ctx, dev, desires(t, st, dev), store.Scope{}, store.Promoted, target, signing); err != nil {
					t.Fatal(err)
				}
			}
			const root = "/pulley/v1/environments/dev/"
			client := server.Client()
			with := func(key, epoch string) string {
				return strings.Replace(string(value(t, server, key).Kvs[0].Value), `"epoch":2`, `"epoch":`+strings.TrimLeft(epoch, "0"), 1)
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
				edited = strings.ReplaceAll(string(value(t, server, root+"history/00000000000"+c.put).Kvs[0].Value), `"1.0.0"`, `"0.0.9"`)
			}
			if _, err := client.Delete(ctx, root+"history/00000000000"+c.delete); err != nil {
				t.Fatal(err)
			}
			if c.put != "" {
				if _, err := client.Put(ctx, root+"history/00000000000"+c.put, edited); err != nil {
					t.Fatal(err)
				}
			}
			d := desires(t, st, dev)
			_, err := st.Targets.State(ctx, dev, d, store.Off, signing, nil)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("signed: %v, want %q", err, c.want)
			}
			// Nor does a change without a signature continue a gate that somebody wrote: recover refuses such an epoch in the history.
			if _, err := st.Targets.Promote(ctx, dev, d, store.Scope{}, store.Promoted, one, me); (err != nil) != c.ends || err != nil && !strings.Contains(err.Error(), "after which no change is possible") {
				t.Errorf("unsigned: %v", err)
			}
		})
	}
}

// A change decides one scope. The next statement covers all scopes: a target that somebody wrote into etcd, with a change of the
// history that shows it, would get the signature of the next signer.
func TestStatementContinuesTheLastOne(t *testing.T) {
	t.Parallel()
	key, _ := signer(t, "ann", "*")
	signing := me
	signing.Sign = key.Sign
	web, db := store.Scope{Role: "web"}, store.Scope{Role: "db"}
	for name, c := range map[string]struct {
		attack func(ctx context.Context, t *testing.T, st *store.Store, server *etcdtest.Server, two model.Target) error
		want   string
	}{
		"nothing": {},
		"an unsigned change of another role": {func(ctx context.Context, t *testing.T, st *store.Store, _ *etcdtest.Server, two model.Target) error {
			_, err := st.Targets.Promote(ctx, dev, desires(t, st, dev), db, store.Promoted, two, me)
			return err
		}, "the target of role db is not that of the last statement"},
		"and the statement is deleted": {func(ctx context.Context, t *testing.T, st *store.Store, server *etcdtest.Server, two model.Target) error {
			_, err := server.Client().Delete(ctx, "/pulley/v1/environments/dev/statement")
			return err
		}, "etcd has none for the target of "},
		"and the statement is damaged": {func(ctx context.Context, t *testing.T, st *store.Store, server *etcdtest.Server, two model.Target) error {
			_, err := server.Client().Put(ctx, "/pulley/v1/environments/dev/statement", "?")
			return err
		}, "etcd has none for the target of "},
		"the node of an own target is removed": {func(ctx context.Context, t *testing.T, st *store.Store, server *etcdtest.Server, two model.Target) error {
			_, err := server.Client().Delete(ctx, "/pulley/v1/environments/dev/desired/nodes/web1")
			return err
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := shared.Keyspace(t)
			st, ctx := open(t, server, ""), t.Context()
			e, err := environments.Parse("dev.yaml", []byte("statement: 24h\nroles:\n  web: {cardinality: 1}\n  db: {cardinality: 1}\n"))
			if err == nil {
				err = st.Environments.PutSpec(ctx, e, 0)
			}
			if err != nil {
				t.Fatal(err)
			}
			one, two := published(t, st, "1.0.0", "a"), published(t, st, "2.0.0", "b")
			for _, scope := range []store.Scope{{}, db, {Node: "web1"}} {
				if c, err := st.Targets.Promote(ctx, dev, desires(t, st, dev), scope, store.Promoted, one, signing); err != nil || c.Unstated {
					t.Fatalf("%+v, %v", c, err)
				}
			}
			if c.attack != nil {
				if err := c.attack(ctx, t, st, server, two); err != nil {
					t.Fatal(err)
				}
			}
			_, err = st.Targets.Promote(ctx, dev, desires(t, st, dev), web, store.Promoted, two, signing)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "pulley sign -e dev")) {
				t.Errorf("%v, want %q", err, c.want)
			}
			// The signer of all targets ends it.
			if d := desires(t, st, dev); name == "an unsigned change of another role" && (len(d.Differing()) != 1 || d.Differing()[0] != db) {
				t.Errorf("differing: %v", d.Differing())
			}
			if _, err := st.Targets.State(ctx, dev, desires(t, st, dev), store.Anew, signing, nil); err != nil {
				t.Error(err)
			}
			if _, err := st.Targets.Promote(ctx, dev, desires(t, st, dev), web, store.Promoted, one, signing); err != nil {
				t.Error(err)
			}
		})
	}
}

// A signed change in an environment that demands statements needs the history for its permit, its statement and its epoch. It must
// read it once: it can have more than a thousand changes.
func TestSignedChangeReadsTheHistoryOnce(t *testing.T) { // alone: it counts all requests of this process
	server := etcdtest.Start(t)
	st, ctx := open(t, server, ""), t.Context()
	e, err := environments.Parse("dev.yaml", []byte("statement: 24h\nroles:\n  web: {cardinality: 1}\n"))
	if err == nil {
		err = st.Environments.PutSpec(ctx, e, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	key, _ := signer(t, "ann", "*")
	signing := me
	signing.Sign = key.Sign
	one, two := published(t, st, "1.0.0", "a"), published(t, st, "2.0.0", "b")
	for _, target := range []model.Target{two, one} {
		d := desires(t, st, dev)
		before := server.Requests()
		c, err := st.Targets.Promote(ctx, dev, d, store.Scope{}, store.Promoted, target, signing)
		if n := server.Requests() - before; err != nil || c.Unsigned || c.Unstated || n != 2 {
			t.Errorf("%s: %d requests, not one read and one write; %+v, %v", target, n, c, err)
		}
	}
	if permits, err := permitsOf(t, st); err != nil || len(permits) != 1 || desires(t, st, dev).Statement == nil {
		t.Errorf("permits %+v, %v", permits, err)
	}
}

// After a restore, nodes must accept what signers sign: also if a stolen key had raised the epoch of the backup.
func TestRestoredEpochIsOneThatNodesAccept(t *testing.T) {
	t.Parallel()
	server := shared.Keyspace(t)
	st, ctx := open(t, server, ""), t.Context()
	limit := model.Epoch(trust.MaxEpoch(me.At))
	now := model.Epoch(me.At.Unix())
	const ago = 3600 // seconds since the last change of the backup
	changed := me.At.Add(-ago * time.Second).Format(time.RFC3339)
	for gate, want := range map[model.Epoch]model.Epoch{
		0: now, 5: now, now - ago - 1: now, now - ago: now + 1_000_000, now: now + 1_000_000 + ago, limit - 5: limit,
		limit:       limit + 1, // nodes accept it a second later
		limit + 900: now,       // no change wrote this gate
		1<<63 - 1:   now,
	} {
		if _, err := server.Client().Put(ctx, "/pulley/v1/environments/dev/gate", fmt.Sprintf(`{"v":1,"epoch":%d,"state":"open","at":%q}`, gate, changed)); err != nil {
			t.Fatal(err)
		}
		if got, err := st.Targets.Anchor(ctx, dev, me); err != nil || got != want {
			t.Errorf("of a backup of epoch %d: %d, not %d; %v", gate, got, want, err)
		} else if !trust.PlausibleEpoch(int64(got), me.At.Add(time.Second)) {
			t.Errorf("of a backup of epoch %d: nodes refuse %d", gate, got)
		}
		// Another restore of the same backup is above the first one.
		if _, err := server.Client().Delete(ctx, "/pulley/v1/environments/dev/history/", clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
		later := me
		later.At = me.At.Add(5 * time.Second)
		if _, err := server.Client().Put(ctx, "/pulley/v1/environments/dev/gate", fmt.Sprintf(`{"v":1,"epoch":%d,"state":"open","at":%q}`, gate, changed)); err != nil {
			t.Fatal(err)
		}
		if got, err := st.Targets.Anchor(ctx, dev, later); err != nil || got <= want {
			t.Errorf("of a second restore of epoch %d: %d, which is not above %d; %v", gate, got, want, err)
		}
		if _, err := server.Client().Delete(ctx, "/pulley/v1/environments/dev/history/", clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
	}
}
