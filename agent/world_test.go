package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pulley/internal/model"
)

// world is one node with a real disk and fakes of everything else. All of it is stored in files under one folder, so
// that the death of the process has the effect of a crash.
type world struct {
	dir     string
	disk    *Disk
	etcd    *fakeEtcd
	content *fakeContent
	puppet  *fakePuppet
	machine *fakeMachine
	hosts   *fakeHosts
	agent   *Agent
	now     time.Time
}

// start is the initial time of every world.
var start = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func newWorld(t testing.TB) *world {
	t.Helper()
	w, err := openWorld(t.TempDir(), start)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.disk.Close() })
	return w
}

func openWorld(dir string, now time.Time) (*world, error) {
	disk, err := OpenDisk(filepath.Join(dir, "node"))
	if err != nil {
		return nil, err
	}
	for _, d := range []string{"trees", "applied"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	w := &world{dir: dir, disk: disk, now: now}
	w.etcd = &fakeEtcd{file: filepath.Join(dir, "etcd.json")}
	w.content = &fakeContent{dir: dir, refuses: func(t model.Target) string {
		if strings.HasPrefix(t.Release, "refused") {
			return "it is not signed"
		}
		return ""
	}}
	w.puppet = &fakePuppet{dir: dir}
	w.machine = &fakeMachine{dir: dir}
	w.hosts = &fakeHosts{etcd: w.etcd, dir: dir}
	w.agent = &Agent{
		Identity: model.Identity{Node: "web1", Certname: "web1", Role: "web", Environment: "dev", PuppetEnvironment: "dev"},
		Settings: model.DefaultSettings(), Version: "1.2.3", MachineID: strings.Repeat("5", 32), Boot: strings.Repeat("b", 36),
		Control: w.etcd, Content: w.content, Puppet: w.puppet, Machine: w.machine, Memory: disk, Hosts: w.hosts,
		Now: func() time.Time { return w.now }, Log: slog.New(slog.DiscardHandler), VerifyTimeout: 20 * time.Millisecond,
	}
	return w, nil
}

// crashAt is the time of the tick in tickOnce.
var crashAt = start.Add(time.Minute)

// tickOnce is an agent that runs one tick. If its environment names a crash point, it exits there.
func tickOnce(dir string) int {
	w, err := openWorld(dir, crashAt)
	if err != nil {
		return 2
	}
	lock, err := w.disk.Lock()
	if err != nil {
		return 4
	}
	defer lock.Close()
	w.agent.Tick(context.Background(), Options{})
	return 0
}

// promote makes t the fleet's target.
func (w *world) promote(t testing.TB, target model.Target) {
	t.Helper()
	w.etcd.operator(t, func(d *model.Desired) { d.Gate.Epoch++; d.Default = target })
}

func (w *world) tick(t testing.TB, opts ...Options) Report {
	t.Helper()
	w.etcd.calls, w.puppet.jobs = nil, nil
	r := w.agent.Tick(t.Context(), append(opts, Options{})[0])
	if w.content.held != 0 {
		t.Errorf("%d staged trees are still held after the tick: nothing could ever be collected", w.content.held)
	}
	return r
}

// good runs a tick and expects a successful Puppet run.
func (w *world) good(t testing.TB, opts ...Options) *model.Run {
	t.Helper()
	r := w.tick(t, opts...)
	if r.Err != nil || r.Run == nil || r.Run.Outcome == model.Failed {
		t.Fatalf("want a good run, got %+v: %v", r.Run, r.Err)
	}
	return r.Run
}

// idle runs a tick and expects that Puppet did not run.
func (w *world) idle(t testing.TB, opts ...Options) Report {
	t.Helper()
	r := w.tick(t, opts...)
	if len(w.puppet.jobs) > 0 {
		t.Fatalf("Puppet ran on %s: %s", w.puppet.jobs[0].Target, r.Decision.Reason)
	}
	return r
}

func (w *world) state(t testing.TB) model.State {
	t.Helper()
	s, err := w.disk.Load()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (w *world) attempt(t testing.TB, target model.Target) *model.Attempt {
	t.Helper()
	s := w.state(t)
	return s.Attempt(target)
}

// stands fails the test unless the node has this last good target, enforced target and link.
func (w *world) stands(t testing.TB, good, enforcing model.Target) {
	t.Helper()
	s := w.state(t)
	if s.LastGood != good || s.Enforcing != enforcing {
		t.Fatalf("last good is %s and it enforces %s, want %s and %s", s.LastGood, s.Enforcing, good, enforcing)
	}
	if current, _ := w.content.Current(); current != good.Tree {
		t.Fatalf("current is %q, want the tree of %s", current, good)
	}
}

// files returns the node's own files with their contents.
func (w *world) files(t testing.TB) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(w.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Type()&os.ModeSymlink != 0 || strings.HasSuffix(path, "etcd.json") {
			return err
		}
		b, err := os.ReadFile(path)
		found[strings.TrimPrefix(path, w.dir)] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// version returns a target with live data. Its name selects the behaviour of fakePuppet.
func version(name string) model.Target {
	return model.Target{Release: name, Tree: model.Digest([]byte("tree " + name)), Data: 7, DataDigest: model.Digest([]byte("data " + name))}
}

// fakeEtcd is a fake of internal/desired/control: Desire reads at one revision, and Admit rejects an older one.
type fakeEtcd struct {
	file                        string
	calls                       []string
	onDesire, onAdmit, onReport func() error // errors before the call has an effect
	onConfirmation, onFacts     func() error
	onPreview                   func() error
	afterAdmit                  func() error // error afterwards: the node does not know the outcome
}

type etcdContent struct {
	Desired model.Desired
	Forged  bool // an operator wrote the request: no administrator confirmed it
	Status  *model.Status
	Runs    map[string][]byte
	Facts   []byte
	Export  model.Export
	Preview []byte // the answer
	Signed  int64  // revision of the last sign of life of all other nodes
	Hosts   string // the host list
	List    int64  // its revision
}

func (e *fakeEtcd) load() etcdContent {
	var c etcdContent
	if b, err := os.ReadFile(e.file); err == nil {
		if err := json.Unmarshal(b, &c); err != nil {
			panic(err)
		}
	}
	if c.Runs == nil {
		c = etcdContent{Desired: model.Desired{Revision: 1, Host: &model.Host{Node: "web1", Role: "web"}}, Runs: map[string][]byte{}}
	}
	return c
}

func (e *fakeEtcd) save(c etcdContent) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.WriteFile(e.file+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(e.file+".new", e.file)
}

// operator changes the desired state, like an operator with `pulley`.
func (e *fakeEtcd) operator(t testing.TB, change func(*model.Desired)) {
	t.Helper()
	c := e.load()
	change(&c.Desired)
	c.Desired.Revision++
	if err := e.save(c); err != nil {
		t.Fatal(err)
	}
}

func (e *fakeEtcd) call(name string, fault func() error) error {
	e.calls = append(e.calls, name)
	if fault != nil {
		return fault()
	}
	return nil
}

func (e *fakeEtcd) Desire(context.Context, model.Identity) (model.Desired, error) {
	if err := e.call("desire", e.onDesire); err != nil {
		return model.Desired{}, err
	}
	c := e.load()
	c.Desired.HostList = c.List
	return c.Desired, nil
}

func (e *fakeEtcd) Admit(_ context.Context, _ model.Identity, d model.Desired, s model.Status) error {
	if err := e.call("admit", e.onAdmit); err != nil {
		return err
	}
	c := e.load()
	if c.Desired.Revision != d.Revision {
		return model.ErrChanged
	}
	c.Status = &s
	if err := e.save(c); err != nil {
		return err
	}
	if e.afterAdmit != nil {
		return e.afterAdmit()
	}
	return nil
}

// Confirmation confirms the request in the host list, unless it is forged.
func (e *fakeEtcd) Confirmation(context.Context, model.Identity) (*model.Confirmation, error) {
	if err := e.call("confirmation", e.onConfirmation); err != nil {
		return nil, err
	}
	c := e.load()
	if c.Forged || c.Desired.Host == nil || !c.Desired.Host.Retires() {
		return nil, nil
	}
	return &model.Confirmation{ID: c.Desired.Host.Request.ID, MachineID: c.Desired.Host.MachineID}, nil
}

// forge makes the request in the host list one that no administrator confirmed.
func (e *fakeEtcd) forge(t testing.TB) {
	t.Helper()
	c := e.load()
	c.Forged = true
	if err := e.save(c); err != nil {
		t.Fatal(err)
	}
}

func (e *fakeEtcd) Report(_ context.Context, _ model.Identity, s model.Status, runs []model.EncodedRun, drop []string) error {
	if err := e.call("report", e.onReport); err != nil {
		return err
	}
	c := e.load()
	c.Status = &s
	for _, r := range runs {
		c.Runs[r.ID] = r.Bytes
	}
	for _, id := range drop {
		delete(c.Runs, id)
	}
	return e.save(c)
}

func (e *fakeEtcd) PublishFacts(_ context.Context, _ model.Identity, facts []byte) error {
	if err := e.call("facts", e.onFacts); err != nil {
		return err
	}
	c := e.load()
	c.Facts = facts
	return e.save(c)
}

func (e *fakeEtcd) PublishExport(_ context.Context, _ model.Identity, x model.Export, changed bool) error {
	if err := e.call("export", e.onFacts); err != nil {
		return err
	}
	c := e.load()
	c.Export = x
	if changed {
		c.List++
	}
	return e.save(c)
}

func (e *fakeEtcd) AnswerPreview(_ context.Context, _ model.Identity, d model.Desired, answer []byte) error {
	if err := e.call("preview", e.onPreview); err != nil {
		return err
	}
	c := e.load()
	if answer != nil && !reflect.DeepEqual(c.Desired.Preview, d.Preview) {
		return model.ErrChanged
	}
	c.Preview = answer
	return e.save(c)
}

func (e *fakeEtcd) status(t testing.TB) model.Status {
	t.Helper()
	s := e.load().Status
	if s == nil {
		t.Fatal("the node has said nothing")
	}
	return *s
}

func (e *fakeEtcd) count(name string) int {
	n := 0
	for _, c := range e.calls {
		if c == name {
			n++
		}
	}
	return n
}

// disconnect makes every call fail, and reconnect ends that.
func (e *fakeEtcd) disconnect() {
	away := func() error { return fmt.Errorf("no route to host: %w", model.ErrUnreachable) }
	e.onDesire, e.onAdmit, e.onReport, e.onConfirmation, e.onFacts = away, away, away, away, away
}

func (e *fakeEtcd) reconnect() {
	e.onDesire, e.onAdmit, e.onReport, e.onConfirmation, e.onFacts = nil, nil, nil, nil, nil
}

// fakeContent stores each tree as a file, and uses the real link.
type fakeContent struct {
	dir      string
	held     int
	onStage  func(model.Target) error
	refuses  func(model.Target) string // why a new target is refused; "": accepted
	concerns func(model.Target) string // digest of those parts of a target's data that concern this node
	kept     []model.Target            // by the last collection
}

func (c *fakeContent) tree(tree string) string { return filepath.Join(c.dir, "trees", tree) }

// Stage refuses a release named "refused", unless the test sets another reason.
func (c *fakeContent) Stage(_ context.Context, _ model.Identity, t model.Target, how Staging) (Staged, error) {
	if how.Taking && c.refuses != nil && c.refuses(t) != "" {
		return Staged{}, fmt.Errorf("cannot take %s: %w", t, refusedFor(c.refuses(t)))
	}
	if c.onStage != nil {
		if err := c.onStage(t); err != nil {
			return Staged{}, err
		}
	}
	if err := os.WriteFile(c.tree(t.Tree), []byte(t.Release), 0o600); err != nil {
		return Staged{}, err
	}
	c.held++
	s := Staged{Tree: c.tree(t.Tree), Data: filepath.Join(c.dir, "data"), DataDigest: t.DataDigest, Release: func() { c.held-- }}
	if c.concerns != nil {
		s.DataDigest = c.concerns(t)
	}
	return s, nil
}

func (c *fakeContent) Current() (string, error) {
	at, err := os.Readlink(filepath.Join(c.dir, "current"))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return filepath.Base(at), err
}

// Activate rejects a target that `current` must never name: a missing tree, or one never applied successfully.
func (c *fakeContent) Activate(tree string) error {
	for _, must := range []string{c.tree(tree), filepath.Join(c.dir, "applied", tree)} {
		if _, err := os.Stat(must); err != nil {
			return fmt.Errorf("current must not name %s: %w", tree, err)
		}
	}
	link := filepath.Join(c.dir, "current")
	if err := errors.Join(os.RemoveAll(link+".new"), os.Symlink(c.tree(tree), link+".new")); err != nil {
		return err
	}
	return os.Rename(link+".new", link)
}

func (c *fakeContent) Collect(keep []model.Target, _ []string) error {
	trees, err := os.ReadDir(filepath.Join(c.dir, "trees"))
	if err != nil {
		return err
	}
	c.kept = keep
	kept := map[string]bool{}
	for _, t := range keep {
		kept[t.Tree] = true
	}
	for _, e := range trees {
		if !kept[e.Name()] {
			err = errors.Join(err, os.Remove(c.tree(e.Name())))
		}
	}
	return err
}

// fakeHosts stores the host list as a file. The releases of a node with a file `sees` show the nodes.
type fakeHosts struct {
	etcd    *fakeEtcd
	dir     string
	settle  time.Duration
	alive   time.Duration // hosts.alive of the releases
	again   time.Time     // newer values are kept back until then
	onFetch func() error
}

// see makes the node's releases show the other nodes.
func (h *fakeHosts) see(t testing.TB) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, "sees"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// set changes the host list in etcd.
func (h *fakeHosts) set(t testing.TB, list string) {
	t.Helper()
	c := h.etcd.load()
	c.Hosts, c.List = list, c.List+1
	if err := h.etcd.save(c); err != nil {
		t.Fatal(err)
	}
}

// signs makes the other nodes give a sign of life.
func (h *fakeHosts) signs(t testing.TB) {
	t.Helper()
	c := h.etcd.load()
	c.Desired.Revision++
	c.Signed = c.Desired.Revision
	if err := h.etcd.save(c); err != nil {
		t.Fatal(err)
	}
}

func (h *fakeHosts) FetchHosts(context.Context, model.Identity) error {
	if err := h.etcd.call("hosts", h.onFetch); err != nil {
		return err
	}
	c := h.etcd.load()
	return errors.Join(os.WriteFile(filepath.Join(h.dir, "hosts"), []byte(c.Hosts), 0o600), os.WriteFile(filepath.Join(h.dir, "signed"), fmt.Append(nil, c.Signed), 0o600))
}

func (h *fakeHosts) ShowHosts(_ model.Identity, _ string, w model.Watch) (model.Seen, error) {
	if _, err := os.Stat(filepath.Join(h.dir, "sees")); err != nil {
		return model.Seen{}, nil
	}
	b, err := os.ReadFile(filepath.Join(h.dir, "hosts"))
	if err != nil {
		return model.Seen{}, model.ErrNoHosts
	}
	if h.alive > 0 {
		text, _ := os.ReadFile(filepath.Join(h.dir, "signed"))
		signed, _ := strconv.ParseInt(string(text), 10, 64)
		since := w.Since(h.alive)
		b = fmt.Appendf(b, " alive=%t", since == 0 || signed > since)
	}
	s := model.Seen{File: filepath.Join(h.dir, "hosts-"+model.Digest(b)), Digest: model.Digest(b), Settle: h.settle, Alive: h.alive, Again: h.again}
	return s, os.WriteFile(s.File, b, 0o600)
}

// Export shows the fact `shown` if the folder has a file of this name.
func (h *fakeHosts) Export(model.Identity, string, []byte) (model.Export, error) {
	b, err := os.ReadFile(filepath.Join(h.dir, "shown"))
	if err != nil {
		return model.Export{Alive: h.alive}, nil
	}
	return model.Export{Facts: map[string]json.RawMessage{"shown": b}, Alive: h.alive}, nil
}

func (h *fakeHosts) Folder(tree string) string { return tree }

func (h *fakeHosts) Difference(_ int64, before, after string) ([]byte, error) {
	var parts []string
	for _, d := range []string{before, after} {
		b, err := os.ReadFile(filepath.Join(h.dir, "hosts-"+d))
		if err != nil && d != "" {
			return nil, err
		}
		parts = append(parts, string(b))
	}
	return []byte(strings.Join(parts, " → ")), nil
}

func (h *fakeHosts) CollectHosts(keep ...string) error {
	old, err := filepath.Glob(filepath.Join(h.dir, "hosts-*"))
	for _, name := range old {
		if !slices.Contains(keep, strings.TrimPrefix(filepath.Base(name), "hosts-")) {
			err = errors.Join(err, os.Remove(name))
		}
	}
	return err
}

// sees returns the nodes that the last run of Puppet saw.
func (w *world) sees(t testing.TB) string {
	t.Helper()
	if len(w.puppet.jobs) != 1 {
		t.Fatalf("%d runs of Puppet", len(w.puppet.jobs))
	}
	return w.puppet.saw
}

// fakePuppet writes the release's name in place of a catalog's changes. The name selects the result: "syntax" does not
// compile, "halfway" fails in the middle; "offline", "unverified" and all others succeed.
type fakePuppet struct {
	dir     string
	jobs    []model.Job
	blocked *model.Blocked
	away    func(model.Job) *model.Problem // why no Puppet server answers; nil: one does
	saw     string                         // content of the last job's hosts
	during  func(model.Job)
	result  func(model.Job) (model.Result, error) // overrides the result selected by the name
}

func (p *fakePuppet) Blocked() *model.Blocked { return p.blocked }

func (p *fakePuppet) Reach(_ context.Context, job model.Job) *model.Problem {
	if p.away == nil {
		return nil
	}
	return p.away(job)
}

func (p *fakePuppet) Apply(_ context.Context, job model.Job) (model.Result, error) {
	p.jobs = append(p.jobs, job)
	saw, _ := os.ReadFile(job.Hosts)
	p.saw = string(saw)
	if p.during != nil {
		p.during(job)
	}
	if p.result != nil {
		return p.result(job)
	}
	name := job.Target.Release
	switch {
	case job.Noop:
		return model.Result{Kind: model.Success, Outcome: model.Changed, Noop: true, Counts: model.Counts{Total: 9, OutOfSync: 1}}, nil
	case strings.HasPrefix(name, "syntax"):
		return model.Result{Kind: model.Untouched, Outcome: model.Failed, ExitCode: 1, Problem: model.Problem{Code: model.HookFailed, Text: "Syntax error at '}' (file: manifests/site.pp, line: 3)"}}, nil
	case strings.HasPrefix(name, "halfway"):
		return model.Result{Kind: model.Between, Outcome: model.Failed, ExitCode: 4, Problem: model.Problem{Code: model.HookFailed, Text: "File[/etc/motd] failed"}}, p.apply("half of " + name)
	}
	r := model.Result{Kind: model.Success, Outcome: model.Changed, ExitCode: 2, Counts: model.Counts{Total: 9, Changed: 1}}
	if p.applied() == name {
		r.Outcome, r.ExitCode, r.Counts.Changed = model.Unchanged, 0, 0
	}
	if err := os.WriteFile(filepath.Join(p.dir, "applied", job.Target.Tree), nil, 0o600); err != nil {
		return model.Result{}, err
	}
	return r, p.apply(name)
}

func (p *fakePuppet) applied() string {
	b, _ := os.ReadFile(filepath.Join(p.dir, "machine"))
	return string(b)
}

func (p *fakePuppet) apply(what string) error {
	return os.WriteFile(filepath.Join(p.dir, "machine"), []byte(what), 0o600)
}

// fakeMachine rejects a release named "unverified".
type fakeMachine struct {
	dir                  string
	remembered, verified int
	retired              []model.Job
	fails                string // a hook of hosts.d/
	during               func() error
	damage               error // found by Restore after the next Puppet run; a killed agent leaves it to the next one
	pending              bool
}

func (m *fakeMachine) Remember() error { m.remembered++; m.pending = true; return nil }

func (m *fakeMachine) Restore() error {
	if !m.pending {
		return nil
	}
	err := m.damage
	m.pending, m.damage = false, nil
	return err
}

func (m *fakeMachine) Verify(_ context.Context, job model.Job) error {
	m.verified++
	if m.during != nil {
		return m.during()
	}
	if strings.HasPrefix(job.Target.Release, "unverified") {
		return errors.New("validate.d/10-web says no")
	}
	return nil
}

// Tell has two hooks, which write down what they receive. fails makes one of them fail.
func (m *fakeMachine) Tell(_ context.Context, _ model.Job, difference []byte, after string, acknowledge func(string) error) error {
	for _, hook := range []string{"10-first", "20-second"} {
		if hook <= after {
			continue
		}
		if hook == m.fails {
			return errors.New(hook + ": exit status 1")
		}
		f, err := os.OpenFile(filepath.Join(m.dir, "told"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(f, "%s: %s\n", hook, difference)
		if err = errors.Join(err, f.Close(), acknowledge(hook)); err != nil {
			return err
		}
	}
	return nil
}

func (m *fakeMachine) told() string {
	b, _ := os.ReadFile(filepath.Join(m.dir, "told"))
	return string(b)
}

// Retire writes the external effect of a hook. It is idempotent. A release named "clings" has a hook that fails.
func (m *fakeMachine) Retire(ctx context.Context, job model.Job, why model.Prose) error {
	m.retired = append(m.retired, job)
	if m.during != nil {
		if err := m.during(); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(m.dir, "machine"), []byte("retired from "+job.Target.Release+": "+string(why)), 0o600); err != nil {
		return err
	}
	if strings.HasPrefix(job.Target.Release, "clings") {
		return errors.New("retire.d/10-drain: exit status 1: there is still work")
	}
	return ctx.Err()
}

// request adds a request to the node.
func (w *world) request(t testing.TB, r *model.Request) {
	t.Helper()
	w.etcd.operator(t, func(d *model.Desired) { d.Host.Request = r })
}

func same(t testing.TB, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}
