package records_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/access"
	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/machines"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
	"pulley/internal/testbed/machinestest"
)

// The tests of apply use a model. Etcd must keep the same promises.
func TestEtcdKeepsLockGuarantees(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	for _, ref := range []model.Ref{{Environment: "dev"}, {Environment: "dev", Stack: "t4"}} {
		t.Run(ref.String(), func(t *testing.T) {
			var opened atomic.Int32
			machinestest.FleetContract(t, func(t *testing.T) machinestest.Subject {
				prefix := fmt.Sprintf("/contract%s%d", ref.Stack, opened.Add(1))
				st := fleettest.Open(t, server, prefix)
				a := fleettest.Begin(t, st, ref, "ann")
				must := func(err error) {
					if err != nil {
						t.Helper()
						t.Fatal(err)
					}
				}
				return machinestest.Subject{
					Fleet: a, Ref: ref,
					Join: func(node, role string) {
						must(fleet.In(st).Register(t.Context(), ref.String(), model.Host{Node: node, Role: role, At: time.Now().UTC()}))
					},
					Report: func(s model.Status) {
						must(control.In(st).Report(t.Context(), model.Identity{Node: s.Node, Environment: ref.String()}, s, nil, nil))
					},
					Admits: func(token string) bool {
						k, err := access.TokensIn(st).Find(t.Context(), token)
						must(err)
						return k != nil && !k.Ended(time.Now())
					},
					LoseLock: func() {
						oust(t, server.Client(), prefix+"/v1/environments/"+ref.String()+"/applying")
						fleettest.Begin(t, st, ref, "bob")
					},
				}
			})
		})
	}
}

// oust ends the lease of a lock, like etcd after a minute without renewal.
func oust(t *testing.T, raw *clientv3.Client, key string) {
	t.Helper()
	resp, err := raw.Get(t.Context(), key)
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("%s: %v, %v", key, resp, err)
	}
	if _, err := raw.Revoke(t.Context(), clientv3.LeaseID(resp.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
}

// Two concurrent applies of one fleet would create each machine twice.
func TestOneApplyAtATime(t *testing.T) {
	t.Parallel()
	st := fleettest.Open(t, fleettest.Shared.Keyspace(t), "")
	dev4, dev42 := model.Ref{Environment: "dev", Stack: "t4"}, model.Ref{Environment: "dev", Stack: "t42"}
	first := fleettest.Begin(t, st, dev4, "ann")
	_, err := records.In(st).BeginApply(t.Context(), dev4, "bob")
	var busy *records.BusyError
	if !errors.As(err, &busy) || !strings.Contains(err.Error(), "ann applies, since 2") || busy.Hint() == "" {
		t.Errorf("the second one gets: %v", err)
	}
	fleettest.Begin(t, st, dev42, "bob") // another fleet
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	fleettest.Begin(t, st, dev4, "bob")
	if err := first.Put(t.Context(), machines.Record{Node: "web1"}, nil); !errors.Is(err, machines.ErrLost) {
		t.Errorf("one that was closed writes: %v", err)
	}
}

// Otherwise each of several simultaneous applies would believe that it is alone.
func TestOfManyAppliesOneBegins(t *testing.T) {
	t.Parallel()
	st := fleettest.Open(t, fleettest.Shared.Keyspace(t), "")
	var begun atomic.Int32
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			_, err := records.In(st).BeginApply(t.Context(), fleettest.Dev, fmt.Sprint("operator ", i))
			var busy *records.BusyError
			switch {
			case err == nil:
				begun.Add(1)
			case !errors.As(err, &busy):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if begun.Load() != 1 {
		t.Errorf("%d began", begun.Load())
	}
}

// An apply that continues after another has begun would create each machine twice.
func TestApplyEndsWithoutLock(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	a, err := records.BeginApplyFor(t.Context(), st, fleettest.Dev, "ann", 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ctx, cancel := a.Context(t.Context())
	defer cancel()
	oust(t, server.Client(), "/pulley/v1/environments/dev/applying")
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("it never ends")
	}
	if err := context.Cause(ctx); !errors.Is(err, machines.ErrLost) {
		t.Errorf("the cause is %v", err)
	}
	for what, err := range map[string]error{
		"hold": a.Hold(t.Context(), "web1", model.Hold{}), "ask": a.Ask(t.Context(), "web1", model.Request{}),
		"remove": a.Remove(t.Context(), "web1", "why"), "put": a.Put(t.Context(), machines.Record{Node: "web1"}, nil),
	} {
		if !errors.Is(err, machines.ErrLost) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := a.Destroy(t.Context(), true); !errors.Is(err, machines.ErrLost) {
		t.Errorf("destroy: %v", err)
	}
}

// stalling is a connection to etcd that can be cut silently: no bytes pass in either direction, and no call fails.
type stalling struct {
	endpoint string
	cut      atomic.Bool
}

func stall(t *testing.T, endpoint string) *stalling {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	s := &stalling{endpoint: "http://" + listener.Addr().String()}
	pass := func(to, from net.Conn) {
		defer to.Close()
		b := make([]byte, 64<<10)
		for {
			n, err := from.Read(b)
			if s.cut.Load() {
				<-t.Context().Done()
				return
			}
			if _, wrote := to.Write(b[:n]); err != nil || wrote != nil {
				return
			}
		}
	}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			there, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "http://"))
			if err != nil {
				_ = near.Close()
				continue
			}
			go pass(there, near)
			go pass(near, there)
		}
	}()
	return s
}

// An apply that has lost etcd must stop before the next one can begin: it gets no other signal.
func TestApplyStopsBeforeLockEnds(t *testing.T) {
	t.Parallel() // with other slow tests
	server := etcdtest.Start(t)
	way, key, lasts := stall(t, server.Endpoint), "/pulley/v1/environments/dev/applying", 3*time.Second
	st, err := etcd.Open(etcd.Config{Endpoints: []string{way.endpoint}, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	a, err := records.BeginApplyFor(t.Context(), st, fleettest.Dev, "ann", lasts)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ctx, cancel := a.Context(t.Context())
	defer cancel()
	stands := func() bool {
		resp, err := server.Client().Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return len(resp.Kvs) == 1
	}
	for begun := time.Now(); time.Since(begun) < lasts+lasts/2; <-time.After(100 * time.Millisecond) {
		if !stands() || ctx.Err() != nil {
			t.Fatalf("it ended after %s, and etcd answers: %v", time.Since(begun), context.Cause(ctx))
		}
	}
	way.cut.Store(true)
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("it never ends")
	}
	if !stands() {
		t.Error("it stopped when its lock had gone already")
	}
	if err := context.Cause(ctx); !errors.Is(err, machines.ErrLost) {
		t.Errorf("the cause is %v", err)
	}
	for end := time.Now().Add(30 * time.Second); stands(); <-time.After(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no other apply can begin")
		}
	}
}
