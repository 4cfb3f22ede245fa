package access_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/machines/records"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// After an interrupted removal, a joining machine must not get the deleted pre-created user: etcd would refuse its
// certificate forever.
func TestInterruptedRemovalLeavesNoUser(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, ctx := server.Admin(), t.Context()
	apply(t, st)
	if err := access.In(st).EnsureEnvironment(ctx, "dev"); err != nil {
		t.Fatal(err)
	}
	reserve, err := access.IdentitiesIn(st).Precreate(ctx, fleettest.Dev, "compute1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if found, err := access.ShutOut(st, ctx, fleettest.Dev, "compute1"); err != nil || !found {
		t.Fatalf("removed: %t, %v", found, err)
	}
	users, err := access.In(st).Users(ctx)
	if err != nil || slices.Contains(users, reserve.User) {
		t.Errorf("the users are %q (%v)", users, err)
	}
	if left, _, err := access.IdentitiesIn(st).Precreated(ctx, fleettest.Dev); err != nil || len(left) > 0 {
		t.Errorf("pre-created users are still %+v (%v)", left, err)
	}
}

// Otherwise a stolen machine that left by itself could return with its old token.
func TestNodeThatLeftCanBeRevoked(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, ctx := server.Admin(), t.Context()
	fleettest.Joined(t, server, "controller1", "pulley/node/dev/controller1/00000000000000aa")
	if err := access.JoinsIn(st).RemoveNode(ctx, fleettest.Dev, "controller1", access.Removal{At: time.Now(), By: "controller1", Left: true}, records.Left); err != nil {
		t.Fatal(err)
	}
	if err := access.JoinsIn(st).RemoveNode(ctx, fleettest.Dev, "controller1", access.Removal{At: time.Now(), By: "ann", Why: "stolen"}, records.Left); err != nil {
		t.Fatal(err)
	}
	i, _, err := access.IdentitiesIn(st).Get(ctx, fleettest.Dev, "controller1")
	if err != nil || i == nil || i.Removed == nil || i.Removed.Left || i.Removed.By != "ann" {
		t.Errorf("its identity is %+v (%v)", i, err)
	}
	for _, r := range []access.Removal{{At: time.Now(), Left: true}, {At: time.Now(), By: "bob"}} {
		if err := access.JoinsIn(st).RemoveNode(ctx, fleettest.Dev, "controller1", r, records.Left); !errors.Is(err, etcd.ErrNotFound) {
			t.Errorf("once more: %v", err)
		}
	}
}

// far is an etcd with delayed answers.
func far(t *testing.T, endpoint string, late time.Duration) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			there, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "https://"))
			if err != nil {
				_ = near.Close()
				continue
			}
			go func() { _, _ = io.Copy(there, near); _ = there.Close() }()
			go func() {
				defer near.Close()
				b := make([]byte, 64<<10)
				for {
					n, err := there.Read(b)
					<-time.After(late)
					if _, wrote := near.Write(b[:n]); err != nil || wrote != nil {
						return
					}
				}
			}()
		}
	}()
	return "https://" + listener.Addr().String()
}

// An operator who is revoked during a retried login must not stay an operator with a valid certificate.
func TestLoginDuringRevocationCreatesNoOperator(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, ctx := server.Admin(), t.Context()
	if err := access.In(st).EnsureOperatorRoles(ctx); err != nil {
		t.Fatal(err)
	}
	eve := "pulley/operator/eve/00000000000000ee"
	err := access.IdentitiesIn(st).PutOperator(ctx, access.OperatorIdentity{Name: "eve", As: access.RoleOperator, User: eve, Until: time.Now().Add(time.Hour)}, 0)
	if err == nil {
		err = access.In(st).EnsureOperator(ctx, eve, access.RoleOperator)
	}
	if err != nil {
		t.Fatal(err)
	}
	config := server.Config(etcdtest.Serve)
	config.Endpoints = []string{far(t, server.Endpoint, 50*time.Millisecond)}
	slow, err := etcd.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	revoked := make(chan error, 1)
	go func() {
		revoked <- access.IdentitiesIn(slow).RevokeOperator(context.WithoutCancel(ctx), "eve", access.Revoked{At: time.Now(), By: "ann"})
	}()
	for end := time.Now().Add(20 * time.Second); ; {
		users, err := access.In(st).Users(ctx)
		if err != nil || time.Now().After(end) {
			t.Fatalf("%q, %v", users, err)
		}
		if !slices.Contains(users, eve) {
			break
		}
	}
	if err := access.In(st).EnsureOperator(ctx, eve, access.RoleOperator); err != nil {
		t.Fatal(err)
	}
	if o, _, err := access.IdentitiesIn(st).Operator(ctx, "eve"); err != nil || !o.Live() {
		t.Fatalf("it was revoked too soon for this test: %+v, %v", o, err)
	}
	if err := <-revoked; err != nil {
		t.Fatal(err)
	}
	if users, err := access.In(st).Users(ctx); err != nil || slices.Contains(users, eve) {
		t.Errorf("the users are %q (%v)", users, err)
	}
}

// An operator whose removal breaks off believes that the node is still in the fleet with its certificate, or that all of it is gone. The test
// breaks it off before each of its calls to etcd.
func TestInterruptedRemovalSaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, user := server.Admin(), "pulley/node/dev/controller1/00000000000000aa"
	removal := access.Removal{At: time.Now(), By: "ann"}
	for calls := int32(1); ; calls++ {
		fleettest.Joined(t, server, "controller1", user)
		ctx, cancel := context.WithCancel(t.Context())
		var err error
		etcdtest.CancelAfter(server.Admin(), calls, cancel, func(cut *etcd.DB) {
			_, err = access.JoinsIn(cut).ForgetNode(ctx, fleettest.Dev, "controller1", removal, records.Left)
		})
		whole := ctx.Err() == nil
		cancel()
		if err == nil && whole {
			break
		}
		users, other := access.In(st).Users(t.Context())
		if other != nil {
			t.Fatal(other)
		}
		shut := !slices.Contains(users, user)
		if err != nil && strings.Contains(err.Error(), "the node's certificate is rejected already") != shut {
			t.Errorf("broken off before call %d, with its user gone: %t: %v", calls, shut, err)
		}
		if _, err := access.JoinsIn(st).ForgetNode(t.Context(), fleettest.Dev, "controller1", removal, records.Left); err != nil && !errors.Is(err, etcd.ErrNotFound) {
			t.Fatalf("once more, after %d calls: %v", calls, err)
		}
		if left := of(t, server, "controller1"); len(left) > 2 { // its identity and its cleanup
			t.Errorf("after %d calls and once more, this is left: %q", calls, left)
		}
		if _, err := server.ClientOf(etcdtest.Serve).Delete(t.Context(), "/pulley/v1/identities/dev/controller1"); err != nil {
			t.Fatal(err)
		}
	}
}
