// Package desired reads what is wanted of nodes: choices of the agent, demands of environments, the host list, generations of live data
// and rollback permits. It must never decide: model.Decide does on a node, and the operators' side for them.
package desired

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/hieradata"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/release/trust"
)

// Records reads the signed documents of what is wanted: generations of live data with their layers, and rollback permits.
type Records struct{ db *etcd.DB }

// In returns the records of a keyspace.
func In(db *etcd.DB) *Records { return &Records{db} }

// SignedGeneration is a generation with the exact bytes that its signatures cover. The signatures are unverified.
type SignedGeneration struct {
	hieradata.Generation
	Record     []byte // one line of JSON, without its newline; a target's DataDigest is the digest of this
	Signatures []byte // nil when it is not signed
}

// Generation reads generation n. It returns ErrNotFound if there is none.
func (s *Records) Generation(ctx context.Context, env string, n model.Generation) (SignedGeneration, error) {
	key := s.db.Keys.Env(env).Generation(n)
	resp, err := s.db.Get(ctx, key)
	if err != nil {
		return SignedGeneration{}, err
	}
	if len(resp.Kvs) == 0 {
		return SignedGeneration{}, fmt.Errorf("cannot find data generation %d of %s: %w", n, env, etcd.ErrNotFound)
	}
	return s.DecodeGeneration(env, resp.Kvs[0])
}

// DecodeGeneration reads a generation's document. A document that was copied from another key is unreadable. A
// document without an environment is from an early Pulley. A node with allowed signers refuses it.
func (s *Records) DecodeGeneration(env string, kv *etcd.KV) (g SignedGeneration, err error) {
	g.Record, g.Signatures = trust.Split(kv.Value)
	problem := ""
	switch g.Generation, err = hieradata.DecodeGeneration(g.Record); {
	case err != nil:
		problem = err.Error()
	case g.Environment != "" && g.Environment != env:
		problem = fmt.Sprintf("it is data of environment %.64q", g.Environment)
	case s.db.Keys.Env(env).Generation(model.Generation(g.Number)) != string(kv.Key):
		problem = fmt.Sprintf("it is data generation %d", g.Number)
	default:
		return g, nil
	}
	return SignedGeneration{}, &etcd.UnreadableError{Key: string(kv.Key), Problem: problem}
}

// Layer reads a layer's bytes by their digest, and verifies the digest.
func (s *Records) Layer(ctx context.Context, env, digest string) ([]byte, error) {
	key := s.db.Keys.Env(env).Layer(digest)
	resp, err := s.db.Get(ctx, key, clientv3.WithSerializable())
	if err == nil && len(resp.Kvs) == 0 {
		resp, err = s.db.Get(ctx, key) // the member that answered may lag
	}
	if err != nil {
		return nil, err
	}
	if len(resp.Kvs) == 0 {
		return nil, fmt.Errorf("cannot find data layer %.12s of %s: %w", digest, env, etcd.ErrNotFound)
	}
	if b := resp.Kvs[0].Value; hieradata.Digest(b) == digest {
		return b, nil
	}
	return nil, &etcd.UnreadableError{Key: key, Problem: "its bytes do not match its digest"}
}

// Each permit covers the complete target of its change. Nodes therefore need only the newest permit of their scope,
// which is mostly on the first page. A node that was offline may have to read past the later permits of every other
// scope.
const (
	permitPage  = 64
	mostPermits = 2048 // bound of one search
)

// Permits calls more with the rollback permits, newest first, page by page, until more has enough. It skips a permit
// that is unreadable or was copied from another key: such a permit permits nothing, and must not hide valid ones.
func (s *Records) Permits(ctx context.Context, env string, more func([]trust.SignedPermit) bool) error {
	k, read := s.db.Keys.Env(env), 0
	var page []trust.SignedPermit
	err := s.db.ScanDown(ctx, k.Permits(), func(_ string, kv *etcd.KV) error {
		var p trust.SignedPermit
		var err error
		p.Record, p.Signatures = trust.Split(kv.Value)
		if p.Permit, err = trust.ParsePermit(p.Record); err == nil && p.Environment == env && k.Permit(model.Epoch(p.Epoch)) == string(kv.Key) {
			page = append(page, p)
		}
		if read++; read%permitPage != 0 {
			return nil
		}
		if !more(page) || read == mostPermits {
			page = nil
			return etcd.ErrEnough
		}
		page = nil
		return nil
	}, clientv3.WithLimit(permitPage))
	if err == nil && len(page) > 0 {
		more(page)
	}
	return etcd.Wrap(err, "cannot read the permits to go back in %s", env)
}
