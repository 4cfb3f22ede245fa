package store

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/store/etcd"
	"pulley/internal/trust"
)

// Data is one generation of an environment's live data, with the guard of a change.
type Data struct {
	hieradata.Generation
	head dataHead
	rev  int64 // of the head
}

type dataHead struct {
	Newest agent.Generation `json:"newest"`
}

// SignedGeneration is a generation with the exact bytes that its signatures cover. The signatures are unverified.
type SignedGeneration struct {
	hieradata.Generation
	Record     []byte // one line of JSON, without its newline; a target's DataDigest is the digest of this
	Signatures []byte // nil when it is not signed
}

// Generation reads generation n. It returns ErrNotFound if there is none.
func (s *Targets) Generation(ctx context.Context, env string, n agent.Generation) (SignedGeneration, error) {
	key := s.db.Keys.Env(env).Generation(n)
	resp, err := s.db.Get(ctx, key)
	if err != nil {
		return SignedGeneration{}, err
	}
	if len(resp.Kvs) == 0 {
		return SignedGeneration{}, fmt.Errorf("cannot find data generation %d of %s: %w", n, env, etcd.ErrNotFound)
	}
	return s.decodeGeneration(env, key, resp.Kvs[0].Value)
}

// decodeGeneration reads a generation's document. A document that was copied from another key is unreadable. A
// document without an environment is from an early Pulley. A node with allowed signers refuses it.
func (s *Targets) decodeGeneration(env, key string, value []byte) (SignedGeneration, error) {
	var g SignedGeneration
	var err error
	g.Record, g.Signatures = trust.Split(value)
	if g.Generation, err = hieradata.DecodeGeneration(g.Record); err != nil {
		return SignedGeneration{}, &etcd.UnreadableError{Key: key, Problem: err.Error()}
	}
	if g.Environment != "" && g.Environment != env {
		return SignedGeneration{}, &etcd.UnreadableError{Key: key, Problem: fmt.Sprintf("it is data of environment %.64q", g.Environment)}
	}
	if s.db.Keys.Env(env).Generation(agent.Generation(g.Number)) != key {
		return SignedGeneration{}, &etcd.UnreadableError{Key: key, Problem: fmt.Sprintf("it is data generation %d", g.Number)}
	}
	return g, nil
}

// Layer reads a layer's bytes by their digest, and verifies the digest.
func (s *Targets) Layer(ctx context.Context, env, digest string) ([]byte, error) {
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
	return nil, &etcd.UnreadableError{Key: key, Problem: "its bytes are not what its digest says"}
}

// Data reads the generation of d's default target, on which a change is based. Without one it returns the zero
// generation.
func (s *Targets) Data(ctx context.Context, ref environments.Ref, d Desires) (Data, error) {
	env, key := ref.String(), s.db.Keys.Env(ref.String()).DataHead()
	resp, err := s.db.Get(ctx, key)
	if err != nil {
		return Data{}, err
	}
	var data Data
	if len(resp.Kvs) > 0 {
		data.rev = resp.Kvs[0].ModRevision
		if err := etcd.Decode(key, resp.Kvs[0].Value, &data.head); err != nil {
			return Data{}, err
		}
	}
	if n := d.Default.Data; n > 0 {
		g, err := s.Generation(ctx, env, n)
		if err != nil {
			return Data{}, err
		}
		data.Generation = g.Generation
	}
	return data, nil
}

// ChangeData makes the next generation from data with these layers (canonical bytes; empty removes a layer). It
// becomes the data of the default target. One transaction writes the layers, the generation signed by a, its head, the
// target, the gate and the history record.
func (s *Targets) ChangeData(ctx context.Context, ref environments.Ref, d Desires, data Data, layers map[hieradata.Layer][]byte, a Author) (Change, error) {
	env := ref.String()
	next, err := data.Next(layers, a.By, a.Why, a.At.UTC().Truncate(time.Second))
	if err != nil {
		return Change{}, err
	}
	next.Environment = env
	next.Number = int64(data.head.Newest) + 1 // a rollback leaves newer generations behind; numbers are never reused
	record, err := next.Encode()
	if err != nil {
		return Change{}, err
	}
	document, err := a.Sign.document(ctx, trust.Data, record)
	if err != nil {
		return Change{}, fmt.Errorf("cannot sign data generation %d of %s: %w", next.Number, ref, err)
	}
	number := agent.Generation(next.Number)
	head, err := etcd.Encode(dataHead{Newest: number})
	if err != nil {
		return Change{}, err
	}
	ops := []clientv3.Op{
		clientv3.OpPut(s.db.Keys.Env(env).Generation(number), document),
		clientv3.OpPut(s.db.Keys.Env(env).DataHead(), head),
	}
	for _, bytes := range layers {
		if len(bytes) > 0 {
			// Immutable and named by its hash: another write changes nothing.
			ops = append(ops, clientv3.OpPut(s.db.Keys.Env(env).Layer(hieradata.Digest(bytes)), string(bytes)))
		}
	}
	cmps := []clientv3.Cmp{etcd.Same(s.db.Keys.Env(env).DataHead(), data.rev), etcd.Same(s.db.Keys.Env(env).Generation(number), 0)}
	after := d.Default
	after.Data, after.DataDigest = number, hieradata.Digest(record)
	c := Change{Kind: DataChange, Before: d.Default, After: after}
	return s.change(ctx, ref, d, c, a, cmps, ops)
}

// SortedLayers lists the layers of the generation: nodes, roles, environment, common; within each by name.
func (d Data) SortedLayers() []hieradata.Layer {
	return slices.SortedFunc(maps.Keys(d.Layers), func(a, b hieradata.Layer) int {
		return cmp.Or(a.Rank()-b.Rank(), strings.Compare(string(a), string(b)))
	})
}
