package desired

import (
	"fmt"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/model"
)

// AgentWish selects the versions of pulley-agent for the nodes of one environment. It is one small document, because
// every node reads it in each tick.
type AgentWish struct {
	Default model.AgentChoice            `json:"default,omitzero"`
	Roles   map[string]model.AgentChoice `json:"roles,omitempty"`
	Nodes   map[string]model.AgentChoice `json:"nodes,omitempty"`
	Try     int64                        `json:"try,omitempty"` // raised to retry versions that nodes dropped
	By      string                       `json:"by,omitempty"`
	Why     model.Prose                  `json:"why,omitempty"`
	At      time.Time                    `json:"at,omitzero"`
	Unknown bool                         `json:"-"` // unreadable
}

// maxWishBytes bounds the document: ten thousand nodes read it every five minutes.
const maxWishBytes = 16 << 10

// WishOf decodes the document. Nodes keep their version while it is unreadable.
func WishOf(kv *etcd.KV) (w AgentWish) {
	if etcd.Into(&w)(kv) != nil {
		return AgentWish{Unknown: true}
	}
	return w
}

// For returns the choice for one node: its own, else its role's, else the default.
func (w AgentWish) For(role, node string) model.AgentChoice {
	if w.Unknown {
		return model.AgentChoice{Unknown: true}
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
func (w AgentWish) Choice(scope etcd.Scope) (model.AgentChoice, bool) {
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
func (w *AgentWish) Choose(scope etcd.Scope, c model.AgentChoice) {
	set := func(m *map[string]model.AgentChoice, name string) {
		switch {
		case c.Version == "":
			delete(*m, name)
		case *m == nil:
			*m = map[string]model.AgentChoice{name: c}
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

// Fits returns an error for a document that is too large.
func (w AgentWish) Fits() error {
	value, err := etcd.Encode(w)
	if err == nil && len(value) > maxWishBytes {
		err = fmt.Errorf("with so many nodes and roles of their own it has %d bytes, and every node reads it in each tick; "+
			"the limit is %d\npin roles, not nodes", len(value), maxWishBytes)
	}
	return err
}
