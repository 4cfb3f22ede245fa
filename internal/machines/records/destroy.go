package records

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/access"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
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

// Destroy deletes every key of an environment, and the etcd users and roles of its nodes. It deletes nothing else in
// etcd. It refuses while a machine record exists: machines are retired first. Unless hosts is set, it also refuses
// while the host list has entries. After an interruption, the next call resumes. No apply is possible afterwards.
//
// It deletes the environment and its join tokens first: from then on no machine joins. With the environment it writes the record of the
// destruction: until that is finished no environment of this name is stored, which would take over the rest. An old certificate stays
// invalid even if an environment of this name is created again: its user is deleted, and the node's next user has
// another incarnation.
func (a *Applying) Destroy(ctx context.Context, hosts bool) (d Destroyed, err error) {
	ctx, cancel := a.Context(ctx)
	defer cancel()
	if err = a.machines.access.MayRemove(ctx); err == nil {
		err = a.destroyable(ctx, hosts)
	}
	var record Destruction
	if err == nil {
		record, err = a.beginDestroy(ctx, &d)
	}
	for round := 0; err == nil; round++ {
		before := d
		if err = a.destroy(ctx, &d); d == before {
			break
		}
		if err == nil && round == destroyRounds {
			err = errors.New("something keeps writing\nstop the agents on its machines, and run this command again")
		}
	}
	if err == nil {
		err = a.commit(ctx, record.finished(a.keys)) // the lock is its guard
	}
	return d, etcd.Wrap(a.ended(err), "cannot destroy environment %s", a.ref)
}

// Destruction is the record of a destroyed environment. Its machines may run on and return to the next environment of the name: the epochs
// of that one begin above the ones that they have seen. Otherwise they would take its rollouts for old ones, and its signatures too.
type Destruction struct {
	Epoch      model.Epoch `json:"epoch"` // the highest of all environments of this name
	Unfinished bool        `json:"unfinished,omitempty"`
	At         time.Time   `json:"at"`
	By         string      `json:"by"`
}

// finished ends a destruction. Nothing has to be kept of an environment that had no change.
func (d Destruction) finished(k etcd.EnvKeys) *etcd.Batch {
	if d.Unfinished = false; d.Epoch == 0 {
		return etcd.If().Delete(k.Destroyed())
	}
	return etcd.If().Put(k.Destroyed(), d)
}

// beginDestroy deletes the environment itself.
func (a *Applying) beginDestroy(ctx context.Context, d *Destroyed) (Destruction, error) {
	if err := a.giveUpPresigned(ctx, d); err != nil { // as long as the environment names the CA
		return Destruction{}, err
	}
	record, err := a.machines.destruction(ctx, a.ref)
	if err != nil {
		return record, err
	}
	if record.Unfinished {
		d.Keys++
	}
	reached, err := a.reached(ctx)
	if err != nil {
		return record, err
	}
	record = Destruction{Epoch: max(record.Epoch, reached), Unfinished: true, At: a.now(), By: a.by}
	return record, a.delete(ctx, d, etcd.If().Delete(a.keys.Spec()).Put(a.keys.Destroyed(), record))
}

// reached returns the highest epoch of the environment, by its gate and by its newest change.
func (a *Applying) reached(ctx context.Context) (model.Epoch, error) {
	gate, _, err := etcd.Single[model.Gate](ctx, a.db, a.keys.Gate())
	if err != nil && !errors.As(err, new(*etcd.UnreadableError)) {
		return 0, err
	}
	highest, err := targets.NewestEpoch(ctx, a.db, a.keys)
	if !targets.PlausibleEpoch(highest, a.now()) {
		highest = 0
	}
	if gate != nil && targets.PlausibleEpoch(gate.Epoch, a.now()) {
		highest = max(gate.Epoch, highest)
	}
	return highest, err
}

// destruction reads the record of the last destruction of an environment of this name; zero: there was none.
func (s *Machines) destruction(ctx context.Context, ref model.Ref) (d Destruction, err error) {
	_, err = s.db.Read(ctx, map[string]int64{}, etcd.Point{Key: s.db.Env(ref).Destroyed(), Read: etcd.Into(&d)})
	return d, err
}

// Destroying reports whether a destruction of the environment has begun and is not finished.
func (s *Machines) Destroying(ctx context.Context, ref model.Ref) (bool, error) {
	d, err := s.destruction(ctx, ref)
	return d.Unfinished, err
}

// destroyable refuses to forget existing machines.
func (a *Applying) destroyable(ctx context.Context, hosts bool) error {
	count := func(prefix string) (int64, error) {
		resp, err := a.db.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return 0, err
		}
		return resp.Count, nil
	}
	records, err := count(a.keys.MachineRecords())
	if err != nil {
		return err
	}
	if records > 0 {
		return fmt.Errorf("it still has %d machines that pulley created\n`pulley env destroy` retires them first, and names them", records)
	}
	listed, err := count(a.keys.Hosts())
	if err != nil || listed == 0 || hosts {
		return err
	}
	return fmt.Errorf("its host list still has %d hosts\n"+
		"their machines would run without a record: remove them with `pulley nodes remove NODE -e ENVIRONMENT`, or give --forget-hosts", listed)
}

// destroy deletes each other part of an environment once.
func (a *Applying) destroy(ctx context.Context, d *Destroyed) error {
	env, k, s := a.ref.String(), a.keys, a.machines
	below := func(prefix string) func() error { return func() error { return a.deleteBelow(ctx, d, prefix) } }
	listed := func(list func(context.Context, string) ([]string, error)) func() error {
		return func() error {
			keys, err := list(ctx, env)
			if err != nil {
				return err
			}
			return a.deleteKeys(ctx, d, keys...)
		}
	}
	steps := []func() error{
		listed(s.tokens.Of),
		below(k.Precreated("")),
		below(k.Identities()), // before the users: a join that creates a user later finds no identity, and deletes it
		func() error { return a.destroyUsers(ctx, d) },
	}
	for _, prefix := range k.Elsewhere() {
		steps = append(steps, below(prefix))
	}
	steps = append(steps, listed(s.notices.Of), below(k.Root())) // last: a resumed destroy needs these keys
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// giveUpPresigned records that the certificates of machines which will not join, and of nodes that are in the fleet, are to be cleaned.
func (a *Applying) giveUpPresigned(ctx context.Context, d *Destroyed) error {
	var at access.Places
	read := map[string]int64{}
	_, err := a.db.Read(ctx, read, at.Points(a.keys)...)
	if err != nil || read[a.keys.Spec()] == 0 {
		return err
	}
	all, _, err := access.IdentitiesIn(a.db).AllPresigned(ctx, a.ref)
	for node := range all {
		if err == nil {
			err = a.machines.joins.GiveUpPresigned(ctx, a.ref, node, access.Removal{At: a.now(), By: a.by})
			d.Keys++
		}
	}
	if err != nil {
		return err
	}
	return a.recordCleanups(ctx, at)
}

// recordCleanups records what Puppet servers have of the nodes that are still in the fleet: the environment is destroyed with them.
func (a *Applying) recordCleanups(ctx context.Context, at access.Places) error {
	nodes := map[string]bool{}
	identities, _, err := access.IdentitiesIn(a.db).List(ctx, a.ref)
	for node, i := range identities {
		nodes[node] = i.Live()
	}
	if err == nil {
		err = a.db.Scan(ctx, a.keys.Hosts(), func(rest string, _ *etcd.KV) error {
			nodes[etcd.Unescape(rest)] = true
			return nil
		}, clientv3.WithKeysOnly())
	}
	for node, left := range nodes {
		identity := identities[node]
		cleanup := at.Cleanup(node, &identity, access.Removal{At: a.now(), By: a.by})
		if err != nil || !left || cleanup == nil {
			continue
		}
		// It replaces that of an interrupted destruction, or of an earlier removal: serve may be about to delete it, because the node is there.
		err = etcd.Update(ctx, a.db, a.keys.Cleanup(node), a.commit, func(_ *access.Cleanup, b *etcd.Batch) error {
			b.Put(a.keys.Cleanup(node), cleanup)
			return nil
		})
	}
	return err
}

// destroyUsers deletes the users of all the environment's nodes, then each node's role, then the shared role.
func (a *Applying) destroyUsers(ctx context.Context, d *Destroyed) error {
	access, env := a.machines.access, a.ref.String()
	users, err := access.UsersOfEnvironment(ctx, env)
	if err != nil {
		return err
	}
	for _, user := range users {
		if err := access.DropUser(ctx, user.String()); err != nil {
			return err
		}
		d.Users++
	}
	roles, err := access.RolesOfNodes(ctx, env)
	if err != nil {
		return err
	}
	for _, role := range roles {
		if err := access.DropRole(ctx, role); err != nil {
			return err
		}
		d.Roles++
	}
	return nil
}

// deleteKeys deletes keys without comparing their contents.
func (a *Applying) deleteKeys(ctx context.Context, d *Destroyed, keys ...string) error {
	for batch := range slices.Chunk(keys, etcd.MaxOps-1) {
		if err := a.delete(ctx, d, etcd.If().Delete(batch...)); err != nil {
			return err
		}
	}
	return nil
}

// deleteBelow deletes all keys that begin with a prefix, except the lock itself, which Close deletes.
func (a *Applying) deleteBelow(ctx context.Context, d *Destroyed, prefix string) error {
	from := prefix
	if lock := a.lock.Key(); strings.HasPrefix(lock, prefix) {
		if err := a.deleteRange(ctx, d, from, lock); err != nil {
			return err
		}
		from = lock + "\x00"
	}
	return a.deleteRange(ctx, d, from, clientv3.GetPrefixRangeEnd(prefix))
}

// deleteRange deletes the keys from from to before end in batches: etcd answers no request during a deletion.
func (a *Applying) deleteRange(ctx context.Context, d *Destroyed, from, end string) error {
	for {
		resp, err := a.db.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(destroyBatch), clientv3.WithKeysOnly())
		if err != nil || len(resp.Kvs) == 0 {
			return err
		}
		next := string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		if err := a.delete(ctx, d, etcd.If().Op(clientv3.OpDelete(from, clientv3.WithRange(next)))); err != nil {
			return err
		}
		from = next
	}
}

func (a *Applying) delete(ctx context.Context, d *Destroyed, b *etcd.Batch) error {
	resp, err := a.run(ctx, b)
	if err != nil {
		return err
	}
	for _, r := range resp.Responses {
		d.Keys += r.GetResponseDeleteRange().GetDeleted()
	}
	return nil
}

// PartsOf counts what a destruction of an environment would delete, also of one that is not stored, or was destroyed in
// part. Users and roles count if this connection may read them.
func (s *Machines) PartsOf(ctx context.Context, ref model.Ref) (d Destroyed, err error) {
	env, k := ref.String(), s.db.Env(ref)
	listed := func(all []string, err error) error { d.Keys += int64(len(all)); return err }
	allowed := func(n *int, found int, err error) error {
		if *n = found; errors.Is(err, rpctypes.ErrPermissionDenied) {
			return nil
		}
		return err
	}
	counts := []func() error{
		func() error { return listed(s.tokens.Of(ctx, env)) },
		func() error { return listed(s.notices.Of(ctx, env)) },
		func() error {
			users, err := s.access.UsersOfEnvironment(ctx, env)
			return allowed(&d.Users, len(users), err)
		},
		func() error { roles, err := s.access.RolesOfNodes(ctx, env); return allowed(&d.Roles, len(roles), err) },
	}
	for _, prefix := range append(k.Elsewhere(), k.Root(), k.Precreated(""), k.Identities()) {
		counts = append(counts, func() error {
			resp, err := s.db.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
			if err == nil {
				d.Keys += resp.Count
			}
			return err
		})
	}
	counts = append(counts, func() error {
		unfinished, err := s.Destroying(ctx, ref)
		if unfinished {
			d.Keys++
		}
		return err
	})
	for _, count := range counts {
		if err := count(); err != nil {
			return d, etcd.Wrap(err, "cannot list the parts of %s", ref)
		}
	}
	return d, nil
}

// Recorded counts the machine records of an environment.
func (s *Machines) Recorded(ctx context.Context, ref model.Ref) (int64, error) {
	resp, err := s.db.Get(ctx, s.db.Env(ref).MachineRecords(), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, etcd.Wrap(err, "cannot count the machines of %s", ref)
	}
	return resp.Count, nil
}
