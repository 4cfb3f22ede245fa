package access_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/access"
	"pulley/internal/desired/control"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

const (
	noUser = "pulley/node/dev/controller2/00000000000000c1" // a certificate of the CA without a user
)

// fleetWithUsers is a member with two environments, the nodes A (twice: it joined again) and B, a viewer and an
// operator. Every key of the table exists for A, for B, and for a node of another environment.
func fleetWithUsers(t *testing.T) (*etcdtest.Auth, []string) {
	t.Helper()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, raw, ctx := server.Admin(), server.ClientOf(etcdtest.Serve), t.Context()
	for _, err := range []error{
		access.In(st).EnsureEnvironment(ctx, "dev"), access.In(st).EnsureEnvironment(ctx, "production"),
		access.In(st).EnsureNode(ctx, "dev", "controller1", nodeAOld), access.In(st).EnsureNode(ctx, "dev", "controller1", fleettest.NodeA), access.In(st).DropUser(ctx, nodeAOld),
		access.In(st).EnsureNode(ctx, "dev", "compute1", nodeB),
		access.In(st).EnsureOperator(ctx, fleettest.Viewer, access.RoleViewer), access.In(st).EnsureOperator(ctx, fleettest.Operator, access.RoleOperator),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	keys := map[string]bool{"/other/key": true, "/pulley": true, "/pulley/v1": true, "/pulley/v1/": true, "/pulley/v10/key": true, "/pulley/v1/strange": true}
	for _, of := range [][2]string{{"dev", "controller1"}, {"dev", "compute1"}, {"dev", "controller10"}, {"dev@t42", "controller1"}, {"production", "controller1"}} {
		for _, r := range etcdtest.TableOfKeys(t, of[0], of[1], "") {
			keys[r.Key] = true
		}
	}
	all := slices.Sorted(maps.Keys(keys))
	for _, key := range all {
		if _, err := raw.Put(ctx, key, "as it was"); err != nil {
			t.Fatal(err)
		}
	}
	return server, all
}

// may is the intended access of a user to keys.
type may struct{ read, write func(key string) bool }

func below(prefixes ...string) func(string) bool {
	return func(key string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return key == p || strings.HasSuffix(p, "/") && strings.HasPrefix(key, p) })
	}
}

// ways returns all ways to read or write a key, by name.
func ways(key, elsewhere string) (reads, writes map[string]clientv3.Op) {
	reads = map[string]clientv3.Op{
		"get":              clientv3.OpGet(key),
		"get serializable": clientv3.OpGet(key, clientv3.WithSerializable()),
		"count":            clientv3.OpGet(key, clientv3.WithCountOnly()),
		"get at revision":  clientv3.OpGet(key, clientv3.WithSerializable(), clientv3.WithRev(2)),
		"range":            clientv3.OpGet(key, clientv3.WithRange(key+"\x00")),
		"compare":          clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Value(key), "=", "as it was")}, nil, nil),
		"in a transaction": clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpGet(key)}, nil),
		"in a nested one":  clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpGet(key)}, nil)}, nil),
		"in what is not done": clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(elsewhere), "<", 0)},
			[]clientv3.Op{clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpGet(key)}, nil)}, nil),
	}
	writes = map[string]clientv3.Op{
		"put":                      clientv3.OpPut(key, "spoiled"),
		"put as it is":             clientv3.OpPut(key, "", clientv3.WithIgnoreValue()),
		"put and previous":         clientv3.OpPut(key, "spoiled", clientv3.WithPrevKV()),
		"delete":                   clientv3.OpDelete(key),
		"delete and previous":      clientv3.OpDelete(key, clientv3.WithPrevKV()),
		"delete a range":           clientv3.OpDelete(key, clientv3.WithRange(key+"\x00")),
		"put in a transaction":     clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut(key, "spoiled")}, nil),
		"put in a nested one":      clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut(key, "spoiled")}, nil)}, nil),
		"delete in a transaction":  clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpDelete(key)}, nil),
		"delete in a nested one":   clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpDelete(key, clientv3.WithPrevKV())}, nil)}, nil),
		"put in what is not done":  clientv3.OpTxn(nil, nil, []clientv3.Op{clientv3.OpPut(key, "spoiled")}),
		"put in the other of both": clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(elsewhere), "<", 0)}, []clientv3.Op{clientv3.OpPut(key, "spoiled")}, nil),
	}
	return reads, writes
}

// A stolen node key could read another environment, report for other nodes or promote. A stolen operator key could
// create operators. A certificate from before a node's new join could still write for the node.
func TestEtcdRefusesForeignKeys(t *testing.T) {
	t.Parallel()
	server, keys := fleetWithUsers(t)
	reading := []string{"/pulley/v1/environments/dev/", "/pulley/v1/retirements/dev/", "/pulley/v1/releases/", "/pulley/v1/content/", "/pulley/v1/deltas/", "/pulley/v1/agents/"}
	own := []string{"/pulley/v1/status/dev/controller1", "/pulley/v1/runs/dev/controller1/", "/pulley/v1/facts/dev/controller1",
		"/pulley/v1/environments/dev/hosts/exports/controller1", "/pulley/v1/environments/dev/hosts/head"}
	nothing, orders := func(string) bool { return false }, "/pulley/v1/environments/dev/assigned/controller1"
	writtenBy := map[string]bool{} // an operator or publisher, as the table says
	for _, of := range [][2]string{{"dev", "controller1"}, {"dev", "compute1"}, {"dev", "controller10"}, {"dev@t42", "controller1"}, {"production", "controller1"}} {
		for _, r := range etcdtest.TableOfKeys(t, of[0], of[1], "") {
			writtenBy[r.Key] = slices.Contains(r.Writers, "o") || slices.Contains(r.Writers, "p") || slices.Contains(r.Writers, "c") && strings.Contains(r.Key, "/environments/")
		}
	}
	users := map[string]may{
		fleettest.NodeA:               {below(append(reading, own...)...), below(own...)},
		nodeAOld:                      {nothing, nothing},
		noUser:                        {nothing, nothing},
		fleettest.Viewer:              {below("/pulley/v1/"), nothing},
		fleettest.Operator:            {below("/pulley/v1/"), func(key string) bool { return writtenBy[key] }},
		"root of another certificate": {nothing, nothing},
	}
	before := fleettest.Contents(t, server)
	for user, may := range users {
		t.Run(strings.ReplaceAll(user, "/", " "), func(t *testing.T) {
			client := server.ClientOf(user)
			refused, done := 0, 0
			judge := func(what, key string, allowed bool, err error) {
				t.Helper()
				switch {
				case allowed && err != nil:
					t.Errorf("%s of %s is refused: %v", what, key, err)
				case !allowed && !fleettest.Refusal(err):
					t.Errorf("%s of %s is not refused: %v", what, key, err)
				case allowed:
					done++
				default:
					refused++
				}
			}
			for _, key := range keys {
				reads, writes := ways(key, key)
				for what, op := range reads {
					judge(what, key, may.read(key), do(t, client, op))
				}
				// The embedded etcd lets a node watch its own orders, and viewers and operators nothing.
				judge("watch", key, user == fleettest.NodeA && key == orders, watch(t, client, key))
				for what, op := range writes {
					reading := strings.Contains(what, "previous") || strings.Contains(what, "other of both") || strings.Contains(what, "nested") && strings.Contains(what, "delete")
					err := do(t, client, op)
					judge(what, key, may.write(key) && (!reading || may.read(key)), ignoreMissing(err))
					if may.write(key) { // for the next way
						restore(t, server, key)
					}
				}
			}
			t.Logf("%d refused, %d done", refused, done)
			if refused < len(keys) {
				t.Errorf("only %d requests were refused: this test makes too few requests", refused)
			}
		})
	}
	if after := fleettest.Contents(t, server); !maps.Equal(before, after) {
		t.Errorf("something changed that was refused: %v became %v", before, after)
	}
}

// Ranges over all keys, other leases, users and roles, and maintenance must be as closed to a node as keys are.
func TestEtcdRefusesNodesItsOtherCalls(t *testing.T) {
	t.Parallel()
	server, _ := fleetWithUsers(t)
	admin, ctx := server.ClientOf(etcdtest.Serve), t.Context()
	foreign, err := admin.Grant(ctx, 600)
	if err == nil {
		_, err = admin.Put(ctx, "/pulley/v1/environments/dev/holds/all", "hold", clientv3.WithLease(foreign.ID))
	}
	if err != nil {
		t.Fatal(err)
	}
	before := fleettest.Contents(t, server)
	for _, user := range []string{fleettest.NodeA, nodeAOld, fleettest.Viewer, fleettest.Operator} {
		c := server.ClientOf(user)
		ops := map[string]clientv3.Op{}
		for name, r := range map[string][]clientv3.OpOption{"everything": {clientv3.WithFromKey()}, "all that begins with nothing": {clientv3.WithPrefix()}} {
			ops["get "+name] = clientv3.OpGet("", r...)
			ops["delete "+name] = clientv3.OpDelete("", r...)
		}
		prefixes := []string{"/", "/pulley", "/pulley/", "/other/"}
		if user != fleettest.Viewer && user != fleettest.Operator {
			prefixes = append(prefixes, "/pulley/v1/", "/pulley/v1/environments/", "/pulley/v1/environments/dev", "/pulley/v1/environments/production/", "/pulley/v1/status/",
				"/pulley/v1/status/dev/", "/pulley/v1/status/dev/controller1", "/pulley/v1/runs/", "/pulley/v1/runs/dev/", "/pulley/v1/runs/dev/controller1", "/pulley/v1/tokens/", "/pulley/v1/identities/")
		}
		for _, p := range prefixes {
			ops["get all of "+p] = clientv3.OpGet(p, clientv3.WithPrefix())
			ops["count all of "+p] = clientv3.OpGet(p, clientv3.WithPrefix(), clientv3.WithCountOnly())
			ops["delete all of "+p] = clientv3.OpDelete(p, clientv3.WithPrefix())
			ops["compare all of "+p] = clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(p).WithPrefix(), "=", 0)}, nil, nil)
		}
		for what, op := range ops {
			if err := do(t, c, op); !fleettest.Refusal(err) {
				t.Errorf("%s: %s is not refused: %v", user, what, err)
			}
		}
		for _, p := range prefixes {
			if err := watch(t, c, p, clientv3.WithPrefix()); !fleettest.Refusal(err) {
				t.Errorf("%s: watching all of %s is not refused: %v", user, p, err)
			}
		}
		one := func(_ any, err error) error { return err }
		within, cancel := context.WithTimeout(ctx, 30*time.Second)
		for what, err := range map[string]error{
			"UserAdd": one(c.UserAddWithOptions(within, "mallory", "", &clientv3.UserAddOptions{NoPassword: true})), "UserDelete": one(c.UserDelete(within, nodeB)),
			"UserList": one(c.UserList(within)), "UserGet": one(c.UserGet(within, nodeB)), "UserGrantRole": one(c.UserGrantRole(within, user, "root")),
			"UserRevokeRole": one(c.UserRevokeRole(within, nodeB, "pulley/node/dev/compute1")), "UserChangePassword": one(c.UserChangePassword(within, "root", "x")),
			"UserChangePassword of oneself": one(c.UserChangePassword(within, user, "x")),
			"RoleAdd":                       one(c.RoleAdd(within, "mallory")), "RoleDelete": one(c.RoleDelete(within, "pulley/nodes/dev")), "RoleList": one(c.RoleList(within)),
			"RoleGet": one(c.RoleGet(within, "pulley/node/dev/compute1")), "RoleGrantPermission": one(c.RoleGrantPermission(within, "pulley/nodes/dev", "/", "0", clientv3.PermissionType(clientv3.PermReadWrite))),
			"RoleRevokePermission": one(c.RoleRevokePermission(within, "pulley/nodes/dev", "/pulley/v1/releases/", "/pulley/v1/releases0")),
			"AuthDisable":          one(c.AuthDisable(within)), "AuthEnable": one(c.AuthEnable(within)),
			"Compact": one(c.Compact(within, 3)), "Defragment": one(c.Defragment(within, server.Endpoint)), "HashKV": one(c.HashKV(within, server.Endpoint, 0)),
			"AlarmDisarm": one(c.AlarmDisarm(within, &clientv3.AlarmMember{MemberID: 1, Alarm: 1})), "Snapshot": snapshot(within, c), "MoveLeader": one(c.MoveLeader(within, 1)),
			"MemberAdd": one(c.MemberAdd(within, []string{"http://127.0.0.1:1"})), "MemberRemove": one(c.MemberRemove(within, 1)), "MemberUpdate": one(c.MemberUpdate(within, 1, []string{"http://127.0.0.1:1"})),
			"MemberPromote": one(c.MemberPromote(within, 1)),
		} {
			if !fleettest.Refusal(err) {
				t.Errorf("%s: %s is not refused: %v", user, what, err)
			}
		}
		if user == fleettest.NodeA || user == nodeAOld {
			for what, err := range map[string]error{
				"ending another's lease":         one(c.Revoke(within, foreign.ID)),
				"writing with another's lease":   one(c.Put(within, "/pulley/v1/status/dev/controller1", "x", clientv3.WithLease(foreign.ID))),
				"in a transaction":               do(t, c, clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("/pulley/v1/status/dev/controller1", "x", clientv3.WithLease(foreign.ID))}, nil)),
				"writing a hold that has no end": one(c.Put(within, "/pulley/v1/environments/dev/holds/all", "x")),
			} {
				if !fleettest.Refusal(err) {
					t.Errorf("%s: %s is not refused: %v", user, what, err)
				}
			}
		}
		cancel()
	}
	if after := fleettest.Contents(t, server); !maps.Equal(before, after) {
		t.Errorf("something changed that was refused: %v became %v", before, after)
	}
	users, err := access.In(server.Admin()).Users(ctx)
	if err != nil || slices.Contains(users, "mallory") {
		t.Errorf("users are %v, %v", users, err)
	}
}

// A node whose grants lack one key of its tick can do nothing: one forbidden key fails the complete transaction.
func TestNodeHasAllRightsOfTick(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	admin, ctx := server.Admin(), t.Context()
	if err := errors.Join(access.In(admin).EnsureEnvironment(ctx, "dev"), access.In(admin).EnsureNode(ctx, "dev", "controller1", fleettest.NodeA), fleet.In(admin).Register(ctx, "dev", model.Host{Node: fleettest.ID.Node, Role: fleettest.ID.Role})); err != nil {
		t.Fatal(err)
	}
	node := server.DB(fleettest.NodeA)
	d, err := control.In(node).Desire(ctx, fleettest.ID)
	if err != nil || d.Host == nil {
		t.Fatalf("a tick's read: %+v, %v", d, err)
	}
	said := model.Status{Node: fleettest.ID.Node, Role: fleettest.ID.Role}
	if err := control.In(node).Admit(ctx, fleettest.ID, d, said); err != nil {
		t.Errorf("admission: %v", err)
	}
	if err := control.In(node).Report(ctx, fleettest.ID, said, []model.EncodedRun{{ID: "1", Bytes: []byte("x")}}, []string{"0"}); err != nil {
		t.Errorf("report: %v", err)
	}
	if err := control.In(node).PublishFacts(ctx, fleettest.ID, []byte("x")); err != nil {
		t.Errorf("facts: %v", err)
	}
	if err := fleet.In(node).Register(ctx, "dev", model.Host{Node: fleettest.ID.Node, Role: fleettest.ID.Role}); err == nil {
		t.Error("a node put itself on the list of hosts: with auth on that is serve's to do")
	}
}

func do(t *testing.T, c *clientv3.Client, op clientv3.Op) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := c.Do(ctx, op)
	return err
}

// watch opens a watch and returns etcd's refusal. Each watch has its own stream, which is closed with it: hundreds of
// cancelled watches on one stream can block it.
func watch(t *testing.T, c *clientv3.Client, key string, opts ...clientv3.OpOption) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	w := clientv3.NewWatcher(c)
	defer w.Close()
	heard := w.Watch(ctx, key, append(opts, clientv3.WithCreatedNotify())...)
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the watch of %s said nothing", key)
		case resp, ok := <-heard:
			switch err := resp.Err(); {
			case !ok:
				return fmt.Errorf("the watch of %s ended without a word", key)
			case err != nil && (strings.Contains(err.Error(), "permission denied") || strings.Contains(err.Error(), "user name not found")):
				return rpctypes.ErrPermissionDenied
			case err != nil || resp.Created:
				return err
			}
		}
	}
}

func snapshot(ctx context.Context, c *clientv3.Client) error {
	r, err := c.Snapshot(ctx)
	if err != nil {
		return err
	}
	_, err = r.Read(make([]byte, 1))
	return errors.Join(err, r.Close())
}

// ignoreMissing ignores etcd's error about a put that keeps the value of a missing key.
func ignoreMissing(err error) error {
	if errors.Is(err, rpctypes.ErrKeyNotFound) {
		return nil
	}
	return err
}

func restore(t *testing.T, server *etcdtest.Auth, key string) {
	t.Helper()
	if _, err := server.ClientOf(etcdtest.Serve).Put(t.Context(), key, "as it was"); err != nil {
		t.Fatal(err)
	}
}
