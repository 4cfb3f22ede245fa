package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
)

// Bounds of a destruction.
const (
	destroyBatch  = 1000 // keys in one deletion
	destroyRounds = 5    // searches for keys that appeared meanwhile
)

// Destroyed counts the deleted parts of an environment.
type Destroyed struct {
	Keys  int64 // in etcd, including tokens and notices
	Users int   // etcd users of its nodes
	Roles int
}

// DestroyEnvironment deletes every key of an environment, and the etcd users and roles of its nodes. It deletes
// nothing else in etcd. It refuses while a machine record exists: machines are retired first. Unless hosts is set, it
// also refuses while the host list has entries. After an interruption, the next call resumes.
//
// It deletes the environment and its join tokens first: from then on no machine joins. An old certificate stays
// invalid even if an environment of this name is created again: its user is deleted, and the node's next user has
// another incarnation.
func (s *Machines) DestroyEnvironment(ctx context.Context, ref environments.Ref, by string, hosts bool) (Destroyed, error) {
	a, err := s.BeginApply(ctx, ref, by)
	if err != nil {
		return Destroyed{}, err
	}
	d, err := a.Destroy(ctx, hosts)
	return d, errors.Join(err, a.Close())
}

// Destroy is DestroyEnvironment for the holder of the apply lock. No apply is possible afterwards.
func (a *Applying) Destroy(ctx context.Context, hosts bool) (d Destroyed, err error) {
	ctx, cancel := a.Context(ctx)
	defer cancel()
	if err = a.machines.access.MayRemove(ctx); err == nil {
		err = a.destroyable(ctx, hosts)
	}
	for round := 0; err == nil; round++ {
		var again bool
		if again, err = a.destroy(ctx, &d); !again {
			break
		}
		if round == destroyRounds {
			err = errors.New("something keeps writing\nstop the agents on its machines, and do it again")
		}
	}
	if err != nil {
		return d, fmt.Errorf("cannot destroy environment %s: %w", a.ref, a.ended(err))
	}
	return d, nil
}

// destroyable refuses to forget existing machines.
func (a *Applying) destroyable(ctx context.Context, hosts bool) error {
	for _, is := range []struct {
		prefix, what, next string
		passed             bool
	}{
		{a.machines.db.Keys.Env(a.ref.String()).MachineRecords(), "machines that pulley had made", "retire them first: `pulley env destroy` does, and names them", false},
		{a.machines.db.Keys.Env(a.ref.String()).Hosts(), "hosts on its list", "they run on, and are known to nobody then: `pulley nodes remove`, or agree to that with --forget-hosts", hosts},
	} {
		resp, err := a.machines.db.Get(ctx, is.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return err
		}
		if resp.Count > 0 && !is.passed {
			return fmt.Errorf("there are still %s: %d\n%s", is.what, resp.Count, is.next)
		}
	}
	return nil
}

// destroy deletes each part of an environment once, and reports whether there was any.
func (a *Applying) destroy(ctx context.Context, d *Destroyed) (found bool, err error) {
	before := *d
	env, k := a.ref.String(), a.machines.db.Keys
	steps := []func() error{
		func() error { return a.deleteKeys(ctx, d, k.Env(env).Spec()) },
		func() error { return a.destroyTokens(ctx, d) },
		func() error { return a.deleteBelow(ctx, d, k.Env(env).Precreated("")) },
		// Before the users: a join that creates a user later finds no identity for it, and deletes the user.
		func() error { return a.deleteBelow(ctx, d, k.Env(env).Identities()) },
		func() error { return a.destroyUsers(ctx, d) },
	}
	for _, prefix := range reportedBy(k, env) {
		steps = append(steps, func() error { return a.deleteBelow(ctx, d, prefix) })
	}
	steps = append(steps,
		func() error { return a.destroyNotices(ctx, d) },
		func() error { return a.deleteBelow(ctx, d, k.Env(env).Root()) }, // last: a resumed destroy needs these keys
	)
	for _, step := range steps {
		if err := step(); err != nil {
			return false, err
		}
	}
	return *d != before, nil
}

func (a *Applying) destroyTokens(ctx context.Context, d *Destroyed) error {
	keys, err := a.machines.tokens.tokensOf(ctx, a.ref.String())
	if err != nil {
		return err
	}
	return a.deleteKeys(ctx, d, keys...)
}

func (a *Applying) destroyNotices(ctx context.Context, d *Destroyed) error {
	keys, err := a.machines.notices.noticesOf(ctx, a.ref.String())
	if err != nil {
		return err
	}
	return a.deleteKeys(ctx, d, keys...)
}

// destroyUsers deletes the users of all the environment's nodes, then each node's role, then the shared role.
func (a *Applying) destroyUsers(ctx context.Context, d *Destroyed) error {
	s := a.machines
	users, roles, err := s.access.accountsOf(ctx, a.ref.String())
	if err != nil {
		return err
	}
	for _, user := range users {
		if err := s.access.DropUser(ctx, user); err != nil {
			return err
		}
		d.Users++
	}
	for _, role := range roles {
		if err := s.access.dropRole(ctx, role); err != nil {
			return err
		}
		d.Roles++
	}
	return nil
}

// deleteKeys deletes keys without comparing their contents.
func (a *Applying) deleteKeys(ctx context.Context, d *Destroyed, keys ...string) error {
	for batch := range slices.Chunk(keys, maxOps-1) {
		ops := make([]clientv3.Op, len(batch))
		for i, key := range batch {
			ops[i] = clientv3.OpDelete(key)
		}
		if err := a.delete(ctx, d, ops...); err != nil {
			return err
		}
	}
	return nil
}

// deleteBelow deletes all keys that begin with a prefix, except the lock itself: Close deletes that.
func (a *Applying) deleteBelow(ctx context.Context, d *Destroyed, prefix string) error {
	end := clientv3.GetPrefixRangeEnd(prefix)
	if !strings.HasPrefix(a.lock.Key(), prefix) {
		return a.deleteRange(ctx, d, prefix, end)
	}
	if err := a.deleteRange(ctx, d, prefix, a.lock.Key()); err != nil {
		return err
	}
	return a.deleteRange(ctx, d, a.lock.Key()+"\x00", end)
}

// deleteRange deletes the keys from from to before end in batches: etcd answers no request during a deletion.
func (a *Applying) deleteRange(ctx context.Context, d *Destroyed, from, end string) error {
	for {
		resp, err := a.machines.db.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(destroyBatch), clientv3.WithKeysOnly())
		if err != nil || len(resp.Kvs) == 0 {
			return err
		}
		next := string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		if err := a.delete(ctx, d, clientv3.OpDelete(from, clientv3.WithRange(next))); err != nil {
			return err
		}
		from = next
	}
}

func (a *Applying) delete(ctx context.Context, d *Destroyed, ops ...clientv3.Op) error {
	resp, err := a.write(ctx, nil, ops...)
	if err != nil {
		return err
	}
	for _, r := range resp.Responses {
		d.Keys += r.GetResponseDeleteRange().Deleted
	}
	return nil
}
