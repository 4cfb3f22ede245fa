package access

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/model"
)

// RecordLeft returns what the machine record of a node becomes with its removal; nil: it stays as it is. Package records has it.
type RecordLeft func(record *etcd.KV) (any, error)

// RemoveNode removes a node from the fleet. First it deletes the node's etcd users of all incarnations and its role:
// from then on etcd refuses its requests. Then one transaction records the removal in its identity. The same
// transaction deletes its entry of the host list, its exports, its holds, targets and assignment, the confirmation of its retirement,
// its pre-created user, its first boot and notes about it, and records what Puppet servers have of it. Its status and runs stay. Its machine record, if any, also stays and is marked as joined,
// because the machine still exists. It returns ErrNotFound if there was nothing to remove. It may be repeated after a
// crash at any point.
func (s *Joins) RemoveNode(ctx context.Context, ref model.Ref, node string, r Removal, left RecordLeft) error {
	shut := false
	err := etcd.Retry(ctx, func() error {
		found, err := s.shutOut(ctx, ref, node)
		if shut = shut || found; err == nil {
			err = s.takeOff(ctx, ref, node, r, left, found)
		}
		return err
	})
	return etcd.Wrap(unfinished(err, shut), "cannot remove node %s", node)
}

// unfinished adds to the error of a removal that the node is shut out already, and how to remove the rest.
func unfinished(err error, shut bool) error {
	if err == nil || !shut || errors.Is(err, etcd.ErrFull) || errors.Is(err, etcd.ErrNotFound) { // the command knows more of a full etcd
		return err
	}
	return fmt.Errorf("%w\nrepeat the command to remove the rest: the node's certificate is rejected already", err)
}

// shutOut deletes a node's users and its role, and reports whether there were any. It runs first: the guards of the
// transaction find users of a concurrent join, and the next round deletes them. It deletes the pre-created user's
// entry before all else. Otherwise, after an interruption, the entry would promise a deleted user to the next join.
func (s *Joins) shutOut(ctx context.Context, ref model.Ref, node string) (found bool, err error) {
	if node == "" { // the keys of "" are those of all nodes: the hold and the target of the environment
		return false, etcd.ErrNotFound
	}
	env := ref.String()
	resp, err := s.db.Run(ctx, etcd.If().Delete(s.db.Env(ref).Precreated(node)))
	if err != nil {
		return false, err
	}
	users, err := s.access.usersOf(ctx, env, node)
	if err == nil {
		err = s.access.dropUsers(ctx, users, "")
	}
	if err != nil {
		return false, err
	}
	err = s.access.DropNodeRole(ctx, env, node)
	return resp.Responses[0].GetResponseDeleteRange().Deleted > 0 || len(users) > 0, err
}

// takeOff is the transaction of a removal. It returns ErrConflict if the node joined, or was changed, since it was
// read.
func (s *Joins) takeOff(ctx context.Context, ref model.Ref, node string, r Removal, left RecordLeft, found bool) error {
	k, read := s.db.Env(ref), map[string]int64{}
	var identity *Identity
	var host *model.Host
	var reserve *Precreated
	var record any
	var made bool // a certificate of Puppet's CA, for its next machine
	var at Places
	var unreadable error // only an entry of the host list needs the machine record
	_, err := s.db.Read(ctx, read, append(at.Points(k),
		etcd.Point{Key: k.Identity(node), Read: etcd.Into(&identity)},
		etcd.Point{Key: k.Host(node), Read: etcd.Into(&host)},
		etcd.Point{Key: k.Precreated(node), Read: etcd.Into(&reserve)},
		etcd.Point{Key: k.Presigned(node), Read: func(*etcd.KV) error { made = true; return nil }},
		etcd.Point{Key: k.Cleanup(node), Read: func(*etcd.KV) error { return nil }},
		etcd.Point{Key: k.MachineRecord(node), Read: func(kv *etcd.KV) error {
			record, unreadable = left(kv)
			return nil
		}},
	)...)
	if err == nil && host != nil {
		err = unreadable
	}
	if err != nil {
		return err
	}
	boots, _, err := s.boots.List(ctx, ref)
	if err != nil {
		return err
	}
	var own []string // first boots
	gone := k.Leaving(node)
	for key, b := range boots {
		mine := b.Node == node
		if b.Node == "" { // a copy of the machine may have its machine id
			mine = identity.Live() && key == BootKey(identity.Machine, identity.FirstBoot) || !identity.Live() && host != nil && host.MachineID != "" && b.Machine == host.MachineID
		}
		if mine {
			own = append(own, k.FirstBoot(key))
		}
	}
	own, late := own[:min(len(own), etcd.MaxOps/2)], own[min(len(own), etcd.MaxOps/2):] // late: what etcd does not take in the transaction
	gone = append(gone, own...)
	var users []string // of a join, or pre-created, since shutOut
	if identity.Live() {
		users = []string{identity.User, identity.Replaces}
	}
	if reserve != nil {
		users = append(users, reserve.User)
	}
	b := etcd.If(etcd.Unchanged(read)...).Delete(gone...).Touch(k.HostsHead()).Touch(s.db.Keys.Targets())
	if cleanup := at.Cleanup(node, identity, r); cleanup != nil && (host != nil && read[k.Spec()] > 0 || identity.Live() || made) {
		b.Put(k.Cleanup(node), cleanup)
	}
	// A node that left by itself may return with its old token, and others may take its name. This removal forbids
	// both.
	if identity != nil && (identity.Removed == nil || host != nil || identity.Removed.Left && !r.Left) {
		identity.User, identity.Replaces, identity.Duplicate, identity.Removed = "", "", nil, &r
		b.Put(k.Identity(node), identity)
		found = true
	}
	if host != nil && record != nil {
		b.Put(k.MachineRecord(node), record)
	}
	resp, err := s.db.Run(ctx, b)
	switch {
	case err != nil:
		return err
	case !resp.Succeeded:
		return etcd.ErrConflict
	}
	for part := range slices.Chunk(late, etcd.MaxOps) { // of a node that is gone: no guard; the removal may be repeated
		if _, err := s.db.Run(ctx, etcd.If().Delete(part...)); err != nil {
			return err
		}
	}
	for _, user := range users {
		if user == "" {
			continue
		}
		if err := s.access.DropUser(ctx, user); err != nil {
			return err
		}
	}
	for i := range gone {
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

// ForgetNode is RemoveNode, and also deletes the node's status and runs. If etcd is full, for example after a flood,
// it also frees space. It revokes the node's access before any deletion: the node cannot write its reports again.
func (s *Joins) ForgetNode(ctx context.Context, ref model.Ref, node string, r Removal, left RecordLeft) (f Forgotten, err error) {
	known, err := s.shutOut(ctx, ref, node)
	shut := known
	if err == nil {
		f.Keys, err = s.forget(ctx, ref, node)
	}
	if err == nil {
		var dropped bool
		dropped, err = s.dropUnnamed(ctx, ref, node)
		known = known || dropped
	}
	var alarms []cluster.Alarm
	if err == nil {
		alarms, err = s.cluster.Alarms(ctx)
	}
	if err == nil && slices.Contains(alarms, cluster.AlarmNoSpace) {
		f.Room = true
		f.Bytes, err = s.cluster.MakeRoom(ctx)
	}
	if err != nil {
		return f, fmt.Errorf("cannot forget node %s: %w", node, unfinished(err, shut))
	}
	if err := s.RemoveNode(ctx, ref, node, r, left); err != nil && !(errors.Is(err, etcd.ErrNotFound) && (known || f.Keys > 0)) {
		return f, unfinished(err, shut)
	}
	return f, nil
}

// dropUnnamed deletes from the record of an earlier removal what failed at Puppet servers that the environment no longer names, and the record if
// they are not known because the environment no longer exists.
func (s *Joins) dropUnnamed(ctx context.Context, ref model.Ref, node string) (dropped bool, err error) {
	var at Places
	key, spec, read := s.db.Env(ref).Cleanup(node), s.db.Env(ref).Spec(), map[string]int64{}
	if _, err := s.db.Read(ctx, read, at.Points(s.db.Env(ref))...); err != nil || at.spec == nil && read[spec] > 0 {
		return false, err
	}
	err = etcd.Update(ctx, s.db, key, s.db.Commit, func(old *Cleanup, b *etcd.Batch) error {
		dropped = false
		if old == nil {
			return nil
		}
		left := *old
		left.Steps = slices.DeleteFunc(slices.Clone(old.Steps), func(one CleanupStep) bool {
			return at.spec == nil && old.Unread() || at.spec != nil && one.Problem != "" && !at.spec.Puppet.Uses(one.URL)
		})
		if dropped = len(left.Steps) < len(old.Steps); !dropped {
			return nil
		}
		b.If(etcd.Same(spec, read[spec]))
		if len(left.Steps) == 0 {
			b.Delete(key)
		} else {
			b.Put(key, left)
		}
		return nil
	})
	return dropped, err
}

// forget deletes a node's reports, and returns the number of their keys. It contains no puts: a full etcd accepts it.
func (s *Joins) forget(ctx context.Context, ref model.Ref, node string) (keys int64, err error) {
	k := s.db.Env(ref)
	resp, err := s.db.Run(ctx, etcd.If().Delete(k.Status(node), k.Facts(node)).Op(clientv3.OpDelete(k.Runs(node), clientv3.WithPrefix())))
	if err != nil {
		return 0, err
	}
	for _, r := range resp.Responses {
		keys += r.GetResponseDeleteRange().Deleted
	}
	return keys, nil
}

// Unlock frees a node's name from the machine that is in its first boot under it. It also deletes the note of a
// duplicate machine under the name, which needs an administrator. It returns ErrNotFound if there was neither.
func (s *Joins) Unlock(ctx context.Context, ref model.Ref, node string, r Revoked) ([]FirstBoot, error) {
	var freed []FirstBoot
	all, _, err := s.boots.List(ctx, ref)
	if err != nil {
		return nil, err
	}
	for key, b := range all {
		if b.Node != node || !b.Locks() {
			continue
		}
		err := etcd.Retry(ctx, func() error { // after a report of the machine
			now, revision, err := s.boots.Get(ctx, ref, key)
			if err != nil || !now.Locks() || now.Node != node {
				return err
			}
			now.Unlocked, now.Turns = &r, 0
			now.EndTurn()
			if err = s.boots.Put(ctx, ref, *now, revision); err == nil {
				freed = append(freed, *now)
			}
			return err
		})
		if err != nil {
			return freed, fmt.Errorf("cannot free the name %s: %w", node, err)
		}
	}
	i, revision, err := s.identities.Get(ctx, ref, node)
	switch {
	case err != nil:
	case i != nil && i.Duplicate != nil:
		i.Duplicate = nil
		err = s.identities.Put(ctx, ref, *i, revision)
		if len(freed) > 0 && errors.Is(err, rpctypes.ErrPermissionDenied) {
			err = nil // the operator's part is done; only an administrator can delete the note of the duplicate machine
		}
	case len(freed) == 0:
		err = etcd.ErrNotFound
	}
	return freed, etcd.Wrap(err, "cannot free the name %s", node)
}
