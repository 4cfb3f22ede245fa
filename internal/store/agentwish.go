package store

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/store/etcd"
)

// AgentWish selects the versions of pulley-agent for the nodes of one environment. It is one small document, because
// every node reads it in each tick.
type AgentWish struct {
	Default agent.AgentChoice            `json:"default,omitzero"`
	Roles   map[string]agent.AgentChoice `json:"roles,omitempty"`
	Nodes   map[string]agent.AgentChoice `json:"nodes,omitempty"`
	Try     int64                        `json:"try,omitempty"` // raised to retry versions that nodes dropped
	By      string                       `json:"by,omitempty"`
	Why     agent.Prose                  `json:"why,omitempty"`
	At      time.Time                    `json:"at,omitzero"`
}

// maxWishBytes bounds the document: ten thousand nodes read it every five minutes.
const maxWishBytes = 16 << 10

// For returns the choice for one node: its own, else its role's, else the default.
func (w AgentWish) For(role, node string) agent.AgentChoice {
	c := w.Default
	if own, ok := w.Roles[role]; ok {
		c = own
	}
	if own, ok := w.Nodes[node]; ok {
		c = own
	}
	if c.Version != "" {
		c.Try = w.Try
	}
	return c
}

// Choice returns the choice of one scope itself, without inheritance. It returns false if the scope has none.
func (w AgentWish) Choice(scope etcd.Scope) (agent.AgentChoice, bool) {
	switch {
	case scope.Node != "":
		c, ok := w.Nodes[scope.Node]
		return c, ok
	case scope.Role != "":
		c, ok := w.Roles[scope.Role]
		return c, ok
	}
	return w.Default, w.Default.Version != ""
}

// Choose sets the choice of one scope. The zero choice removes it.
func (w *AgentWish) Choose(scope etcd.Scope, c agent.AgentChoice) {
	set := func(m *map[string]agent.AgentChoice, name string) {
		switch {
		case c.Version == "":
			delete(*m, name)
		case *m == nil:
			*m = map[string]agent.AgentChoice{name: c}
		default:
			(*m)[name] = c
		}
	}
	switch {
	case scope.Node != "":
		set(&w.Nodes, scope.Node)
	case scope.Role != "":
		set(&w.Roles, scope.Role)
	default:
		w.Default = c
	}
}

// AgentWish reads an environment's document and the revision of its last write, or 0 if there is none.
func (s *Fleet) AgentWish(ctx context.Context, ref environments.Ref) (w AgentWish, revision int64, err error) {
	key := s.db.Keys.Env(ref.String()).AgentChoice()
	resp, err := s.db.Get(ctx, key)
	if err != nil {
		return AgentWish{}, 0, fmt.Errorf("cannot read which agent %s is to run: %w", ref, err)
	}
	for _, kv := range resp.Kvs {
		if err := etcd.Decode(key, kv.Value, &w); err != nil {
			return AgentWish{}, kv.ModRevision, err
		}
		revision = kv.ModRevision
	}
	return w, revision, nil
}

// PutAgentWish stores the document. If the document was written since revision, the error wraps ErrConflict.
func (s *Fleet) PutAgentWish(ctx context.Context, ref environments.Ref, w AgentWish, revision int64) error {
	fail := func(err error) error { return fmt.Errorf("cannot say which agent %s is to run: %w", ref, err) }
	value, err := etcd.Encode(w)
	if err != nil {
		return fail(err)
	}
	if len(value) > maxWishBytes {
		return fail(fmt.Errorf("with so many nodes and roles of their own it has %d bytes, and every node reads it with each tick; there may be %d\npin roles, not nodes", len(value), maxWishBytes))
	}
	key := s.db.Keys.Env(ref.String()).AgentChoice()
	resp, err := s.db.Txn(ctx, []clientv3.Cmp{etcd.Same(key, revision)}, []clientv3.Op{clientv3.OpPut(key, value)}, nil)
	if err == nil && !resp.Succeeded {
		err = etcd.ErrConflict
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// Status returns a node's last status, and whether the node ever reported.
func (s *Node) Status(ctx context.Context, id agent.Identity) (st agent.Status, ok bool, err error) {
	key := s.db.Keys.Env(id.Environment).Status(id.Node)
	resp, err := s.db.Get(ctx, key)
	if err != nil || len(resp.Kvs) == 0 {
		return agent.Status{}, false, err
	}
	return st, true, etcd.Decode(key, resp.Kvs[0].Value, &st)
}

// RepeatStatus writes a node's own status again, byte for byte. Success proves that the node can report. A node
// without a status repeats nothing, which is no error.
func (s *Node) RepeatStatus(ctx context.Context, id agent.Identity) error {
	key := s.db.Keys.Env(id.Environment).Status(id.Node)
	resp, err := s.db.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("cannot read the node's own status: %w", err)
	}
	for _, kv := range resp.Kvs {
		// A failed guard means that a tick reported at this moment. The write was allowed, which is all that this call
		// tests.
		_, err = s.db.Txn(ctx, []clientv3.Cmp{etcd.Same(key, kv.ModRevision)}, []clientv3.Op{clientv3.OpPut(key, string(kv.Value))}, nil)
	}
	if err != nil {
		return fmt.Errorf("cannot write the node's own status: %w", err)
	}
	return nil
}
