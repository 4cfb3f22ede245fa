package serve

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pulley/internal/access"
	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/notify"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/observe"
)

// pager is a webhook, a fleet whose nodes report what a test says, and the serves that watch it, with one clock.
type pager struct {
	*testing.T
	st  *etcd.DB
	raw *etcdtest.Server
	url string

	mu       sync.Mutex
	now      time.Time
	messages []string
}

func newPager(t *testing.T, roles string, nodes ...string) *pager {
	st, server := backedUp(t)
	p := &pager{T: t, st: st, raw: server, now: time.Now().UTC().Truncate(time.Second)}
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.messages = append(p.messages, string(b))
	}))
	t.Cleanup(hook.Close)
	p.url = "generic+" + hook.URL + "/?disabletls=yes"
	apply(t, st, roles)
	for _, node := range nodes {
		if err := fleet.In(st).Register(t.Context(), "dev", model.Host{Node: node, Role: "web", At: p.now}); err != nil {
			t.Fatal(err)
		}
	}
	p.promote(takes)
	return p
}

var (
	takes = model.Target{Release: "1.0.0", Tree: strings.Repeat("a", 64)}
	newer = model.Target{Release: "2.0.0", Tree: strings.Repeat("b", 64)}
)

func (p *pager) promote(to model.Target) {
	p.Helper()
	if _, err := p.raw.Client().Put(p.Context(), "/pulley/v1/environments/dev/desired/default", fmt.Sprintf(`{"v":1,"release":%q,"tree":%q}`, to.Release, to.Tree)); err != nil {
		p.Fatal(err)
	}
}

func (p *pager) time() time.Time { p.mu.Lock(); defer p.mu.Unlock(); return p.now }

func (p *pager) pass(d time.Duration) { p.mu.Lock(); defer p.mu.Unlock(); p.now = p.now.Add(d) }

func (p *pager) got(text string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.messages {
		if strings.Contains(m, text) {
			n++
		}
	}
	return n
}

// serve starts a serve, whose reads the test makes.
func (p *pager) serve() counting {
	p.Helper()
	k, err := NewTasks(TasksConfig{DB: p.st, Now: p.time, Log: (&observe.Log{}).Logger(), Notify: []string{p.url}})
	if err != nil {
		p.Fatal(err)
	}
	ctx, cancel := context.WithCancel(p.Context())
	done := make(chan struct{})
	go func() { k.Notifier.Run(ctx); close(done) }()
	p.Cleanup(func() { cancel(); <-done })
	return counting{Tasks: k, troubles: &troubles{Tasks: k, of: map[model.Ref]*troubled{}}, known: map[model.Ref]bool{}}
}

// read makes two reads, 15 seconds apart, of each serve.
func (p *pager) read(serves ...counting) {
	p.Helper()
	for range 2 {
		for _, k := range serves {
			if err := k.count(p.Context()); err != nil {
				p.Fatal(err)
			}
		}
		p.pass(fleetInterval)
	}
}

func (p *pager) report(node string, s model.Status) {
	p.Helper()
	s.Node, s.Role, s.Settings, s.SeenAt = node, "web", model.DefaultSettings(), p.time()
	if err := control.In(p.st).Report(p.Context(), model.Identity{Node: node, Role: "web", Environment: "dev"}, s, nil, nil); err != nil {
		p.Fatal(err)
	}
}

func (p *pager) converges(node string, on model.Target) {
	p.Helper()
	p.report(node, model.Status{LastGood: on, Enforcing: on, Target: on, Outcome: model.Unchanged})
}

// fails reports a failed attempt; the cause differs between nodes only in what differs between machines.
func (p *pager) fails(node string, on, good model.Target, attempt int) {
	p.Helper()
	p.report(node, model.Status{LastGood: good, Enforcing: on, Target: on, Outcome: model.Failed, Attempt: &model.Attempt{
		Target: on, Started: attempt, Finished: attempt, Kind: model.Between, Last: p.time(),
		Problem: model.Problem{Code: model.ResourcesFailed, Number: 1, Text: model.Prose(fmt.Sprintf("Exec[reload app]: pid %d of %s ended", 100+len(node), node))},
	}})
}

// One cause on many nodes makes one message to a pager, from any number of serves, also of one that is started again; and one when it ends.
func TestFailuresReachTheWebhookOnce(t *testing.T) {
	t.Parallel()
	p := newPager(t, "roles:\n  web: {cardinality: 3}\n", "web1", "web2", "web3")
	one, other := p.serve(), p.serve()
	for _, node := range []string{"web1", "web2", "web3"} {
		p.converges(node, takes)
	}
	p.read(one, other)
	began := p.time()
	p.fails("web1", takes, takes, 1)
	p.fails("web2", takes, takes, 1)
	p.read(one, other)
	observe.Eventually(t, "the webhook gets the failure", func() bool { return p.got("nodes in dev fail: web1, web2") == 1 })
	if took := p.time().Sub(began); took > time.Minute {
		t.Errorf("it took %s", took)
	}
	if p.got("Exec[reload app]") != 1 || p.got("pulley status -e dev --state failed,stuck") != 1 {
		t.Errorf("the message lacks its cause or its next command: %q", p.messages)
	}
	p.read(p.serve(), one) // after a restart, and while it lasts
	p.report("web1", model.Status{LastGood: takes, Enforcing: takes, Target: takes, Outcome: model.Failed, Phase: model.Running, Attempt: &model.Attempt{
		Target: takes, Started: 2, Finished: 1, Open: true, Problem: model.Problem{Code: model.ResourcesFailed, Number: 1, Text: "Exec[reload app]: pid 1 of web1 ended"},
	}})
	p.converges("web2", takes)
	p.read(one, other)
	p.converges("web1", takes)
	p.read(one, other)
	observe.Eventually(t, "the webhook gets the end", func() bool { return p.got("nodes in dev do not fail any more") == 1 })

	// A node that fails and recovers again and again is said to, and no more than that.
	for range 10 {
		p.fails("web3", takes, takes, 1)
		p.read(one, other)
		p.converges("web3", takes)
		p.read(one, other)
		observe.Eventually(t, "what was sent is known", func() bool { return p.got("nodes in dev fail: web3") == 1 })
	}
	observe.Eventually(t, "the last end", func() bool { return p.got("do not fail any more: web3") == 1 })
	if p.got("It began again within an hour") != 1 || len(p.messages) != 4 {
		t.Errorf("the messages are %q", p.messages)
	}
	p.pass(time.Hour)
	for _, node := range []string{"web1", "web2"} {
		p.converges(node, takes)
	}
	p.fails("web3", takes, takes, 1)
	p.read(one, other)
	observe.Eventually(t, "an hour later it is announced", func() bool { return p.got("nodes in dev fail: web3") == 2 })
	p.fails("web3", takes, takes, 5)
	p.read(one, other)
	observe.Eventually(t, "a stuck node is announced", func() bool { return p.got("are stuck, and retry rarely: web3") == 1 })
}

// A promotion that fails is not a failure of what nodes had. Nodes that are silent are no failure, and after a restart of serve or etcd none
// is silent yet.
func TestSilenceDegradationAndPromotions(t *testing.T) {
	t.Parallel()
	p := newPager(t, "roles:\n  web: {cardinality: 3}\n", "web1", "web2")
	p.converges("web1", takes)
	p.converges("web2", takes)
	p.pass(25 * time.Minute) // without a serve
	one := p.serve()
	p.read(one)
	p.converges("web1", takes)
	p.pass(silenceTrusted)
	p.read(one)
	observe.Eventually(t, "the webhook gets the silence", func() bool { return p.got("nodes in dev are silent: web2") == 1 })
	p.promote(newer)
	p.fails("web1", newer, takes, 1)
	p.converges("web2", newer)
	p.pass(5 * time.Minute)
	p.read(one)
	observe.Eventually(t, "the silence ends, the promotion fails, and web3 is missing", func() bool {
		return p.got("silent nodes in dev report again, or were removed: web2") == 1 && p.got("nodes in dev fail to take 2.0.0: web1") == 1 && p.got("dev is degraded: web3") == 1
	})
	// The next release is tried: neither has the failure ended, nor is the attempt one.
	p.promote(takes)
	p.report("web1", model.Status{LastGood: takes, Enforcing: takes, Target: takes, Outcome: model.Failed, Phase: model.Running, Attempt: &model.Attempt{Target: takes, Started: 1, Open: true}})
	p.read(one)
	one.Notifier.Removed(dev, access.Removal{At: p.time(), By: "ann"}, []string{"web9"}) // notices are sent in their order
	observe.Eventually(t, "a later notice", func() bool { return p.got("web9") == 1 })
	if p.got("do not fail any more") != 0 {
		t.Errorf("an attempt is the end: %q", p.messages)
	}
	p.converges("web1", takes)
	p.read(one)
	observe.Eventually(t, "the promotion's failure ends", func() bool { return p.got("do not fail any more: web1") == 1 })
	if p.got("1 missing") != 1 || len(p.messages) != 6 {
		t.Errorf("the messages are %q", p.messages)
	}
}

// Removals, drift and certificates that nobody renews are announced once each, by any number of serves.
func TestRemovalsDriftAndCertificatesAreAnnounced(t *testing.T) {
	t.Parallel()
	p := newPager(t, "roles:\n  web: {cardinality: 3}\n")
	one, other := p.serve(), p.serve()
	at := p.time().Truncate(time.Minute)
	gone := access.Identity{Removed: &access.Removal{At: at.Add(time.Second), By: "ann", Why: "the rack is sold"}}
	identities := map[string]access.Identity{
		"web1": gone, "web2": gone, "web9": {Removed: &access.Removal{At: at.Add(-48 * time.Hour), By: "bob"}},
		"web3": {User: "u", Issued: at.Add(-80 * 24 * time.Hour), Until: at.Add(10 * 24 * time.Hour)}, "web4": {User: "v", Issued: at, Until: at.Add(90 * 24 * time.Hour)},
	}
	tell := func() {
		t.Helper()
		for _, k := range []counting{one, other} {
			if err := k.identified(t.Context(), dev, identities); err != nil {
				t.Fatal(err)
			}
			for _, node := range []string{"web3", "web4"} {
				k.drifted(dev, model.Run{ID: "1", Node: node, Drift: true, Result: model.Result{Outcome: model.Changed, Resources: []model.ResourceEvent{{Resource: "File[/etc/motd]", Status: "changed"}}}}, node)
			}
			k.tellDrifts()
		}
	}
	tell()
	p.pass(3 * time.Minute)
	tell()
	observe.Eventually(t, "three messages", func() bool {
		return p.got("nodes were removed from dev: web1, web2\nby ann: the rack is sold") == 1 && p.got("certificates in dev end soon, or have ended\nweb3") == 1 &&
			p.got("nodes in dev were changed outside of Pulley, and corrected: web3, web4\nFile[/etc/motd]") == 1
	})
	delete(identities, "web3")
	tell()
	observe.Eventually(t, "the certificate was renewed", func() bool { return p.got("certificates in dev were renewed") == 1 })
	if len(p.messages) != 4 {
		t.Errorf("the messages are %q", p.messages)
	}
}

// A cause that becomes rare has not ended, and silence is announced beside any number of failures. What ends while a node tries again is
// announced, unless it may be the failure of that node.
func TestRareCausesLastAndTriesHideNoOtherEnd(t *testing.T) {
	t.Parallel()
	p := newPager(t, "roles:\n  web: {cardinality: 1}\n")
	one := p.serve()
	causes := func(n int, rank func(i int) int) (all []fleet.Trouble) {
		for i := range n {
			all = append(all, fleet.Trouble{Cause: fmt.Sprint("cause ", i), Text: fmt.Sprintf("cause%d.", i), Count: 1, Nodes: []string{fmt.Sprint("web", i)}})
		}
		slices.SortFunc(all, func(a, b fleet.Trouble) int {
			i, j := 0, 0
			_, _ = fmt.Sscanf(a.Cause+" "+b.Cause, "cause %d cause %d", &i, &j)
			return rank(i) - rank(j)
		})
		return all
	}
	look := func(tally fleet.Tally) {
		t.Helper()
		for range 3 {
			if err := one.troubles.look(t.Context(), dev, tally); err != nil {
				t.Fatal(err)
			}
			p.pass(fleetInterval)
		}
	}
	later := 0
	settle := func() { // notices are sent in their order
		t.Helper()
		later++
		one.Notifier.Removed(dev, access.Removal{At: p.time(), By: "ann"}, []string{fmt.Sprintf("gone%d.", later)})
		observe.Eventually(t, "a later notice", func() bool { return p.got(fmt.Sprintf("gone%d.", later)) == 1 })
	}
	silent := fleet.Trouble{Silent: true, Text: "silent", Count: 1, Nodes: []string{"quiet"}}
	up, down := func(i int) int { return i }, func(i int) int { return -i }
	look(fleet.Tally{})
	p.pass(silenceTrusted)
	look(fleet.Tally{Troubles: append(causes(12, up), silent)})
	settle()
	if p.got("are silent: quiet") != 1 || p.got("for many different reasons") != 1 || p.got("nodes in dev fail: web8") != 1 || p.got("nodes in dev fail: web9, web10, web11") != 1 {
		t.Fatalf("the messages are %q", p.messages)
	}
	look(fleet.Tally{Troubles: append(causes(12, down), silent)}) // the ranks change
	settle()                                                      // an end follows what etcd has
	look(fleet.Tally{Troubles: append(causes(10, up), silent)})   // of those that were one trouble, one still lasts
	look(fleet.Tally{Troubles: causes(10, up), Unsure: true})     // and nobody is silent any more
	settle()
	if p.got("do not fail any more") != 2 || p.got("do not fail any more: web11") != 1 || p.got("do not fail any more: web10") != 1 || p.got("silent nodes in dev report again, or were removed: quiet") != 1 {
		t.Errorf("the messages are %q", p.messages)
	}
	p.pass(2 * time.Hour)
	look(fleet.Tally{Unsure: true})
	settle()
	if p.got("do not fail any more") != 2 {
		t.Errorf("failures of nodes that try again ended: %q", p.messages)
	}
	look(fleet.Tally{})
	settle()
	if p.got("do not fail any more: web9, web10, web11\n") != 1 {
		t.Errorf("the failures do not end: %q", p.messages)
	}
}

// Removals that reads find again take no place of newer ones, and drift
// names no command.
func TestOldRemovalsTakeNoPlace(t *testing.T) {
	t.Parallel()
	p := newPager(t, "roles:\n  web: {cardinality: 1}\n")
	one := p.serve()
	at := p.time().Truncate(time.Minute)
	identities := map[string]access.Identity{}
	for i := range 15 {
		identities[fmt.Sprint("old", i)] = access.Identity{Removed: &access.Removal{At: at.Add(-time.Duration(i) * time.Minute), By: "ann"}}
	}
	identify := func() {
		t.Helper()
		if err := one.identified(t.Context(), dev, identities); err != nil {
			t.Fatal(err)
		}
	}
	p.pass(3 * time.Minute)
	identify()
	p.pass(61 * time.Minute)
	for i := range 20 {
		identities[fmt.Sprint("new", i)] = access.Identity{Removed: &access.Removal{At: p.time().Add(-time.Duration(i+3) * time.Minute), By: "ann"}}
	}
	identify()
	observe.Eventually(t, "all removals", func() bool {
		return p.got("nodes were removed from dev: old") == 15 && p.got("nodes were removed from dev: new") == 20
	})

	changed := func(titles ...string) (r model.Result) {
		r.Outcome = model.Changed
		for _, title := range titles {
			r.Resources = append(r.Resources, model.ResourceEvent{Resource: title, Status: "changed"})
		}
		return r
	}
	one.drifted(dev, model.Run{Result: changed("Exec[login --password x]", "File[/a]")}, "web1")
	served := changed("File[/served]")
	served.Served = &model.Served{Environment: "v2"}
	one.drifted(dev, model.Run{Result: served}, "web1")
	for i := range 2 * maxDrifts {
		one.drifted(dev, model.Run{Result: changed(fmt.Sprint("File[/", i, "]"))}, "web1")
	}
	if n := len(one.drifts[dev]); n != maxDrifts {
		t.Errorf("%d resources are kept", n)
	}
	one.tellDrifts()
	observe.Eventually(t, "the drift", func() bool { return p.got("Exec[…] and 1 more") == 1 })
	if p.got("password") != 0 || p.got("/served") != 0 {
		t.Errorf("the messages are %q", p.messages)
	}
}

// What drifts all day is announced once a day: in each later hour it took the places of what drifts for the first time.
func TestAnnouncedDriftTakesNoPlace(t *testing.T) {
	t.Parallel()
	p := newPager(t, "roles:\n  web: {cardinality: 1}\n")
	p.pass(p.time().Truncate(24 * time.Hour).Add(36 * time.Hour).Sub(p.time())) // noon: at midnight, all are announced again
	one := p.serve()
	tell := func(resources int) {
		for i := range resources {
			one.drifted(dev, model.Run{Drift: true, Result: model.Result{Outcome: model.Changed, Resources: []model.ResourceEvent{{Resource: fmt.Sprintf("File[/%02d]", i), Status: string(model.Changed)}}}}, "web1")
		}
		one.tellDrifts()
	}
	tell(20)
	observe.Eventually(t, "twenty resources", func() bool { return p.got("changed outside of Pulley") == 20 })
	p.pass(61 * time.Minute)
	tell(21)
	observe.Eventually(t, "the new one", func() bool { return p.got("File[/20]") == 1 })
}

func TestFleetPause(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{0: 15 * time.Second, 2 * time.Second: 20 * time.Second, 10 * time.Second: 15 * time.Second, time.Minute: 5 * time.Second} {
		if got := fleetPause(took); got != want {
			t.Errorf("after %s the pause is %s", took, got)
		}
	}
}

// The CA and each operator have their own notices. A certificate that has ended was not renewed.
func TestCertificatesOfOperatorsEndOneByOne(t *testing.T) {
	t.Parallel()
	p := newPager(t, "roles:\n  web: {cardinality: 1}\n")
	one := p.serve()
	tell := func(unsure bool, names ...string) {
		t.Helper()
		var ending []notify.Trouble
		for _, name := range names {
			ending = append(ending, notify.Trouble{Kind: notify.CertificatesEnd, Cause: name, Nodes: []string{name}, Count: 1})
		}
		if err := one.certificatesEnd(t.Context(), model.Ref{}, ending, unsure); err != nil {
			t.Fatal(err)
		}
	}
	tell(false, "operator ann")
	observe.Eventually(t, "ann's", func() bool { return p.got("certificates end soon, or have ended\noperator ann") == 1 })
	tell(true, "ca", "operator ann")
	observe.Eventually(t, "the CA's", func() bool { return p.got("certificates end soon, or have ended\nca") == 1 })
	tell(true)
	tell(false, "ca")
	observe.Eventually(t, "ann's end", func() bool { return p.got("were renewed, or nobody holds them any more\noperator ann") == 1 })
	if len(p.messages) != 3 {
		t.Errorf("the messages are %q", p.messages)
	}
}
