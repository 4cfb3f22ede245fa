// Package fleettest makes the fleets of tests of what is in etcd: releases, targets, nodes and their access. It must
// never be imported by tests inside the packages that it imports.
package fleettest

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
	"pulley/internal/access"
	"pulley/internal/desired/control"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/publish"
	"pulley/internal/release"
	"pulley/internal/release/content"
	"pulley/internal/release/trust"
	"pulley/internal/testbed/etcdtest"
)

// Begin begins an apply, which ends with the test.
func Begin(t *testing.T, st *etcd.DB, ref model.Ref, by string) *records.Applying {
	t.Helper()
	a, err := records.In(st).BeginApply(t.Context(), ref, by)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// NodeA, Viewer and Operator are users of etcd.
const (
	NodeA    = "pulley/node/dev/controller1/00000000000000a1"
	Viewer   = "pulley/operator/vic/0000000000000001"
	Operator = "pulley/operator/olga/0000000000000002"
)

// Refusal reports whether etcd itself refused the client.
func Refusal(err error) bool {
	return errors.Is(err, rpctypes.ErrPermissionDenied) || errors.Is(err, rpctypes.ErrUserNotFound)
}

// Contents reads all keys of an etcd with authentication.
func Contents(t *testing.T, server *etcdtest.Auth) map[string]string {
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

// Wire passes bytes between clients and a server, until it is muted: then no answer comes back.
type Wire struct {
	listener net.Listener
	mu       sync.Mutex
	muted    bool
	conns    []net.Conn
}

// NewWire listens and passes bytes to an address.
func NewWire(t *testing.T, to string) *Wire {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &Wire{listener: l}
	t.Cleanup(func() { w.Cut(false) })
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

// Address is where clients connect.
func (w *Wire) Address() string { return "http://" + w.listener.Addr().String() }

// Mute loses all answers from now on.
func (w *Wire) Mute() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.muted = true
}

// Cut ends all connections. With back, new ones are possible.
func (w *Wire) Cut(back bool) {
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

// Few keeps only content in use, the newest change and the newest release.
var Few = publish.PruneOptions{By: "bob", Keep: 1, History: time.Nanosecond, Changes: 1}

// Line publishes releases 1.0.0, 1.1.0, … like `pulley publish`, each with a file of its own. Every third release
// begins a new line.
func Line(t *testing.T, st *etcd.DB, n int) []release.Release {
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
		p := Publishing(t, st, "ann")
		r := ARelease(fmt.Sprintf("1.%d.0", i), "a")
		r.At = time.Now().UTC().Truncate(time.Second).Add(time.Duration(i-n) * time.Hour)
		var delta []byte
		r.Content, delta, err = content.Build(ctx, dir, m, parent, r.Version, func(o content.Object, b []byte) error {
			_, err := release.In(st).PutObject(ctx, o.Hash, b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if created, err := release.In(st).Put(ctx, p, r, delta, nil); err != nil || !created {
			t.Fatal(created, err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		view, err := content.OpenView(ctx, release.In(st), r.Content)
		if err != nil {
			t.Fatal(err)
		}
		parent = content.Parent{View: view, Last: true}
		all = append(all, r)
	}
	return all
}

// PromoteTo promotes a target for a scope.
func PromoteTo(t *testing.T, st *etcd.DB, scope etcd.Scope, target model.Target) {
	t.Helper()
	if _, err := targets.In(st).Promote(t.Context(), Dev, Desires(t, st, Dev), scope, targets.Promoted, target, Me); err != nil {
		t.Fatal(err)
	}
}

// Publishing begins a publish, which ends with the test.
func Publishing(t *testing.T, st *etcd.DB, by string) *release.Publishing {
	t.Helper()
	p, err := release.In(st).BeginPublish(t.Context(), by)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// Signer returns a new key, and a list of allowed signers that lets it sign for these environments.
func Signer(t *testing.T, name, environments string) (key trust.Key, allowed string) {
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

// Signers parses lists of allowed signers.
func Signers(t *testing.T, allowed ...string) *trust.Signers {
	t.Helper()
	s, err := trust.ParseSigners([]byte(strings.Join(allowed, "")), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Value reads a key.
func Value(t *testing.T, server *etcdtest.Server, key string) *clientv3.GetResponse {
	t.Helper()
	resp, err := server.Client().Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// Joined creates a node that has joined as user, with all keys that can concern it.
func Joined(t *testing.T, server *etcdtest.Auth, node, user string) {
	t.Helper()
	st, ctx := server.Admin(), t.Context()
	at := time.Now().UTC()
	for _, err := range []error{
		access.In(st).EnsureEnvironment(ctx, "dev"), access.In(st).EnsureNode(ctx, "dev", node, user),
		fleet.In(st).Register(ctx, "dev", model.Host{Node: node, Role: "controller", MachineID: "machine of " + node}),
		access.IdentitiesIn(st).Put(ctx, Dev, access.Identity{Node: node, Role: "controller", User: user, Incarnation: user[len(user)-16:], Machine: "machine of " + node, Joined: at}, 0),
		fleet.In(st).Hold(ctx, Dev, etcd.Scope{Node: node}, model.Hold{Mode: model.Freeze, Who: "ann", Why: "test"}, 0, 0),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"environments/dev/desired/nodes/" + node, "environments/dev/assigned/" + node, "precreated/dev/" + node, "floods/dev/" + node, "lockouts/dev/" + node, "retirements/dev/" + node} {
		if _, err := server.ClientOf(etcdtest.Serve).Put(ctx, etcd.NewKeys("").Root()+key, `{"v":1}`); err != nil {
			t.Fatal(err)
		}
	}
	own := server.DB(user)
	if err := control.In(own).Report(ctx, model.Identity{Node: node, Environment: "dev"}, model.Status{Node: node}, []model.EncodedRun{{ID: "1", Bytes: []byte("x")}}, nil); err != nil {
		t.Fatal(err)
	}
}

// Desires reads the targets of an environment.
func Desires(t *testing.T, st *etcd.DB, ref model.Ref) targets.Desires {
	t.Helper()
	d, err := targets.In(st).Desires(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Set makes the next generation of data.
func Set(t *testing.T, st *etcd.DB, ref model.Ref, key, value string, a targets.Author) targets.Change {
	t.Helper()
	d := Desires(t, st, ref)
	data, err := targets.In(st).Data(t.Context(), ref, d)
	if err != nil {
		t.Fatal(err)
	}
	layer, err := hieradata.Set(nil, key, value)
	if err != nil {
		t.Fatal(err)
	}
	c, err := targets.In(st).ChangeData(t.Context(), ref, d, data, map[hieradata.Layer][]byte{hieradata.Common: layer}, a)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Shared is the etcd of the tests that need none of their own.
var Shared *etcdtest.Shared

// Main runs the tests of a package with one etcd for those that need none of their own, and returns the exit code.
func Main(m *testing.M) int {
	var err error
	if Shared, err = etcdtest.Share(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := Shared.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// Open connects to an etcd, with a prefix of keys; "": the default one.
func Open(t *testing.T, s *etcdtest.Server, prefix string) *etcd.DB {
	t.Helper()
	if prefix == "" {
		prefix = etcd.DefaultPrefix
	}
	st, err := etcd.Open(etcd.Config{Endpoints: []string{s.Endpoint}, Prefix: s.Prefix + prefix, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// Dev is the environment of most tests.
var Dev = model.Ref{Environment: "dev"}

// ID is the node of most tests.
var ID = model.Identity{Node: "controller1", Certname: "controller1", Role: "controller", Environment: "dev", PuppetEnvironment: "dev"}

// Me is who changes targets.
var Me = targets.Author{By: "ann", Why: "test", At: time.Now()}

// ARelease is a release of a version, whose tree hash repeats tree.
func ARelease(v, tree string) release.Release {
	return release.Release{Version: v, Author: "ann", At: time.Now().UTC(), Content: content.Record{Tree: strings.Repeat(tree, 64)[:64]}}
}

// Publish stores a release without a delta, as the first of its line.
func Publish(t *testing.T, st *etcd.DB, r release.Release) (created bool, err error) {
	t.Helper()
	p, err := release.In(st).BeginPublish(t.Context(), "ann")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	return release.In(st).Put(t.Context(), p, r, nil, nil)
}

// Published returns the target of an existing release.
func Published(t *testing.T, st *etcd.DB, v, tree string) model.Target {
	t.Helper()
	r := ARelease(v, tree)
	if _, err := Publish(t, st, r); err != nil {
		t.Fatal(err)
	}
	return r.Target()
}

// DestroyEnvironment destroys an environment in an apply of its own.
func DestroyEnvironment(ctx context.Context, st *etcd.DB, ref model.Ref, by string, hosts bool) (records.Destroyed, error) {
	a, err := records.In(st).BeginApply(ctx, ref, by)
	if err != nil {
		return records.Destroyed{}, err
	}
	d, err := a.Destroy(ctx, hosts)
	return d, errors.Join(err, a.Close())
}

type answers struct {
	w      *Wire
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
