package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/pki"
	"pulley/internal/store/etcd"
)

// RemoveNode removes a node from the fleet. First it deletes the node's etcd users of all incarnations and its role:
// from then on etcd refuses its requests. Then one transaction records the removal in its identity. The same
// transaction deletes its entry of the host list, its holds, targets and assignment, its pre-created user, its first
// boot and notes about it. Its status and runs stay. Its machine record, if any, also stays and is marked as joined,
// because the machine still exists. It returns ErrNotFound if there was nothing to remove. It may be repeated after a
// crash at any point.
func (s *Joins) RemoveNode(ctx context.Context, ref environments.Ref, node string, r Removal) error {
	for try := 0; ; try++ {
		found, err := s.shutOut(ctx, ref.String(), node)
		if err == nil {
			err = s.takeOff(ctx, ref, node, r, found)
		}
		if err == nil || !errors.Is(err, etcd.ErrConflict) || try == 9 {
			if err != nil {
				err = fmt.Errorf("cannot remove node %s: %w", node, err)
			}
			return err
		}
	}
}

// shutOut deletes a node's users and its role, and reports whether there were any. It runs first: the guards of the
// transaction find users of a concurrent join, and the next round deletes them. It deletes the pre-created user's
// entry before all else. Otherwise, after an interruption, the entry would promise a deleted user to the next join.
func (s *Joins) shutOut(ctx context.Context, env, node string) (found bool, err error) {
	resp, err := s.db.Txn(ctx, nil, []clientv3.Op{clientv3.OpDelete(s.db.Keys.Env(env).Precreated(node))}, nil)
	if err != nil {
		return false, err
	}
	found = resp.Responses[0].GetResponseDeleteRange().Deleted > 0
	users, err := s.access.usersOf(ctx, env, node)
	if err != nil {
		return false, err
	}
	for _, user := range users {
		if err := s.access.DropUser(ctx, user); err != nil {
			return false, err
		}
	}
	return found || len(users) > 0, s.access.DropNodeRole(ctx, env, node)
}

// DropFormer deletes the users of all incarnations of a node except user. Interrupted joins may have left several. If
// the node now has another user, or none, nothing happens.
func (s *Identities) DropFormer(ctx context.Context, ref environments.Ref, node, user string) error {
	env := ref.String()
	// Users first, then the records that may claim them. A later join creates or takes a user outside this list, or
	// changes the records.
	users, err := s.access.usersOf(ctx, env, node)
	if err != nil {
		return err
	}
	reserve, _, err := etcd.Single[Precreated](ctx, s.db, s.db.Keys.Env(env).Precreated(node))
	if err != nil {
		return err
	}
	i, _, err := s.Get(ctx, ref, node)
	if err != nil || !i.Live() || i.User != user {
		return err
	}
	for _, former := range users {
		if former == user || reserve != nil && former == reserve.User {
			continue
		}
		if err := s.access.DropUser(ctx, former); err != nil {
			return err
		}
	}
	return nil
}

// usersOf lists the etcd users of all incarnations of a node.
func (s *Access) usersOf(ctx context.Context, env, node string) (users []string, err error) {
	all, err := s.Users(ctx)
	if err != nil {
		return nil, err
	}
	for _, user := range all {
		if n, ok := s.nodeUser(user, env); ok && n == node {
			users = append(users, user)
		}
	}
	return users, nil
}

// nodeUser returns the node that a user of etcd belongs to, in any incarnation.
func (s *Access) nodeUser(user, env string) (node string, ok bool) {
	n, err := pki.ParseName(user)
	return n.Subject, err == nil && n.Kind == pki.KindNode && n.Prefix == s.db.Prefix() && n.Environment == env
}

// takeOff is the transaction of a removal. It returns ErrConflict if the node joined, or was changed, since it was
// read.
func (s *Joins) takeOff(ctx context.Context, ref environments.Ref, node string, r Removal, found bool) error {
	env := ref.String()
	identity, identityAt, err := s.identities.Get(ctx, ref, node)
	if err != nil {
		return err
	}
	host, hostAt, err := etcd.Single[agent.Host](ctx, s.db, s.db.Keys.Env(env).Host(node))
	if err != nil {
		return err
	}
	reserve, reserveAt, err := etcd.Single[Precreated](ctx, s.db, s.db.Keys.Env(env).Precreated(node))
	if err != nil {
		return err
	}
	boots, _, err := s.boots.List(ctx, ref)
	if err != nil {
		return err
	}
	hold, target := s.db.Keys.Env(env).Hold(etcd.Scope{Node: node}), s.db.Keys.Env(env).Target(etcd.Scope{Node: node})
	gone := []string{s.db.Keys.Env(env).Host(node), s.db.Keys.Env(env).Precreated(node), hold, target, s.db.Keys.Env(env).Assignment(node), s.db.Keys.Env(env).Flood(node)}
	for machine, b := range boots {
		mine := identity.Live() && machine == identity.Machine || host != nil && host.MachineID != "" && machine == host.MachineID
		if (b.Node == node || mine) && len(gone) < maxOps/2 {
			gone = append(gone, s.db.Keys.Env(env).FirstBoot(machine))
		}
	}
	var ops []clientv3.Op
	for _, key := range gone {
		ops = append(ops, clientv3.OpDelete(key))
	}
	deletes := len(ops)
	ops = append(ops, etcd.Touch(s.db.Keys.Env(env).HostsHead()), etcd.Touch(s.db.Keys.Targets()))
	var users []string // of a join, or pre-created, since shutOut
	if identity.Live() {
		users = []string{identity.User, identity.Replaces}
	}
	if reserve != nil {
		users = append(users, reserve.User)
	}
	// A node that left by itself may return with its old token, and others may take its name. This removal forbids
	// both.
	if identity != nil && (identity.Removed == nil || host != nil || identity.Removed.Left && !r.Left) {
		identity.User, identity.Replaces, identity.Clone, identity.Removed = "", "", nil, &r
		tombstone, err := etcd.Encode(identity)
		if err != nil {
			return err
		}
		ops, found = append(ops, clientv3.OpPut(s.db.Keys.Env(env).Identity(node), tombstone)), true
	}
	cmps := []clientv3.Cmp{etcd.Same(s.db.Keys.Env(env).Identity(node), identityAt), etcd.Same(s.db.Keys.Env(env).Host(node), hostAt), etcd.Same(s.db.Keys.Env(env).Precreated(node), reserveAt)}
	if host != nil {
		more, joined, err := s.noteJoined(ctx, env, node)
		if err != nil {
			return err
		}
		cmps, ops = append(cmps, more...), append(ops, joined...)
	}
	resp, err := s.db.Txn(ctx, cmps, ops, nil)
	switch {
	case err != nil:
		return err
	case !resp.Succeeded:
		return etcd.ErrConflict
	}
	for _, user := range users {
		if user == "" {
			continue
		}
		if err := s.access.DropUser(ctx, user); err != nil {
			return err
		}
	}
	for i := range deletes {
		found = found || resp.Responses[i].GetResponseDeleteRange().Deleted > 0
	}
	if !found {
		return etcd.ErrNotFound
	}
	return nil
}

// Forgotten counts the deleted parts of a node.
type Forgotten struct {
	Keys  int64 // statuses and runs that were deleted
	Room  bool  // etcd was full, and space was freed
	Bytes int64 // reduction of etcd's files
}

// noteJoined marks the machine record as joined if an interrupted apply did not see the join. The host list will no
// longer show it.
func (s *Joins) noteJoined(ctx context.Context, env, node string) (cmps []clientv3.Cmp, ops []clientv3.Op, err error) {
	key := s.db.Keys.Env(env).MachineRecord(node)
	r, at, err := etcd.Single[booked](ctx, s.db, key)
	if err != nil || r == nil || r.Phase != machines.Made || r.Joined {
		return nil, nil, err
	}
	r.Joined = true
	value, err := etcd.Encode(*r)
	return []clientv3.Cmp{etcd.Same(key, at)}, []clientv3.Op{clientv3.OpPut(key, value)}, err
}

// ForgetNode is RemoveNode, and also deletes the node's status and runs. If etcd is full, for example after a flood,
// it also frees space. It revokes the node's access before any deletion: the node cannot write its reports again.
func (s *Joins) ForgetNode(ctx context.Context, ref environments.Ref, node string, r Removal) (Forgotten, error) {
	fail := func(f Forgotten, err error) (Forgotten, error) {
		return f, fmt.Errorf("cannot forget node %s: %w", node, err)
	}
	env := ref.String()
	known, err := s.shutOut(ctx, env, node)
	if err != nil {
		return fail(Forgotten{}, err)
	}
	f, err := s.forget(ctx, env, node)
	if err != nil {
		return fail(f, err)
	}
	full, err := s.cluster.full(ctx)
	if err == nil && full {
		f.Room = true
		f.Bytes, err = s.cluster.MakeRoom(ctx)
	}
	if err != nil {
		return fail(f, err)
	}
	if err := s.RemoveNode(ctx, ref, node, r); err != nil && !(errors.Is(err, etcd.ErrNotFound) && (known || f.Keys > 0)) {
		return f, err
	}
	return f, nil
}

// forget deletes a node's reports. It contains no puts: a full etcd accepts it.
func (s *Joins) forget(ctx context.Context, env, node string) (f Forgotten, err error) {
	resp, err := s.db.Txn(ctx, nil, []clientv3.Op{
		clientv3.OpDelete(s.db.Keys.Env(env).Status(node)), clientv3.OpDelete(s.db.Keys.Env(env).Runs(node), clientv3.WithPrefix()),
	}, nil)
	if err != nil {
		return f, err
	}
	for _, r := range resp.Responses {
		f.Keys += r.GetResponseDeleteRange().Deleted
	}
	return f, nil
}

// full reports whether etcd has raised its alarm about missing space.
func (s *Cluster) full(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.db.Timeout)
	defer cancel()
	resp, err := s.db.Client.AlarmList(ctx)
	if err != nil {
		return false, s.db.Explain(err)
	}
	for _, a := range resp.Alarms {
		if strings.Contains(a.Alarm.String(), "NOSPACE") {
			return true, nil
		}
	}
	return false, nil
}
