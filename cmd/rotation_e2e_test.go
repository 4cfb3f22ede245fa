//go:build e2e

package cmd_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pulley/internal/join"
	"pulley/internal/pki"
	"pulley/internal/testbed/puppettest"
)

const (
	rotatingNodes = 20
	// rotatingLifetime is short enough for every node to renew within the test. It is long enough for some ticks in its
	// last third on a busy machine.
	rotatingLifetime = 60 * time.Second
	rotatingDeadline = 3 * time.Minute
)

// A rotation of the CA or a renewal of certificates must not fail a single tick. Twenty nodes tick while both happen.
func TestCARotationWhileAgentsTick(t *testing.T) {
	t.Parallel()
	w := startRotation(t)
	nodes := w.join(t)
	ctx, cancel := context.WithTimeout(t.Context(), rotatingDeadline)
	defer cancel()
	ticking, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	var once sync.Once
	failed := make(chan struct{})
	for _, n := range nodes {
		all.Go(func() {
			if !n.tickUntil(t, ticking) {
				once.Do(func() { close(failed) })
			}
		})
	}
	every := func(what string, is func(*rotatingNode) bool) {
		t.Helper()
		for _, n := range nodes {
			for !is(n) {
				select {
				case <-failed:
					t.FailNow()
				case <-ctx.Done():
					t.Fatalf("%s: %s did not come to that in time", n.name, what)
				case <-time.After(50 * time.Millisecond):
				}
			}
		}
	}
	every("one tick", func(n *rotatingNode) bool { return n.ticks.Load() > 0 })

	w.must("ca", "rotate", "--data-dir", "data")
	signs := w.ca(t, "ca.pem")
	every("a certificate of the new CA", func(n *rotatingNode) bool { return n.leaf(t).CheckSignatureFrom(signs) == nil })
	began := time.Now()
	w.must("ca", "retire", "--data-dir", "data", "--yes")
	every("a renewal, without the old CA", func(n *rotatingNode) bool {
		return pki.Issued(n.leaf(t)).After(began) && !bytes.Contains(n.bundle(t), w.old)
	})
	was := nodes[0].ticks.Load()
	every("one more tick", func(n *rotatingNode) bool { return n != nodes[0] || n.ticks.Load() > was })
	stop()
	all.Wait()

	total := int64(0)
	for _, n := range nodes {
		total += n.ticks.Load()
	}
	t.Logf("%d nodes ticked %d times", len(nodes), total)
}

// rotation is a fleet whose serve is its own CA.
type rotation struct {
	t         *testing.T
	dir       string
	env       []string
	endpoint  string
	servers   string
	puppetDir string
	old       []byte // PEM of the initial signing CA
}

func startRotation(t *testing.T) *rotation {
	t.Helper()
	w := &rotation{t: t, dir: t.TempDir(), env: append(os.Environ(), "SUDO_USER=ann", "PULLEY_ENVIRONMENT=dev")}
	w.puppetDir = filepath.Join(w.dir, "fake")
	for _, dir := range []string{"etc", "var/state"} {
		if err := os.MkdirAll(filepath.Join(w.puppetDir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	puppettest.Write(t, w.puppetDir)
	log, err := os.Create(filepath.Join(w.dir, "serve.log"))
	if err != nil {
		t.Fatal(err)
	}
	serve := exec.Command(filepath.Join(bin, "pulley"), "serve", "--auth", "--data-dir", "data", "--listen", "127.0.0.1:0", "--node-lifetime", rotatingLifetime.String())
	serve.Dir, serve.Env, serve.Stdout, serve.Stderr = w.dir, w.env, log, log
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- serve.Wait() }()
	t.Cleanup(func() {
		_ = serve.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("serve: %v", err)
			}
		case <-time.After(20 * time.Second):
			_ = serve.Process.Kill()
			t.Error("serve does not end")
		}
		if said, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("serve said:\n%s", said)
		}
		log.Close()
	})
	ready := regexp.MustCompile(`(?s)serve at (https://\S+) .*export PULLEY_ENDPOINTS=(https://\S+)`)
	for end := time.Now().Add(30 * time.Second); w.endpoint == ""; time.Sleep(50 * time.Millisecond) {
		said, err := os.ReadFile(log.Name())
		if err != nil || time.Now().After(end) {
			t.Fatalf("serve does not start: %v\n%s", err, said)
		}
		if m := ready.FindSubmatch(said); m != nil {
			w.servers, w.endpoint = string(m[1]), string(m[2])
		}
	}
	admin := filepath.Join(w.dir, "data/pki/admin.pem")
	w.env = append(w.env, "PULLEY_ENDPOINTS="+w.endpoint, "PULLEY_CACERT="+filepath.Join(w.dir, "data/pki/bundle.pem"), "PULLEY_CERT="+admin, "PULLEY_KEY="+admin)
	if w.old, err = os.ReadFile(filepath.Join(w.dir, "data/pki/ca.pem")); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *rotation) must(args ...string) string {
	w.t.Helper()
	c := exec.Command(filepath.Join(bin, "pulley"), args...)
	c.Dir, c.Env = w.dir, w.env
	var problem bytes.Buffer
	c.Stderr = &problem
	out, err := c.Output()
	if err != nil {
		w.t.Fatalf("pulley %s: %v\n%s", strings.Join(args, " "), err, problem.String())
	}
	return strings.TrimSpace(string(out))
}

func (w *rotation) ca(t *testing.T, name string) *x509.Certificate {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(w.dir, "data/pki", name))
	if err != nil {
		t.Fatal(err)
	}
	certs, err := pki.ParseCertificates(b)
	if err != nil {
		t.Fatal(err)
	}
	return certs[0]
}

// join lets machines join with a token, as their first boot does.
func (w *rotation) join(t *testing.T) []*rotatingNode {
	t.Helper()
	spec := fmt.Sprintf("roles:\n  compute:\n    cardinality: %d\n    flavor: bare-metal\n", rotatingNodes)
	if err := os.WriteFile(filepath.Join(w.dir, "dev.yaml"), []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	w.must("env", "apply", "dev.yaml")
	token := w.must("token", "create", "--role", "compute", "--uses", fmt.Sprint(rotatingNodes))
	trust, err := pki.Pinned([]string{pki.Fingerprint(w.ca(t, "ca.pem")), pki.Fingerprint(w.ca(t, "next.pem"))})
	if err != nil {
		t.Fatal(err)
	}
	client, err := join.NewClient([]string{w.servers}, trust, 0)
	if err != nil {
		t.Fatal(err)
	}
	nodes := make([]*rotatingNode, rotatingNodes)
	var all sync.WaitGroup
	for i := range nodes {
		all.Go(func() {
			key, err := pki.NewKey()
			if err != nil {
				t.Error(err)
				return
			}
			machine := join.Machine{ID: fmt.Sprintf("%032x", i+1), Boot: fmt.Sprintf("boot-%d", i), Hostname: fmt.Sprintf("machine%d", i)}
			answer, err := client.Join(t.Context(), key, join.Request{Token: token, Environment: "dev", Role: "compute", Machine: machine})
			if err != nil {
				t.Error(err)
				return
			}
			n := &rotatingNode{name: answer.Node, root: filepath.Join(w.dir, answer.Node)}
			if err := n.write(w, key, machine, answer); err != nil {
				t.Error(err)
			}
			nodes[i] = n
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return nodes
}

// rotatingNode is a machine that ticks repeatedly.
type rotatingNode struct {
	name, root string
	ticks      atomic.Int64
}

func (n *rotatingNode) identity() string {
	return filepath.Join(n.root, "var/lib/pulley/identity/node.pem")
}

func (n *rotatingNode) bundle(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(n.root, "var/lib/pulley/identity/ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (n *rotatingNode) leaf(t *testing.T) *x509.Certificate {
	t.Helper()
	id, err := pki.LoadIdentity(n.identity())
	if err != nil {
		t.Fatal(err)
	}
	return id.Leaf()
}

// write writes the files of a join on a machine.
func (n *rotatingNode) write(w *rotation, key crypto.Signer, machine join.Machine, answer join.Answer) error {
	id, err := pki.NewIdentity(key, []byte(answer.Certificate))
	if err != nil {
		return err
	}
	for _, dir := range []string{filepath.Dir(n.identity()), filepath.Join(n.root, "etc/pulley")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	settings := fmt.Sprintf("node: %s\nenvironment: dev\nendpoints: [%s]\nservers: [%s]\nheartbeat: 1s\npuppet:\n  program: %s\n  state_dirs: [%s]\n",
		n.name, w.endpoint, w.servers, filepath.Join(w.puppetDir, "puppet"), filepath.Join(w.puppetDir, "var/state"))
	for file, text := range map[string]string{
		filepath.Join(n.root, "etc/pulley/agent.yaml"):          settings,
		filepath.Join(n.root, "etc/machine-id"):                 machine.ID + "\n",
		filepath.Join(n.root, "var/lib/pulley/identity/ca.pem"): answer.CA,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return id.Save(n.identity())
}

// tickUntil runs the agent repeatedly, as cron does, and reports whether every run succeeded.
func (n *rotatingNode) tickUntil(t *testing.T, ctx context.Context) bool {
	for ctx.Err() == nil {
		c := exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(bin, "pulley-agent"), "run", "--root", n.root)
		c.Env = append(os.Environ(), "PULLEY_ENDPOINTS=")
		out, err := c.CombinedOutput()
		if err != nil || bytes.Contains(out, []byte("cannot")) {
			t.Errorf("a tick of %s: %v\n%s", n.name, err, out)
			return false
		}
		n.ticks.Add(1)
	}
	return true
}
