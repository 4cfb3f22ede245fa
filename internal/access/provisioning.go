package access

import (
	"context"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/model"
)

// Provisioning is what the machines of an environment share that are provisioned into Puppet servers. Their order and their turns
// are in the records of their first boots.
type Provisioning struct {
	Paused *Revoked  `json:"paused,omitempty"` // by an operator: no machine begins
	Last   time.Time `json:"last,omitzero"`    // when a machine began last
}

// HasTurn reports whether the machine is being provisioned. Its silence ends a turn, as the end of a lease would, and the deadline
// of the turn does: a first boot that hangs may report for ever.
func (f FirstBoot) HasTurn(now time.Time) bool {
	return !f.Turn.IsZero() && f.Finished.IsZero() && !f.Stands(now) && now.Before(f.Until)
}

// waitsFor is the time without a request after which a waiting machine loses its position. A waiting machine asks at least once a minute.
const waitsFor = 5 * time.Minute

// Waits reports whether the machine waits for its turn, and asks for it: a machine that only reports progress would stop the queue.
func (f FirstBoot) Waits(now time.Time) bool {
	return !f.Asked.IsZero() && f.Turn.IsZero() && f.Finished.IsZero() && now.Sub(f.Again) < waitsFor
}

// Place returns the number of machines that wait longer for their turn than this one.
func (f FirstBoot) Place(all map[string]FirstBoot, now time.Time) (before int) {
	for _, other := range all {
		if other.Key() != f.Key() && other.Waits(now) && (other.Asked.Before(f.Asked) || other.Asked.Equal(f.Asked) && other.Key() < f.Key()) {
			before++
		}
	}
	return before
}

// EndTurn gives the machine's turn to the next one.
func (f *FirstBoot) EndTurn() { f.Asked, f.Turn, f.Until = time.Time{}, time.Time{}, time.Time{} }

// ReturnTurn gives the machine's turn to the next one, and does not count it: the machine waits for a server, and did not fail.
func (f *FirstBoot) ReturnTurn() {
	if !f.Turn.IsZero() {
		f.EndTurn()
		f.Turns = max(f.Turns-1, 0)
	}
}

// Provisioning reads what an environment's new machines share, and the revision of its last write.
func (s *FirstBoots) Provisioning(ctx context.Context, ref model.Ref) (Provisioning, int64, error) {
	p, revision, err := etcd.Single[Provisioning](ctx, s.db, s.db.Env(ref).Provisioning())
	if p == nil {
		p = &Provisioning{}
	}
	return *p, revision, etcd.Wrap(err, "cannot read the provisioning of %s", ref)
}

// Pause pauses the provisioning of an environment, or resumes it for nil. It returns the pause that it replaces or ends, if there is one.
func (s *FirstBoots) Pause(ctx context.Context, ref model.Ref, by *Revoked) (was *Revoked, err error) {
	key := s.db.Env(ref).Provisioning()
	err = etcd.Update(ctx, s.db, key, s.db.Commit, func(p *Provisioning, b *etcd.Batch) error {
		if p == nil {
			p = &Provisioning{}
		}
		was = p.Paused
		if p.Paused = by; was != nil || by != nil {
			b.Put(key, *p)
		}
		return nil
	})
	return was, etcd.Wrap(err, "cannot change the provisioning of %s", ref)
}

// Begin gives a machine its turn, if neither its record nor the turns of the environment changed since they were read. Two
// machines that begin at the same moment, at any serve, conflict.
func (s *FirstBoots) Begin(ctx context.Context, ref model.Ref, boot FirstBoot, revision int64, p Provisioning, turns int64) error {
	key := s.db.Env(ref).Provisioning()
	p.Last = boot.Turn
	b := etcd.If(etcd.Same(s.db.Env(ref).FirstBoot(boot.Key()), revision), etcd.Same(key, turns)).Put(key, p)
	l, err := s.put(ctx, b, ref, boot, revision)
	if err == nil {
		err = s.db.Commit(ctx, b)
		s.db.SettleLease(ctx, l, err)
	}
	return err
}
