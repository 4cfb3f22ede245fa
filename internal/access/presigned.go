package access

import (
	"context"

	"pulley/internal/etcd"
	"pulley/internal/model"
)

// Presigned is what serve makes for a node at Puppet's CA, until the node has it. With all of it, the node needs no CA at its join.
type Presigned struct {
	Key         string `json:"key"`                   // encrypted to the key of the CA folder
	Certificate string `json:"certificate,omitempty"` // PEM, as the rest; "": not signed yet
	CA          string `json:"ca,omitempty"`
	CRL         string `json:"crl,omitempty"` // at the time of the signature; "": too long to keep

	Problem model.Prose `json:"problem,omitempty"` // of the last attempt to get the certificate before the join
}

// Presigned reads what was made for a node; nil for nothing.
func (s *Identities) Presigned(ctx context.Context, ref model.Ref, node string) (*Presigned, error) {
	p, _, err := etcd.Single[Presigned](ctx, s.db, s.db.Env(ref).Presigned(node))
	return p, etcd.Wrap(err, "cannot read the key of node %s for Puppet's CA", node)
}

// AllPresigned reads what was made for the nodes of an environment. damaged names the unreadable ones.
func (s *Identities) AllPresigned(ctx context.Context, ref model.Ref) (all map[string]Presigned, damaged []string, err error) {
	all, damaged, err = etcd.ReadAll[Presigned](ctx, s.db, s.db.Env(ref).Presigned(""))
	return all, damaged, etcd.Wrap(err, "cannot list the keys of %s for Puppet's CA", ref)
}

// EnsurePresigned returns what was made for a node, and stores a key first if there is none, as the function fresh encrypted it. Several
// serves get the same key.
func (s *Identities) EnsurePresigned(ctx context.Context, ref model.Ref, node string, fresh func() (string, error)) (p Presigned, err error) {
	at := s.db.Env(ref).Presigned(node)
	err = etcd.Update(ctx, s.db, at, s.db.Commit, func(have *Presigned, b *etcd.Batch) (err error) {
		if have != nil {
			p = *have
			return nil
		}
		p = Presigned{}
		if p.Key, err = fresh(); err == nil {
			b.Put(at, p)
		}
		return err
	})
	return p, etcd.Wrap(err, "cannot store the key of node %s for Puppet's CA", node)
}

// PutPresigned stores the progress of a node's key. It returns ErrNotFound if the key was deleted or replaced meanwhile.
func (s *Identities) PutPresigned(ctx context.Context, ref model.Ref, node string, p Presigned) error {
	at := s.db.Env(ref).Presigned(node)
	err := etcd.Update(ctx, s.db, at, s.db.Commit, func(have *Presigned, b *etcd.Batch) error {
		switch {
		case have == nil || have.Key != p.Key:
			return etcd.ErrNotFound
		case *have != p:
			b.Put(at, p)
		}
		return nil
	})
	return etcd.Wrap(err, "cannot store the certificate of node %s for Puppet servers", node)
}

// DropPresigned deletes the key that was made for a node: the node has it.
func (s *Identities) DropPresigned(ctx context.Context, ref model.Ref, node string) error {
	_, err := s.db.Run(ctx, etcd.If().Delete(s.db.Env(ref).Presigned(node))) // whoever deletes it first; no guard is needed
	return etcd.Wrap(err, "cannot delete the key of node %s for Puppet's CA", node)
}

// GiveUpPresigned deletes the key that was made for a node which will not join, and records that its certificate is to be cleaned.
func (s *Joins) GiveUpPresigned(ctx context.Context, ref model.Ref, node string, r Removal) error {
	k := s.db.Env(ref)
	var at Places
	_, err := s.db.Read(ctx, map[string]int64{}, at.Points(k)...)
	if err != nil {
		return etcd.Wrap(err, "cannot read environment %s", ref)
	}
	err = etcd.Update(ctx, s.db, k.Presigned(node), s.db.Commit, func(have *Presigned, b *etcd.Batch) error {
		if have == nil {
			return nil
		}
		if cleanup := at.Cleanup(node, nil, r); cleanup != nil {
			b.Put(k.Cleanup(node), cleanup)
		}
		b.Delete(k.Presigned(node))
		return nil
	})
	return etcd.Wrap(err, "cannot give up the certificate of node %s for Puppet servers", node)
}

// Holder is who has a node's name, and what there is of the name at Puppet's CAs.
type Holder struct {
	Identity  *Identity
	Listed    bool // in the host list
	Presigned bool // a certificate is made for its next machine
	Unclean   bool // that of a former machine is still to be cleaned
}

// Returned reports whether the certificate at the CAs is of a node that is back, or of its next machine.
func (h Holder) Returned() bool { return h.Identity.Live() || h.Listed || h.Presigned }

// Leaves reports whether an environment is destroyed, or may be at this moment: a node that its destruction recorded as removed is no node that is
// back, although it is still there. An apply has the same lock, and ends.
func (s *Joins) Leaves(ctx context.Context, ref model.Ref) (bool, error) {
	k, exists, locked := s.db.Env(ref), false, false
	_, err := s.db.Read(ctx, map[string]int64{},
		etcd.Point{Key: k.Spec(), Read: func(*etcd.KV) error { exists = true; return nil }},
		etcd.Point{Key: k.Applying(), Read: func(*etcd.KV) error { locked = true; return nil }},
	)
	return locked || !exists, etcd.Wrap(err, "cannot read whether %s is being destroyed", ref)
}

// Awaited reports whether the name waits for a machine, and is free at the CAs as far as Pulley knows.
func (h Holder) Awaited() bool { return !h.Identity.Live() && !h.Listed && !h.Unclean }

// Holder reads the holder of a node's name.
func (s *Joins) Holder(ctx context.Context, ref model.Ref, node string) (h Holder, err error) {
	k := s.db.Env(ref)
	var host *model.Host
	var cleanup *Cleanup
	var made *Presigned
	_, err = s.db.Read(ctx, map[string]int64{},
		etcd.Point{Key: k.Identity(node), Read: etcd.Into(&h.Identity)},
		etcd.Point{Key: k.Host(node), Read: etcd.Into(&host)},
		etcd.Point{Key: k.Cleanup(node), Read: etcd.Into(&cleanup)},
		etcd.Point{Key: k.Presigned(node), Read: etcd.Into(&made)},
	)
	h.Listed, h.Presigned = host != nil, made != nil
	if cleanup != nil {
		for _, step := range cleanup.Steps {
			h.Unclean = h.Unclean || step.Kind == CleanCertificate || step.Kind == CleanUnread
		}
	}
	return h, etcd.Wrap(err, "cannot read the holder of the name %s", node)
}
