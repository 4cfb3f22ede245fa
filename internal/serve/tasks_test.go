package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/fleet"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/notify"
	"pulley/internal/pki"
	"pulley/internal/serve/member"
	"pulley/internal/specs"
	"pulley/internal/testbed/observe"
)

var dev = model.Ref{Environment: "dev"}

// startTasks runs the tasks of one serve until the test ends, or stop is called.
func startTasks(t *testing.T, s *member.Secured, notify ...string) (k *Tasks, log *observe.Log, stop func()) {
	t.Helper()
	log = &observe.Log{}
	k, err := NewTasks(TasksConfig{
		DB: dialled(t, s.Connection), Certificates: s.Certificates, Now: time.Now, Log: log.Logger(), Notify: notify,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { k.Run(ctx); close(done) }()
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); <-done }) }
	t.Cleanup(stop)
	return k, log, stop
}

// secureConfig configures a member in its own folder, at a free port.
func secureConfig(t *testing.T) member.SecureConfig {
	t.Helper()
	return member.SecureConfig{
		EtcdConfig: member.EtcdConfig{
			Dir: t.TempDir(), Listen: "127.0.0.1:0", QuotaBytes: member.DefaultQuota, Retention: time.Minute, UnsafeNoFsync: true, Log: slog.DiscardHandler,
		},
		Hostname: "server1", Timeout: 20 * time.Second,
	}
}

func startSecure(t *testing.T) *member.Secured {
	t.Helper()
	s, err := member.StartSecure(t.Context(), secureConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func dialled(t *testing.T, c etcd.Config) *etcd.DB {
	t.Helper()
	st, err := etcd.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}

func apply(t *testing.T, st *etcd.DB, roles string) {
	t.Helper()
	e, err := environments.Parse("dev.yaml", []byte(roles))
	if err != nil {
		t.Fatal(err)
	}
	_, revision, err := specs.In(st).Spec(t.Context(), dev)
	if err == nil {
		err = specs.In(st).PutSpec(t.Context(), e, revision)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func nodeUsers(t *testing.T, st *etcd.DB) map[string]bool {
	t.Helper()
	users, err := access.In(st).Users(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, u := range users {
		if n, err := pki.ParseName(u); err == nil && n.Kind == pki.KindNode {
			all[u] = true
		}
	}
	return all
}

// Without pre-created users, a join among ten thousand nodes waits for etcd to read all users six times. A leftover
// user would be an unknown access.
func TestUsersArePrecreatedAndOrphansDeleted(t *testing.T) {
	t.Parallel()
	s := startSecure(t)
	st := dialled(t, s.Connection)
	foreign := pki.Name{Prefix: "pulley", Kind: pki.KindNode, Environment: "dev", Subject: "compute9", Incarnation: pki.NewIncarnation()}
	if err := access.In(st).EnsureEnvironment(t.Context(), "dev"); err != nil {
		t.Fatal(err)
	}
	if err := access.In(st).EnsureNode(t.Context(), "dev", "compute9", foreign.String()); err != nil { // an interrupted join
		t.Fatal(err)
	}
	startTasks(t, s)
	startTasks(t, s) // a second serve must not interfere
	ready := func(names ...string) func() bool {
		return func() bool {
			all, _, err := access.IdentitiesIn(st).Precreated(t.Context(), dev)
			if err != nil || len(all) != len(names) {
				return false
			}
			users := nodeUsers(t, st)
			for _, n := range names {
				if !all[n].Ready || !users[all[n].User] {
					return false
				}
			}
			return len(users) == len(names)
		}
	}
	apply(t, st, "roles:\n  controller: {cardinality: 1}\n  compute: {cardinality: 3}\n")
	observe.Eventually(t, "four users are created, and the unknown one is deleted", ready("controller1", "compute1", "compute2", "compute3"))
	// A pre-created user already has its node's permissions: the join changes nothing.
	all, _, err := access.IdentitiesIn(st).Precreated(t.Context(), dev)
	if err != nil {
		t.Fatal(err)
	}
	name, err := pki.ParseName(all["compute1"].User)
	if err != nil {
		t.Fatal(err)
	}
	as := s.Connection
	as.Cert = filepath.Join(t.TempDir(), "identity.pem")
	as.Key = as.Cert
	if err := s.Certificates.Issue(as.Cert, name, time.Hour); err != nil {
		t.Fatal(err)
	}
	node := dialled(t, as)
	id := model.Identity{Node: "compute1", Role: "compute", Environment: "dev"}
	if _, err := control.In(node).Desire(t.Context(), id); err != nil {
		t.Errorf("a node with a pre-created user may not read: %v", err)
	}
	if err := control.In(node).Report(t.Context(), id, model.Status{Node: "compute1"}, nil, nil); err != nil {
		t.Errorf("a node with a pre-created user may not report: %v", err)
	}
	apply(t, st, "roles:\n  controller: {cardinality: 1}\n  compute: {cardinality: 1}\n")
	observe.Eventually(t, "users that no environment calls for are gone", ready("controller1", "compute1"))
}

// Users for joined or removed nodes would be open accesses. Too many users would slow etcd for all clients.
func TestPlanOfPrecreatedUsers(t *testing.T) {
	t.Parallel()
	spec, err := environments.Parse("dev.yaml", []byte("roles:\n  compute: {cardinality: 6}\n"))
	if err != nil {
		t.Fatal(err)
	}
	reserves := map[string]access.Precreated{"compute2": {Ready: true}, "compute3": {}, "compute5": {Ready: true}, "old1": {Ready: true}}
	identities := map[string]access.Identity{"compute1": {User: "u"}, "compute4": {Removed: &access.Removal{}}, "compute5": {User: "v"}}
	missing, superfluous := plan(spec, reserves, identities, 10)
	if fmt.Sprint(missing, superfluous) != "[compute3 compute6] [compute5 old1]" {
		t.Errorf("made: %v; dropped: %v", missing, superfluous)
	}
	missing, superfluous = plan(spec, reserves, identities, 1)
	if fmt.Sprint(missing, superfluous) != "[] [compute3 compute5 old1]" {
		t.Errorf("at most one: made: %v; dropped: %v", missing, superfluous)
	}
}

// A stolen node identity can fill etcd until no client can write: the flood must be reported within a minute.
func TestFloodIsDetectedAndReportedOnce(t *testing.T) {
	t.Parallel()
	s := startSecure(t)
	st := dialled(t, s.Connection)
	apply(t, st, "roles:\n  compute: {cardinality: 2}\n")
	_, log, _ := startTasks(t, s)
	_, other, _ := startTasks(t, s)
	id := func(n string) model.Identity { return model.Identity{Node: n, Role: "compute", Environment: "dev"} }
	run := model.EncodedRun{ID: "1", Bytes: bytes.Repeat([]byte("x"), 200<<10)}
	// A watch that begins a moment later sees only later writes. The flood therefore continues, like real floods.
	rounds := 0
	observe.Eventually(t, "the flood is noted", func() bool {
		if err := control.In(st).Report(t.Context(), id("compute1"), model.Status{Node: "compute1"}, []model.EncodedRun{run}, nil); err != nil {
			t.Fatal(err)
		}
		if rounds++; rounds%20 == 1 { // otherwise it would be a flood of small writes
			if err := control.In(st).Report(t.Context(), id("compute2"), model.Status{Node: "compute2"}, nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		all, damaged, err := fleet.In(st).Floods(t.Context(), dev)
		if err != nil || len(damaged) > 0 {
			t.Fatal(err, damaged)
		}
		if _, wrong := all["compute2"]; wrong {
			t.Fatal("a node that is well was noted")
		}
		return all["compute1"].Bytes > floodBytes
	})
	observe.Eventually(t, "both serves log it", func() bool {
		if err := control.In(st).Report(t.Context(), id("compute1"), model.Status{Node: "compute1"}, []model.EncodedRun{run}, nil); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(log.String(), "node=compute1") && strings.Contains(other.String(), "node=compute1")
	})
	if n := strings.Count(log.String(), "a node floods etcd"); n != 1 {
		t.Errorf("one flood was logged %d times:\n%s", n, log)
	}
	all, _, err := fleet.In(st).Floods(t.Context(), dev)
	if err != nil {
		t.Fatal(err)
	}
	if err := fleet.In(st).ForgetFlood(t.Context(), dev, "compute1", all["compute1"].Last.Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if all, _, _ = fleet.In(st).Floods(t.Context(), dev); len(all) == 0 {
		t.Error("a continued flood was forgotten")
	}
}

// An etcd that is full of old revisions stops the complete fleet: serve must make room without an administrator.
func TestFullEtcdIsHealed(t *testing.T) {
	t.Parallel()
	for _, compacted := range []bool{false, true} { // by another client, before
		t.Run(fmt.Sprint(compacted), func(t *testing.T) {
			t.Parallel()
			fullEtcdIsHealed(t, compacted)
		})
	}
}

func fullEtcdIsHealed(t *testing.T, compacted bool) {
	c := secureConfig(t)
	c.QuotaBytes = 16 << 20
	s, err := member.StartSecure(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	st := dialled(t, s.Connection)
	id := model.Identity{Node: "compute1", Role: "compute", Environment: "dev"}
	run := model.EncodedRun{ID: "1", Bytes: bytes.Repeat([]byte("x"), 200<<10)}
	report := func() error {
		return control.In(st).Report(t.Context(), id, model.Status{Node: "compute1"}, []model.EncodedRun{run}, nil)
	}
	for n := 0; err == nil; n++ {
		if err = report(); n > 500 {
			t.Fatal("16 MiB do not get full")
		}
	}
	if !errors.Is(err, etcd.ErrFull) {
		t.Fatal(err)
	}
	log := &observe.Log{}
	k, err := NewTasks(TasksConfig{DB: st, Now: time.Now, Log: log.Logger(), EtcdDir: c.Dir})
	if err != nil {
		t.Fatal(err)
	}
	if compacted {
		if err := cluster.In(st).Compact(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.makeRoom(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := report(); err != nil || !strings.Contains(log.String(), "accepts writes again") {
		t.Errorf("after the repair: %v\n%s", err, log)
	}
	if err := k.makeRoom(t.Context()); err != nil || strings.Count(log.String(), "accepts writes again") != 1 {
		t.Errorf("without an alarm: %v\n%s", err, log)
	}
}

// A healthy node must never count as a flood, at any start of its minute. A small steady excess must.
func TestFloodLimits(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	w := newWatcher(func() time.Time { return now }, slog.New(slog.DiscardHandler))
	write := func(bytes int64) { w.saw(fleet.NodeWrite{Ref: dev, Node: "n", Bytes: bytes}) }
	for range 3000 { // just below both thresholds, for ten minutes
		now = now.Add(205 * time.Millisecond)
		write(3400)
	}
	if floods, _ := w.take(); len(floods) > 0 {
		t.Fatalf("%+v", floods)
	}
	for range 400 { // just above one
		now = now.Add(190 * time.Millisecond)
		write(10)
	}
	if floods, _ := w.take(); len(floods) != 1 {
		t.Fatal("more than 300 writes a minute were no flood")
	}
	now = now.Add(time.Hour)
	w.forget()
	write(floodBytes)
	if floods, _ := w.take(); len(floods) > 0 {
		t.Fatalf("a megabyte is allowed: %+v", floods)
	}
	write(1)
	if floods, _ := w.take(); len(floods) != 1 {
		t.Fatal("more than a megabyte at once was no flood")
	}
	now = now.Add(3 * time.Hour)
	w.forget()
	if len(w.tally) > 0 {
		t.Error("memory grows with nodes that are gone")
	}
}

// Two machines under one name destroy each other's state in turn: they must be frozen and reported.
func TestCopiedMachineIsFrozen(t *testing.T) {
	t.Parallel()
	s := startSecure(t)
	st := dialled(t, s.Connection)
	apply(t, st, "roles:\n  compute: {cardinality: 2}\n")
	startTasks(t, s)
	startTasks(t, s)
	name := pki.Name{Prefix: "pulley", Kind: pki.KindNode, Environment: "dev", Subject: "compute1", Incarnation: pki.NewIncarnation()}
	if err := access.IdentitiesIn(st).Put(t.Context(), dev, access.Identity{Node: "compute1", User: name.String(), Machine: "m1"}, 0); err != nil {
		t.Fatal(err)
	}
	says := func(node, boot string) {
		t.Helper()
		id := model.Identity{Node: node, Role: "compute", Environment: "dev"}
		if err := control.In(st).Report(t.Context(), id, model.Status{Node: node, Machine: "m1", Boot: boot}, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	hold := func(node string) model.Hold {
		f, err := fleet.In(st).State(t.Context(), dev)
		if err != nil {
			t.Fatal(err)
		}
		return f.Holds[etcd.Scope{Node: node}]
	}
	boots := 0
	observe.Eventually(t, "the node is frozen", func() bool {
		boots++
		says("compute2", fmt.Sprint("restarted-", boots)) // a machine that only restarts
		says("compute1", []string{"boot-a", "boot-b"}[boots%2])
		return hold("compute1").Kind == model.DuplicateHold
	})
	if hold("compute2").Mode != "" {
		t.Errorf("a machine that was restarted was frozen: %+v", hold("compute2"))
	}
	observe.Eventually(t, "it is noted with the identity", func() bool {
		i, _, err := access.IdentitiesIn(st).Get(t.Context(), dev, "compute1")
		return err == nil && i.Duplicate != nil && i.Duplicate.Machine == "m1"
	})
}

// Without a notice, no operator sees a first boot that stopped without a message.
func TestStalledFirstBootSendsNotice(t *testing.T) {
	t.Parallel()
	s := startSecure(t)
	st := dialled(t, s.Connection)
	apply(t, st, "roles:\n  compute: {cardinality: 2}\n")
	long := time.Now().Add(-2 * access.StandsStill)
	for _, b := range []access.FirstBoot{
		{Machine: "m1", Node: "compute1", Step: "puppet", State: access.BootStarted, Started: long, Since: long, Heard: long},
		{Machine: "m2", Node: "compute2", Step: "puppet", State: access.BootStarted, Started: long, Since: long, Heard: time.Now()},
	} {
		if err := access.FirstBootsIn(st).Put(t.Context(), dev, b, 0); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		got <- string(body)
	}))
	t.Cleanup(receiver.Close)
	tasks, _, stop := startTasks(t, s, "generic+"+receiver.URL+"/?disabletls=yes")
	if err := errors.Join(tasks.each(tasks.checkBoots)(context.WithoutCancel(t.Context())), tasks.each(tasks.forget)(context.WithoutCancel(t.Context()))); err != nil { // the task does the same, a second time
		t.Fatal(err)
	}
	observe.Eventually(t, "the notice is sent", func() bool {
		all, _, err := notify.NoticesIn(st).List(t.Context())
		return err == nil && len(all) == 1 && all[0].State == notify.NoticeSent
	})
	stop()
	if text := <-got; len(got) > 0 || !strings.Contains(text, "the first boot of compute1 in dev is stalled at step puppet") {
		t.Errorf("the message is %q, and %d follow", text, len(got))
	}
}

// An operator who canceled a retirement could write the same request again, as long as its confirmation exists.
func TestConfirmationsOfEndedRetirementsAreDeleted(t *testing.T) {
	t.Parallel()
	s := startSecure(t)
	st, ctx := dialled(t, s.Connection), t.Context()
	apply(t, st, "roles:\n  compute: {cardinality: 2}\n")
	a, err := records.In(st).BeginApply(ctx, dev, "ann")
	if err != nil {
		t.Fatal(err)
	}
	confirmed := func(node string) bool {
		t.Helper()
		c, err := control.In(st).Confirmation(ctx, model.Identity{Environment: "dev", Node: node})
		if err != nil {
			t.Fatal(err)
		}
		return c != nil
	}
	for _, node := range []string{"compute1", "compute2"} {
		h, r := model.Host{Node: node, Role: "compute", MachineID: "m1"}, model.Request{ID: node, Do: model.RequestRetire}
		if err := errors.Join(fleet.In(st).Register(ctx, "dev", h), a.Ask(ctx, node, r)); err != nil || !confirmed(node) {
			t.Fatalf("%s: %v", node, err)
		}
	}
	// The request to the first one ends, as after an operator's cancellation.
	if err := errors.Join(a.Close(), fleet.In(st).Register(ctx, "dev", model.Host{Node: "compute1", Role: "compute", MachineID: "m2"})); err != nil {
		t.Fatal(err)
	}
	startTasks(t, s)
	observe.Eventually(t, "it is deleted", func() bool { return !confirmed("compute1") })
	if !confirmed("compute2") {
		t.Error("the confirmation of a retirement in progress is deleted")
	}
}

// Exports and the head of the host list are keys of nodes as well: a flood through them must have a name.
func TestFloodOfExportsIsTheNodes(t *testing.T) {
	t.Parallel()
	s := startSecure(t)
	st := dialled(t, s.Connection)
	apply(t, st, "roles:\n  compute: {cardinality: 2}\n")
	startTasks(t, s)
	who := model.Identity{Node: "compute1", Role: "compute", Environment: "dev"}
	value := json.RawMessage(`"` + strings.Repeat("x", 200<<10) + `"`)
	observe.Eventually(t, "the flood is noted", func() bool {
		if err := control.In(st).PublishExport(t.Context(), who, model.Export{Facts: map[string]json.RawMessage{"f": value}}, true); err != nil {
			t.Fatal(err)
		}
		all, _, err := fleet.In(st).Floods(t.Context(), dev)
		if err != nil {
			t.Fatal(err)
		}
		return all["compute1"].Bytes > floodBytes && len(all) == 1
	})
}

// A slow loop of changes floods nothing, and runs Puppet on all nodes that see the node.
func TestChangesOfWhatOthersSeeAreAFlood(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	w := newWatcher(func() time.Time { return now }, slog.New(slog.DiscardHandler))
	shows := func(shown string) int64 {
		now = now.Add(time.Minute)
		w.saw(fleet.NodeWrite{Ref: dev, Node: "n", Bytes: 10, Shown: shown})
		floods, _ := w.take()
		return floods[nodeKey{dev, "n"}].Shown
	}
	for range 100 { // signs of life, and an entry of serve
		if shows("export a")+shows("entry a") > 0 {
			t.Fatal("what does not change is a flood")
		}
	}
	for i := range floodShown {
		if shows(fmt.Sprintf("export %d", i)) > 0 {
			t.Fatalf("%d changes are a flood", i+1)
		}
	}
	if n := shows("entry b"); n != floodShown+1 {
		t.Errorf("%d changes are counted", n)
	}
	now = now.Add(2 * time.Hour)
	if n := shows("export b"); n != 0 {
		t.Errorf("one change after two hours: %d", n)
	}
}
