package store_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/hieradata"
	"pulley/internal/model"
	pruning "pulley/internal/publish"
	"pulley/internal/release"
	"pulley/internal/release/content"
	"pulley/internal/release/trust"
	"pulley/internal/store"
	"pulley/internal/testbed/etcdtest"
)

func begin(t *testing.T, st *store.Store, ref model.Ref, by string) *store.Applying {
	t.Helper()
	a, err := st.Machines.BeginApply(t.Context(), ref, by)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

const nodeA = "pulley/node/dev/controller1/00000000000000a1"

const viewer = "pulley/operator/vic/0000000000000001"

const operator = "pulley/operator/olga/0000000000000002"

// refusal reports whether etcd itself refused the client.
func refusal(err error) bool {
	return errors.Is(err, rpctypes.ErrPermissionDenied) || errors.Is(err, rpctypes.ErrUserNotFound)
}

func contents(t *testing.T, server *etcdtest.Auth) map[string]string {
	t.Helper()
	resp, err := server.ClientOf(etcdtest.Serve).Get(t.Context(), "", clientv3.WithFromKey())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, kv := range resp.Kvs {
		all[string(kv.Key)] = string(kv.Value)
	}
	return all
}

// wire passes bytes between clients and a server, until it is muted: then no answer comes back.
type wire struct {
	listener net.Listener
	mu       sync.Mutex
	muted    bool
	conns    []net.Conn
}

func newWire(t *testing.T, to string) *wire {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{listener: l}
	t.Cleanup(func() { w.cut(false) })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			w.mu.Lock()
			w.conns = append(w.conns, client, server)
			w.mu.Unlock()
			go func() { _, _ = io.Copy(server, client) }()
			go func() { _, _ = io.Copy(answers{w, client}, server) }()
		}
	}()
	return w
}

func (w *wire) address() string { return "http://" + w.listener.Addr().String() }

func (w *wire) mute() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.muted = true
}

// cut ends all connections. With back, new ones are possible.
func (w *wire) cut(back bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.muted = !back; !back {
		_ = w.listener.Close()
	}
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

// few keeps only content in use, the newest change and the newest release.
var few = pruning.PruneOptions{By: "bob", Keep: 1, History: time.Nanosecond, Changes: 1}

// line publishes releases 1.0.0, 1.1.0, … like `pulley publish`, each with a file of its own. Every third release
// begins a new line.
func line(t *testing.T, st *store.Store, n int) []release.Release {
	t.Helper()
	ctx := t.Context()
	dir := t.TempDir()
	var all []release.Release
	var parent content.Parent
	for i := range n {
		name := fmt.Sprintf("f%02d", i)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Repeat(name+rand.Text(), 50)), 0o644); err != nil {
			t.Fatal(err)
		}
		m, err := content.ReadTree(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			parent = content.Parent{}
		}
		p := publishing(t, st, "ann")
		r := aRelease(fmt.Sprintf("1.%d.0", i), "a")
		r.At = time.Now().UTC().Truncate(time.Second).Add(time.Duration(i-n) * time.Hour)
		var delta []byte
		r.Content, delta, err = content.Build(ctx, dir, m, parent, r.Version, func(o content.Object, b []byte) error {
			_, err := st.Releases.PutObject(ctx, o.Hash, b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if created, err := st.Releases.Put(ctx, p, r, delta, nil); err != nil || !created {
			t.Fatal(created, err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		view, err := content.OpenView(ctx, st.Releases, r.Content)
		if err != nil {
			t.Fatal(err)
		}
		parent = content.Parent{View: view, Last: true}
		all = append(all, r)
	}
	return all
}

func promoteTo(t *testing.T, st *store.Store, scope store.Scope, target model.Target) {
	t.Helper()
	if _, err := st.Targets.Promote(t.Context(), dev, desires(t, st, dev), scope, store.Promoted, target, me); err != nil {
		t.Fatal(err)
	}
}

func publishing(t *testing.T, st *store.Store, by string) *release.Publishing {
	t.Helper()
	p, err := st.Releases.BeginPublish(t.Context(), by)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// signer returns a new key, and a list of allowed signers that lets it sign for these environments.
func signer(t *testing.T, name, environments string) (key trust.Key, allowed string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", file).CombinedOutput(); err != nil {
		t.Fatalf("cannot make a key: %v\n%s", err, out)
	}
	public, err := os.ReadFile(file + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	return trust.Key{File: file}, name + "@" + environments + " " + string(public)
}

func signers(t *testing.T, allowed ...string) *trust.Signers {
	t.Helper()
	s, err := trust.ParseSigners([]byte(strings.Join(allowed, "")), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func value(t *testing.T, server *etcdtest.Server, key string) *clientv3.GetResponse {
	t.Helper()
	resp, err := server.Client().Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// joined creates a node that has joined as user, with all keys that can concern it.
func joined(t *testing.T, server *etcdtest.Auth, node, user string) {
	t.Helper()
	st, ctx := server.Admin(), t.Context()
	at := time.Now().UTC()
	for _, err := range []error{
		st.Access.EnsureEnvironment(ctx, "dev"), st.Access.EnsureNode(ctx, "dev", node, user),
		st.Fleet.Register(ctx, "dev", model.Host{Node: node, Role: "controller", MachineID: "machine of " + node}),
		st.Identities.Put(ctx, dev, store.Identity{Node: node, Role: "controller", User: user, Incarnation: user[len(user)-16:], Machine: "machine of " + node, Joined: at}, 0),
		st.Fleet.Hold(ctx, dev, store.Scope{Node: node}, model.Hold{Mode: model.Freeze, Who: "ann", Why: "test"}, 0, 0),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"environments/dev/desired/nodes/" + node, "environments/dev/assigned/" + node, "precreated/dev/" + node, "floods/dev/" + node, "lockouts/dev/" + node, "retirements/dev/" + node} {
		if _, err := server.ClientOf(etcdtest.Serve).Put(ctx, "/pulley/v1/"+key, `{"v":1}`); err != nil {
			t.Fatal(err)
		}
	}
	own := server.Store(user)
	if err := own.Node.Report(ctx, model.Identity{Node: node, Environment: "dev"}, model.Status{Node: node}, []model.EncodedRun{{ID: "1", Bytes: []byte("x")}}, nil); err != nil {
		t.Fatal(err)
	}
}

func desires(t *testing.T, st *store.Store, ref model.Ref) store.Desires {
	t.Helper()
	d, err := st.Targets.Desires(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// set makes the next generation of data.
func set(t *testing.T, st *store.Store, ref model.Ref, key, value string, a store.Author) store.Change {
	t.Helper()
	d := desires(t, st, ref)
	data, err := st.Targets.Data(t.Context(), ref, d)
	if err != nil {
		t.Fatal(err)
	}
	layer, err := hieradata.Set(nil, key, value)
	if err != nil {
		t.Fatal(err)
	}
	c, err := st.Targets.ChangeData(t.Context(), ref, d, data, map[hieradata.Layer][]byte{hieradata.Common: layer}, a)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// shared is the etcd of the tests that need none of their own.
var shared *etcdtest.Shared

// Main runs the tests of a package with one etcd for those that need none of their own.
func mainOf(m *testing.M) {
	var err error
	if shared, err = etcdtest.Share(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := shared.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func open(t *testing.T, s *etcdtest.Server, prefix string) *store.Store {
	t.Helper()
	if prefix == "" {
		prefix = store.DefaultPrefix
	}
	st, err := store.Open(store.Config{Endpoints: []string{s.Endpoint}, Prefix: s.Prefix + prefix, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}

var dev = model.Ref{Environment: "dev"}

var id = model.Identity{Node: "controller1", Certname: "controller1", Role: "controller", Environment: "dev", PuppetEnvironment: "dev"}

var me = store.Author{By: "ann", Why: "test", At: time.Now()}

func aRelease(v, tree string) release.Release {
	return release.Release{Version: v, Author: "ann", At: time.Now().UTC(), Content: content.Record{Tree: strings.Repeat(tree, 64)[:64]}}
}

// publish stores a release without a delta, as the first of its line.
func publish(t *testing.T, st *store.Store, r release.Release) (created bool, err error) {
	t.Helper()
	p, err := st.Releases.BeginPublish(t.Context(), "ann")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	return st.Releases.Put(t.Context(), p, r, nil, nil)
}

// published returns the target of an existing release.
func published(t *testing.T, st *store.Store, v, tree string) model.Target {
	t.Helper()
	r := aRelease(v, tree)
	if _, err := publish(t, st, r); err != nil {
		t.Fatal(err)
	}
	return r.Target()
}

// destroyEnvironment destroys an environment in an apply of its own.
func destroyEnvironment(ctx context.Context, st *store.Store, ref model.Ref, by string, hosts bool) (store.Destroyed, error) {
	a, err := st.Machines.BeginApply(ctx, ref, by)
	if err != nil {
		return store.Destroyed{}, err
	}
	d, err := a.Destroy(ctx, hosts)
	return d, errors.Join(err, a.Close())
}

type answers struct {
	w      *wire
	client net.Conn
}

func (a answers) Write(b []byte) (int, error) {
	a.w.mu.Lock()
	muted := a.w.muted
	a.w.mu.Unlock()
	if muted {
		return len(b), nil
	}
	return a.client.Write(b)
}
