//go:build e2e

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/atomicfile"
	"pulley/internal/etcd"
	"pulley/internal/testbed/puppettest"
)

const patience = 3 * time.Minute // limits each command, on a busy machine

// world is a fleet on a cluster.
type world struct {
	t   *testing.T
	dir string
	pin string // fingerprint of the CA
	writeLog

	mu         sync.Mutex
	present    []*member // of the cluster
	clients    map[*member]*clientv3.Client
	lastMember int

	serves  []*serve
	nodesMu sync.Mutex
	nodes   []*node
}

// newWorld starts three members with TLS and users, two serves, and the environment dev of this file without nodes.
func newWorld(t *testing.T, environment string) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), clients: map[*member]*clientv3.Client{}}
	for _, dir := range []string{"bin", "fake/etc", "fake/var/state", "machine", "home"} {
		if err := os.MkdirAll(filepath.Join(w.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	puppettest.Write(t, filepath.Join(w.dir, "fake"))
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, filepath.Join(w.dir, "bin/etcd"))
	}
	if err != nil {
		t.Fatal(err)
	}
	var members []*member
	for n := range 3 {
		members = append(members, w.newMember(n+1))
	}
	w.present, w.lastMember = members, len(members)
	t.Cleanup(func() {
		if t.Failed() {
			w.tail()
		}
	})
	for _, m := range members {
		w.configure(m, "new", members...)
		if err := m.start(); err != nil {
			t.Fatal(err)
		}
	}
	w.eventually("the cluster has users", func() error {
		_, err := w.run("pulley", "auth", "setup", "--data-dir", "data")
		return err
	})
	w.pin = regexp.MustCompile(`sha256:[0-9a-f]{64}`).FindString(w.must("pulley", "ca", "show", "--data-dir", "data"))
	w.allAnswer()
	if err := os.WriteFile(filepath.Join(w.dir, "dev.yaml"), []byte(environment), 0o600); err != nil {
		t.Fatal(err)
	}
	w.must("pulley", "env", "apply", "dev.yaml")
	w.must("pulley", "init", "R")
	if err := os.RemoveAll(filepath.Join(w.dir, "R/validate.d")); err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		w.serve(n + 1)
	}
	return w
}

func (w *world) members() []*member {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.present)
}

// endpoints lists the members' URLs, separated by commas.
func (w *world) endpoints() string {
	var all []string
	for _, m := range w.members() {
		all = append(all, m.endpoint())
	}
	return strings.Join(all, ",")
}

// setMembers gives these members to operators, serves and nodes, as docs/etcd-cluster.md says, and waits until nodes use them.
func (w *world) setMembers(all []*member) {
	w.t.Helper()
	w.mu.Lock()
	w.present = all
	w.mu.Unlock()
	for _, s := range w.serves {
		s.signal(syscall.SIGTERM) // its unit starts it again
		s.awaitUp()
	}
	nodes := w.allNodes()
	for _, n := range nodes {
		n.point(w.endpoints())
	}
	began := time.Now()
	for _, n := range nodes {
		if !n.real { // a run of real Puppet may take long
			w.eventually("a tick of "+n.name+" with the new members", func() error { return w.goodTick(n.name, began) })
		}
	}
}

// goodTick returns an error until a node has succeeded with a tick that began after a time.
func (w *world) goodTick(node string, after time.Time) error {
	w.writeLog.mu.Lock()
	defer w.writeLog.mu.Unlock()
	for _, t := range slices.Backward(w.ticks) {
		if t.node == node && t.exit == 0 && t.began.After(after) {
			return nil
		}
	}
	return errors.New("no tick succeeded")
}

// environ is the environment of operators.
func (w *world) environ() []string {
	admin := filepath.Join(w.dir, "data/pki/admin.pem")
	env := append(os.Environ(), "HOME="+filepath.Join(w.dir, "home"), "XDG_CACHE_HOME="+filepath.Join(w.dir, "home/cache"), "PULLEY_ENDPOINTS="+w.endpoints())
	if _, err := os.Stat(admin); err == nil {
		env = append(env, "PULLEY_CACERT="+filepath.Join(w.dir, "data/pki/bundle.pem"), "PULLEY_CERT="+admin, "PULLEY_KEY="+admin)
	}
	return env
}

// run runs a released command as an operator, and returns its output. The error contains standard error.
func (w *world) run(program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv(binEnv), program), args...)
	cmd.Dir, cmd.Env = w.dir, w.environ()
	var problem bytes.Buffer
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(problem.String()))
	}
	return strings.TrimSpace(string(out)), err
}

func (w *world) must(program string, args ...string) string {
	w.t.Helper()
	out, err := w.run(program, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// act runs a command that writes, and records its outcome.
func (w *world) act(kind, key string, args ...string) outcome {
	_, err := w.run("pulley", args...)
	o := outcomeOf(err)
	answer := "done"
	if err != nil {
		answer = err.Error()
	}
	w.wrote(kind, key, o, answer)
	return o
}

// outcomeOf reads the answer to a write.
func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return acknowledged
	case errors.Is(err, etcd.ErrUnknownOutcome), strings.Contains(err.Error(), etcd.ErrUnknownOutcome.Error()):
		return unknown
	}
	return refused
}

// tail prints the ends of all logs.
func (w *world) tail() {
	logs, _ := filepath.Glob(filepath.Join(w.dir, "*.log"))
	for _, log := range logs {
		b, _ := os.ReadFile(log)
		w.t.Logf("%s:\n%s", filepath.Base(log), b[max(0, len(b)-3000):])
	}
}

// serve is a `pulley serve --endpoints` with a unit that starts it again whenever it ends.
type serve struct {
	w         *world
	name, url string
	dir       string

	mu      sync.Mutex
	cmd     *exec.Cmd
	stopped bool
	ended   chan struct{} // closed after the last end
}

func (w *world) serve(n int) {
	w.t.Helper()
	s := &serve{w: w, name: fmt.Sprintf("serve%d", n), url: fmt.Sprintf("https://%s:844%d", ownAddress, n), ended: make(chan struct{})}
	s.dir = filepath.Join(w.dir, s.name)
	if out, err := exec.Command("cp", "-a", filepath.Join(w.dir, "data"), s.dir).CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	w.serves = append(w.serves, s)
	go s.keep()
	w.t.Cleanup(s.stop)
	s.awaitUp()
}

// keep is the unit.
func (s *serve) keep() {
	defer close(s.ended)
	for {
		log, err := os.OpenFile(s.dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			s.w.t.Error(err)
			return
		}
		identity := filepath.Join(s.dir, "pki/serve.pem")
		cmd := exec.Command(filepath.Join(os.Getenv(binEnv), "pulley"), "serve", "--endpoints", s.w.endpoints(), "--data-dir", s.dir,
			"--cacert", filepath.Join(s.dir, "pki/bundle.pem"), "--cert", identity, "--key", identity, "--listen-https", strings.TrimPrefix(s.url, "https://"))
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = s.w.dir, os.Environ(), log, log
		s.mu.Lock()
		if s.stopped {
			s.mu.Unlock()
			log.Close()
			return
		}
		err = cmd.Start()
		s.cmd = cmd
		s.mu.Unlock()
		log.Close()
		if err != nil {
			s.w.t.Error(err)
			return
		}
		_ = cmd.Wait()
		rest(500 * time.Millisecond) // as a unit does
	}
}

func (s *serve) signal(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(sig)
	}
}

// awaitUp waits until the serve answers.
func (s *serve) awaitUp() {
	s.w.t.Helper()
	s.w.eventually(s.name+" answers", func() error {
		out, err := exec.Command("curl", "-sk", "--max-time", "2", s.url+"/metrics").Output()
		if err == nil && !bytes.Contains(out, []byte("pulley_")) {
			err = fmt.Errorf("it answers %.100q", out)
		}
		return err
	})
}

// stop ends the serve by SIGKILL, for good.
func (s *serve) stop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.signal(syscall.SIGKILL)
	<-s.ended
}

// node is a machine that joined.
type node struct {
	w          *world
	name, root string
	real       bool // its Puppet
	random     *rand.Rand

	kills int
}

// wrapper is a node's Puppet. It holds a lock as long as Puppet runs, and reports a second one.
const wrapper = `#!/bin/sh
if [ "$1" = apply ]; then
	exec 9>>"ROOT/puppet.lock"
	flock -n 9 || echo "a second Puppet: $*" >>"ROOT/second"
	echo "$*" >>"ROOT/starts"
fi
exec PROGRAM "$@"
`

// join makes a machine, and joins it at any serve. It repeats the first boot until that succeeds, as a unit does.
func (w *world) join(role, machine string, seed uint64) (*node, error) {
	n := &node{w: w, root: filepath.Join(w.dir, machine), real: role == "real", random: rand.New(rand.NewPCG(seed, 1))}
	program := filepath.Join(w.dir, "fake/puppet")
	if n.real {
		program = "/usr/bin/puppet"
	}
	var token string
	if err := w.again("a token", func() (err error) {
		token, err = w.run("pulley", "token", "create", "--role", role, "--uses", "1")
		return err
	}); err != nil {
		return nil, err
	}
	plan := fmt.Sprintf("role: %s\nenvironment: dev\nservers: [%s, %s]\nca: ['%s']\ntoken: %s\nsteps: {schedule: \"off\"}\n", role, w.serves[0].url, w.serves[1].url, w.pin, token)
	settings := fmt.Sprintf("heartbeat: 1s\npuppet:\n  program: %s\n  state_dirs: [%s]\n", filepath.Join(n.root, "puppet"), filepath.Join(n.root, "state"))
	for name, text := range map[string]string{
		"etc/machine-id":             fmt.Sprintf("%032x\n", 0xabc0000+seed),
		"etc/pulley/agent.yaml":      settings,
		"etc/pulley/first-boot.yaml": plan,
		"puppet":                     strings.NewReplacer("ROOT", n.root, "PROGRAM", program).Replace(wrapper),
	} {
		path := filepath.Join(n.root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			return nil, err
		}
	}
	agent := filepath.Join(n.root, "usr/local/bin/pulley-agent")
	if err := errors.Join(os.Chmod(filepath.Join(n.root, "puppet"), 0o755), os.MkdirAll(filepath.Dir(agent), 0o755),
		os.Link(filepath.Join(os.Getenv(binEnv), "pulley-agent"), agent)); err != nil { // a link spares a copy for each node
		return nil, err
	}
	if err := w.again("the first boot of "+machine, func() error {
		out, err := n.agent("bootstrap", "--root", n.root)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		m := regexp.MustCompile(`(?m)^(\S+): is a node of dev$`).FindStringSubmatch(out)
		if m == nil {
			return fmt.Errorf("it ended with:\n%s", out)
		}
		n.name = m[1]
		return nil
	}); err != nil {
		return nil, err
	}
	w.wrote(joinWrite, n.name, acknowledged, machine)
	n.point(w.endpoints()) // they may have changed since
	w.nodesMu.Lock()
	defer w.nodesMu.Unlock()
	if slices.ContainsFunc(w.nodes, func(o *node) bool { return o.name == n.name }) {
		return nil, fmt.Errorf("two machines joined as %s", n.name)
	}
	w.nodes = append(w.nodes, n)
	return n, nil
}

// again repeats do until it succeeds, at most five minutes.
func (w *world) again(what string, do func() error) error {
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		err := do()
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("not within five minutes: %s: %w", what, err)
		}
	}
}

func (w *world) allNodes() []*node {
	w.nodesMu.Lock()
	defer w.nodesMu.Unlock()
	return slices.Clone(w.nodes)
}

// agent runs the agent as cron does.
func (n *node) agent(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.w.t.Context()), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv(binEnv), "pulley-agent"), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "NO_PROXY=*"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

var endpointsLine = regexp.MustCompile(`(?ms)^endpoints:.*?\n(\S)`)

// point writes the endpoints into agent.yaml, as the release of a fleet does.
func (n *node) point(endpoints string) {
	file := filepath.Join(n.root, "etc/pulley/agent.yaml")
	b, err := os.ReadFile(file)
	if err == nil && !endpointsLine.Match(b) {
		err = fmt.Errorf("%s has no endpoints:\n%s", file, b)
	}
	if err == nil {
		err = atomicfile.Write(file, endpointsLine.ReplaceAll(b, []byte("endpoints: ["+endpoints+"]\n$1")), 0o600)
	}
	if err != nil {
		n.w.t.Error(err)
	}
}

var changedOn = regexp.MustCompile(`: changed on (\d+\.\d+\.\d+)`)

// ticks ticks until ctx ends. Some ticks are killed.
func (n *node) ticks(ctx context.Context, pause time.Duration) {
	for ctx.Err() == nil {
		n.tick()
		select {
		case <-ctx.Done():
		case <-time.After(pause + time.Duration(n.random.IntN(300))*time.Millisecond):
		}
	}
}

func (n *node) tick() {
	limit := patience
	if n.random.IntN(25) == 0 {
		limit = time.Duration(20+n.random.IntN(400)) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.w.t.Context()), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv(binEnv), "pulley-agent"), "run", "--root", n.root)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "NO_PROXY=*"}
	out, err := os.CreateTemp(n.root, "tick") // not a pipe: Puppet of a killed agent would hold it open
	if err != nil {
		n.w.t.Error(err)
		return
	}
	defer os.Remove(out.Name())
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	t := tick{node: n.name, began: time.Now()}
	err = cmd.Run()
	t.took = time.Since(t.began)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		t.exit = -1
	case errors.As(err, &exit):
		t.exit = exit.ExitCode()
	case err != nil:
		n.w.t.Error(err)
	}
	text, _ := os.ReadFile(out.Name())
	changed := changedOn.FindSubmatch(text)
	t.puppet = changed != nil
	n.w.ticked(t)
	switch {
	case t.exit == 0 && changed != nil:
		n.w.wrote(runWrite, n.name+" "+string(changed[1]), acknowledged, "exit 0")
	case t.exit == -1 && limit < patience:
		n.kills++
	case t.exit != 0 && t.exit != 3 && !bytes.Contains(text, []byte("was applied and not verified")):
		n.w.t.Errorf("a tick of %s ended with %d after %s:\n%s", n.name, t.exit, t.took, text)
	}
}

// enforced returns the version that the node's Puppet applied last.
func (n *node) enforced() string {
	b, _ := os.ReadFile(filepath.Join(n.w.dir, "machine", n.name))
	return strings.TrimSpace(string(b))
}

// rest paces writers and faults. Nothing waits for a condition with it.
func rest(d time.Duration) { <-time.After(d) }
