package store

import (
	"context"

	"pulley/environments"
	"pulley/internal/store/etcd"
)

// presigned is the key of a certificate that serve requests at Puppet's CA for a node, until the node has both.
type presigned struct {
	Key string `json:"key"` // encrypted to the key of the CA folder
}

// Presigned returns the key that was made for a node, as the function fresh encrypted it, and stores a fresh one first if there is
// none. Several serves get the same key.
func (s *Identities) Presigned(ctx context.Context, ref environments.Ref, node string, fresh func() (string, error)) (key string, err error) {
	at := s.db.Env(ref).Presigned(node)
	err = etcd.Update(ctx, s.db, at, s.db.Commit, func(have *presigned, b *etcd.Batch) (err error) {
		if have != nil {
			key = have.Key
			return nil
		}
		if key, err = fresh(); err == nil {
			b.Put(at, presigned{key})
		}
		return err
	})
	return key, etcd.Wrap(err, "cannot store the key of node %s for Puppet's CA", node)
}

// DropPresigned deletes the key that was made for a node: the node has it.
func (s *Identities) DropPresigned(ctx context.Context, ref environments.Ref, node string) error {
	_, err := s.db.Run(ctx, etcd.If().Delete(s.db.Env(ref).Presigned(node))) // whoever deletes it first; no guard is needed
	return etcd.Wrap(err, "cannot delete the key of node %s for Puppet's CA", node)
}
