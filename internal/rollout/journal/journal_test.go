package journal_test

import (
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/release/trust"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// verifying is the trust of one node: what it accepts of etcd, with the real high-water mark.
type verifying struct {
	t          *testing.T
	server     *etcdtest.Server
	st         *etcd.DB
	signers    *trust.Signers
	role, name string
	mark       trust.HighWaterMark
	now        time.Time
}

// take attempts a target as an agent does: the statement, then the mark with the permits.
func (v *verifying) take(target model.Target) error {
	v.t.Helper()
	wanted := trust.Target{Environment: "dev", Release: target.Release, Tree: target.Tree, Data: int64(target.Data), DataDigest: target.DataDigest}
	var statement []byte
	for _, kv := range fleettest.Value(v.t, v.server, "/pulley/v1/environments/dev/statement").Kvs {
		statement = kv.Value
	}
	mark, err := v.signers.Current(v.mark, v.role, v.name, wanted, statement, v.now)
	if err != nil {
		return err
	}
	verifier := trust.Verifier{Now: func() time.Time { return v.now }, Permits: targets.In(v.st).Permits}
	mark, err = verifier.Raise(v.t.Context(), v.signers, mark, wanted)
	if err == nil {
		v.mark = mark
	}
	return err
}

func (v *verifying) takes(target model.Target) {
	v.t.Helper()
	if err := v.take(target); err != nil {
		v.t.Errorf("%s does not take %s: %v", v.name, target, err)
	}
}

func (v *verifying) refuses(target model.Target, code string) {
	v.t.Helper()
	if err := v.take(target); err == nil || !strings.Contains(err.Error(), code) {
		v.t.Errorf("%s takes %s: %v", v.name, target, err)
	}
}

// rolling is an environment that demands signatures and statements, with nodes that verify them.
type rolling struct {
	t                *testing.T
	st               *etcd.DB
	signing          targets.Author
	node             func(role, name string) *verifying
	one, two, three  model.Target
	served, afterEnd targets.Author // serve, without a key
}

func beginRolling(t *testing.T) *rolling {
	t.Helper()
	server := fleettest.Shared.Keyspace(t)
	st, ctx := fleettest.Open(t, server, ""), t.Context()
	e, err := environments.Parse("dev.yaml", []byte("signatures: required\nstatement: 24h\nroles:\n  web: {cardinality: 2}\n  db: {cardinality: 1}\n"))
	if err == nil {
		err = specs.In(st).PutSpec(ctx, e, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	key, allowed := fleettest.Signer(t, "ann", "*")
	r := &rolling{t: t, st: st, signing: fleettest.Me, served: fleettest.Me}
	r.signing.Sign, r.signing.At = key.Sign, time.Now()
	r.served.At = time.Now()
	r.afterEnd = r.served
	r.afterEnd.At = r.served.At.Add(31 * 24 * time.Hour)
	list := fleettest.Signers(t, allowed)
	r.node = func(role, name string) *verifying {
		return &verifying{t: t, server: server, st: st, signers: list, role: role, name: name, now: time.Now()}
	}
	r.one, r.two, r.three = fleettest.Published(t, st, "1.0.0", "a"), fleettest.Published(t, st, "2.0.0", "b"), fleettest.Published(t, st, "3.0.0", "c")
	r.promote(etcd.Scope{}, r.one)
	return r
}

func (r *rolling) promote(scope etcd.Scope, to model.Target) {
	r.t.Helper()
	if c, err := targets.In(r.st).Promote(r.t.Context(), fleettest.Dev, fleettest.Desires(r.t, r.st, fleettest.Dev), scope, targets.Promoted, to, r.signing); err != nil || c.Unstated || c.Unsigned {
		r.t.Fatalf("%+v, %v", c, err)
	}
}

func (r *rolling) start(p rollout.Plan) string {
	r.t.Helper()
	p, err := journal.In(r.st).Start(r.t.Context(), fleettest.Dev, fleettest.Desires(r.t, r.st, fleettest.Dev), p, r.signing)
	if err != nil {
		r.t.Fatal(err)
	}
	return p.ID
}

func (r *rolling) campaign(id string) *journal.Campaign {
	r.t.Helper()
	c, err := journal.In(r.st).Get(r.t.Context(), fleettest.Dev, id, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *rolling) revert(id string, by targets.Author) targets.Change {
	r.t.Helper()
	c, err := journal.In(r.st).Revert(r.t.Context(), fleettest.Dev, r.campaign(id), by)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// end lets serve end a rollout, without a key.
func (r *rolling) end(id string, phase rollout.Phase) {
	r.t.Helper()
	state := rollout.State{Phase: phase, Ended: r.served.At}
	if err := journal.In(r.st).Take(r.t.Context(), fleettest.Dev, r.campaign(id), rollout.Observed{}, rollout.Step{State: &state}, r.served.At); err != nil {
		r.t.Fatal(err)
	}
}

// Without it, no serve could take a release back that hurts: nodes with allowed signers would refuse the way back.
func TestRevertNeedsNoKey(t *testing.T) {
	t.Parallel()
	r := beginRolling(t)
	began, untouched, late := r.node("web", "web1"), r.node("web", "web2"), r.node("web", "web3")
	for _, n := range []*verifying{began, untouched, late} {
		n.takes(r.one)
	}
	began.refuses(r.two, "names 1.0.0 for this node")
	id := r.start(rollout.Plan{Target: r.two})
	began.takes(r.one) // before its turn
	began.takes(r.two)
	untouched.takes(r.one)
	began.refuses(r.one, "older than 2.0.0")
	began.refuses(r.three, "names 1.0.0 for this node")

	c := r.revert(id, r.served)
	if c.Kind != targets.Reverted || c.Unsigned || c.Unstated || c.Before != r.one || c.After != r.one || c.Rollout == nil || c.Rollout.ID != id {
		t.Errorf("%+v", c)
	}
	d, campaign := fleettest.Desires(t, r.st, fleettest.Dev), r.campaign(id)
	if d.Default != r.one || d.Gate.Rollout != "" || d.Gate.State != model.GateOpen || d.Gate.Epoch != campaign.Plan.Epoch+1 || campaign.State.Phase != rollout.Reverted {
		t.Errorf("%+v; %+v", d, campaign.State)
	}
	for _, n := range []*verifying{began, untouched, late} {
		n.takes(r.one)
		n.refuses(r.two, "names 1.0.0 for this node")
	}
	if !d.Covered(fleettest.Dev) {
		t.Errorf("the statement is %+v", d.Statement)
	}
	if _, err := journal.In(r.st).Revert(t.Context(), fleettest.Dev, campaign, r.served); err == nil {
		t.Error("reverted twice")
	}

	// A used permit is spent. The next rollout of the same release has another one.
	again := r.start(rollout.Plan{Target: r.two})
	began.takes(r.two)
	r.end(again, rollout.Reverted)
	began.takes(r.one)

	history, _, err := targets.In(r.st).History(t.Context(), fleettest.Dev, 0)
	if err != nil {
		t.Fatal(err)
	}
	if targets.Gap(history) {
		t.Error("the history has a gap")
	}
	if undo, ok := targets.Undo(history, etcd.Scope{}); !ok || undo.Epoch != 1 {
		t.Errorf("a rollback undoes %+v", undo)
	}
}

// A completed rollout must leave nodes that trust what serve published, and no way back that nobody signed for later.
func TestCompletionNeedsNoKey(t *testing.T) {
	t.Parallel()
	r := beginRolling(t)
	n, late := r.node("web", "web1"), r.node("web", "web2")
	n.takes(r.one)
	late.takes(r.one)
	id := r.start(rollout.Plan{Target: r.two})
	n.takes(r.two)
	r.end(id, rollout.Completed)
	n.takes(r.two)
	late.takes(r.two)
	n.refuses(r.one, "names 2.0.0 for this node")
	if d := fleettest.Desires(t, r.st, fleettest.Dev); d.Default != r.two || !d.Covered(fleettest.Dev) {
		t.Errorf("%+v", d)
	}
	r.promote(etcd.Scope{}, r.three)
	n.takes(r.three)
}

// A rollout may lead down. Nodes need its permit, and those that it did not reach need that of its completion.
func TestRolloutToALowerRelease(t *testing.T) {
	t.Parallel()
	for _, end := range []rollout.Phase{rollout.Completed, rollout.Reverted} {
		t.Run(string(end), func(t *testing.T) {
			t.Parallel()
			r := beginRolling(t)
			r.promote(etcd.Scope{}, r.two)
			n, late := r.node("web", "web1"), r.node("web", "web2")
			n.takes(r.two)
			late.takes(r.two)
			id := r.start(rollout.Plan{Target: r.one})
			n.takes(r.one)
			r.end(id, end)
			want := map[rollout.Phase]model.Target{rollout.Completed: r.one, rollout.Reverted: r.two}[end]
			n.takes(want)
			late.takes(want)
			if ok, err := targets.In(r.st).Permitted(t.Context(), fleettest.Dev, fleettest.Desires(t, r.st, fleettest.Dev), etcd.Scope{}, time.Now()); !ok || err != nil {
				t.Errorf("not permitted: %v", err)
			}
		})
	}
}

// Nodes with a release of their own take data as well, and each returns to its own target.
func TestRevertFromSeveralOrigins(t *testing.T) {
	t.Parallel()
	r := beginRolling(t)
	fleettest.Set(t, r.st, fleettest.Dev, "x", "1", r.signing)
	r.promote(etcd.Scope{Role: "db"}, r.two)
	old := fleettest.Desires(t, r.st, fleettest.Dev).Default
	c := fleettest.Set(t, r.st, fleettest.Dev, "x", "2", r.signing)
	if _, err := targets.In(r.st).Rollback(t.Context(), fleettest.Dev, fleettest.Desires(t, r.st, fleettest.Dev), c, r.signing); err != nil {
		t.Fatal(err)
	}
	data := func(t, of model.Target) model.Target { t.Data, t.DataDigest = of.Data, of.DataDigest; return t }
	web, db := r.node("web", "web1"), r.node("db", "db1")
	web.takes(old)
	db.takes(data(r.two, old))
	if _, err := journal.In(r.st).Start(t.Context(), fleettest.Dev, fleettest.Desires(t, r.st, fleettest.Dev), rollout.Plan{Target: data(r.three, c.After)}, r.signing); err == nil || !strings.Contains(err.Error(), "role db has a release of its own") {
		t.Errorf("a release and data at once: %v", err)
	}
	if _, err := journal.In(r.st).Start(t.Context(), fleettest.Dev, fleettest.Desires(t, r.st, fleettest.Dev), rollout.Plan{Role: "db", Target: data(model.Target{}, c.After)}, r.signing); err == nil || !strings.Contains(err.Error(), "data is that of all nodes") {
		t.Errorf("data of one role: %v", err)
	}
	hosts := map[string]model.Host{"web1": {Node: "web1", Role: "web"}, "db1": {Node: "db1", Role: "db"}}
	for _, target := range []model.Target{r.three, data(model.Target{}, c.After)} {
		for _, candidate := range journal.Candidates(hosts, fleettest.Desires(t, r.st, fleettest.Dev), rollout.Plan{Target: target}) {
			if candidate.Excluded != (candidate.Node == "db1" && target == r.three) {
				t.Errorf("%s is a candidate for %s: %+v", candidate.Node, target, candidate)
			}
		}
	}
	id := r.start(rollout.Plan{Target: data(model.Target{}, c.After)})
	web.takes(data(r.one, c.After))
	db.takes(data(r.two, c.After))
	web.refuses(data(r.two, c.After), "names ")
	r.end(id, rollout.Reverted)
	web.takes(old)
	db.takes(data(r.two, old))
	web.refuses(data(r.one, c.After), "names ")
}

// A permit that was signed ahead ends: an operator then signs the way back. A release that was reverted counts as seen.
func TestPermitOfARevertEnds(t *testing.T) {
	t.Parallel()
	r := beginRolling(t)
	n := r.node("web", "web1")
	n.takes(r.one)
	id := r.start(rollout.Plan{Target: r.two})
	n.takes(r.two)
	if c := r.revert(id, r.afterEnd); !c.Unsigned {
		t.Errorf("%+v", c)
	}
	if ok, err := targets.In(r.st).Permitted(t.Context(), fleettest.Dev, fleettest.Desires(t, r.st, fleettest.Dev), etcd.Scope{}, time.Now()); ok || err != nil {
		t.Errorf("permitted: %v", err)
	}
	r.promote(etcd.Scope{}, r.one)
	n.takes(r.one)
}

// A renewal must prolong what serve publishes at the end of a rollout, and nothing that somebody put in its place.
func TestRenewalCoversTheEndsOfARollout(t *testing.T) {
	t.Parallel()
	r := beginRolling(t)
	n := r.node("web", "web1")
	n.takes(r.one)
	id := r.start(rollout.Plan{Target: r.two})
	n.takes(r.two)
	seen := 0
	renew := func(at time.Time) error {
		renewing := r.signing
		renewing.At = at
		_, err := targets.In(r.st).State(t.Context(), fleettest.Dev, fleettest.Desires(t, r.st, fleettest.Dev), targets.Renew, renewing, func(trust.SignedStatement) error { seen++; return nil })
		return err
	}
	if err := renew(r.signing.At.Add(20 * time.Hour)); err != nil || seen != 2 {
		t.Fatalf("%d endings: %v", seen, err)
	}
	r.end(id, rollout.Reverted)
	n.now = n.now.Add(40 * time.Hour)
	n.takes(r.one)

	id = r.start(rollout.Plan{Target: r.two})
	key := "/pulley/v1/environments/dev/campaigns/" + id + "/endings"
	old := fleettest.Value(t, n.server, strings.Replace(key, id, "r2", 1)).Kvs[0].Value
	if _, err := n.server.Client().Put(t.Context(), key, string(old)); err != nil {
		t.Fatal(err)
	}
	if err := renew(r.signing.At); err == nil || !strings.Contains(err.Error(), "its epoch is 3, not 5") {
		t.Errorf("renewed endings of another rollout: %v", err)
	}
	// A signer of all targets signs them anew.
	if _, err := targets.In(r.st).State(t.Context(), fleettest.Dev, fleettest.Desires(t, r.st, fleettest.Dev), targets.Anew, r.signing, nil); err != nil {
		t.Fatal(err)
	}
	n.now = time.Now()
	n.takes(r.two)
	r.end(id, rollout.Reverted)
	n.takes(r.one)
}

// Nodes would take nothing of a rollout without a statement.
func TestRolloutNeedsAKeyForStatements(t *testing.T) {
	t.Parallel()
	r := beginRolling(t)
	if _, err := journal.In(r.st).Start(t.Context(), fleettest.Dev, fleettest.Desires(t, r.st, fleettest.Dev), rollout.Plan{Target: r.two}, r.served); err == nil || !strings.Contains(err.Error(), "give --sign-key FILE") {
		t.Error(err)
	}
}
