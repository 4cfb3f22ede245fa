package store

import (
	"context"
	"fmt"
	"maps"
	"time"

	"pulley/agent"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/rollout"
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
	Unknown bool                         `json:"-"` // unreadable
}

// maxWishBytes bounds the document: ten thousand nodes read it every five minutes.
const maxWishBytes = 16 << 10

// wishOf decodes the document. Nodes keep their version while it is unreadable.
func wishOf(kv *etcd.KV) (w AgentWish) {
	if etcd.Into(&w)(kv) != nil {
		return AgentWish{Unknown: true}
	}
	return w
}

// For returns the choice for one node: its own, else its role's, else the default.
func (w AgentWish) For(role, node string) agent.AgentChoice {
	if w.Unknown {
		return agent.AgentChoice{Unknown: true}
	}
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

// Reaches reports whether a node gets the version of a scope, and not one of its own or of its role.
func (w AgentWish) Reaches(scope etcd.Scope, role, node string) bool {
	_, ownNode := w.Nodes[node]
	_, ownRole := w.Roles[role]
	switch {
	case scope.Node != "":
		return scope.Node == node
	case scope.Role != "":
		return scope.Role == role && !ownNode
	}
	return !ownNode && !ownRole
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
func (s *Fleet) AgentWish(ctx context.Context, ref model.Ref) (w AgentWish, revision int64, err error) {
	stored, revision, err := etcd.Single[AgentWish](ctx, s.db, s.db.Env(ref).AgentChoice())
	if stored != nil {
		w = *stored
	}
	return w, revision, etcd.Wrap(err, "cannot read the agent versions of %s", ref)
}

// PutAgentWish stores the document. If the document was written since revision, the error wraps ErrConflict.
func (s *Fleet) PutAgentWish(ctx context.Context, ref model.Ref, w AgentWish, revision int64) error {
	err := w.fits()
	if err == nil {
		err = s.putAgentWish(ctx, ref, w, revision)
	}
	return etcd.Wrap(err, "cannot store the agent versions of %s", ref)
}

// fits returns an error for a document that is too large.
func (w AgentWish) fits() error {
	value, err := etcd.Encode(w)
	if err == nil && len(value) > maxWishBytes {
		err = fmt.Errorf("with so many nodes and roles of their own it has %d bytes, and every node reads it in each tick; "+
			"the limit is %d\npin roles, not nodes", len(value), maxWishBytes)
	}
	return err
}

// wish returns the document with the version of an ended rollout.
func (d Desires) wish(p rollout.Plan, at time.Time) AgentWish {
	w := d.Agents
	w.Roles, w.By, w.Why, w.At = maps.Clone(w.Roles), p.By, p.Why, at.UTC().Truncate(time.Second)
	w.Choose(etcd.Scope{Role: p.Role}, p.Agent)
	return w
}

// putAgentWish refuses a change while a rollout is in progress: a failed node must have one cause.
func (s *Fleet) putAgentWish(ctx context.Context, ref model.Ref, w AgentWish, revision int64) error {
	k := s.db.Env(ref)
	gate, gateRevision, err := etcd.Single[agent.Gate](ctx, s.db, k.Gate())
	if err != nil {
		return err
	}
	if gate != nil && gate.Rollout != "" {
		return &CampaignError{gate.Rollout}
	}
	return s.db.Commit(ctx, etcd.If(etcd.Same(k.Gate(), gateRevision), etcd.Same(k.AgentChoice(), revision)).Put(k.AgentChoice(), w))
}
