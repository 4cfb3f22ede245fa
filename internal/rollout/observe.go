package rollout

import (
	"maps"
	"slices"
	"time"

	"pulley/internal/model"
)

// Observed is the state of an environment in etcd, as far as Needs names it.
type Observed struct {
	Gate  model.Gate
	Nodes map[string]Node // by name; a node that is absent here was not read
	Hosts []Candidate     // all registered nodes of the scope, if Needs.Hosts
	Gone  bool            // the lease of a job ended

	Reached model.Epoch       // the highest epoch of the environment that the controller has seen
	Answers map[string]Answer // of gates, since State.Asked; a gate that is absent here did not answer yet
}

// Node is what etcd has of one node.
type Node struct {
	Host       *model.Host // nil: not registered
	Replaced   bool        // not registered, and an apply replaces or retires its machine; only with limits of places
	Status     *model.Status
	Assigned   *model.Assignment
	View       model.View   // with the assignment
	Wanted     model.Target // if this campaign assigns it
	StatusAt   int64        // revisions; 0: absent
	HostAt     int64
	AssignedAt int64
}

// has reports whether the assignment of a slot was written for the node, which may have answered it already.
func (n Node) has(s Slot, e model.Epoch) bool {
	return n.Assigned != nil && n.Assigned.ID == s.ID && n.Assigned.Epoch == e
}

// Needs names what Advance will look at.
type Needs struct {
	Nodes []string // in order
	All   bool     // they are most nodes of the environment, or all that limits of places count
	Hosts bool     // the host list
	Gates []string // to ask now
}

// Decide takes the next step of a campaign, after observe has read what it looks at. Limits of places count all nodes: observe
// reads them only when a node would begin otherwise: first those that blocked the step before.
func Decide(p Plan, s State, now time.Time, observe func(Needs) (Observed, error), blocking ...string) (Step, Observed, error) {
	needs := NeedsOf(p, s)
	if len(blocking) > 0 {
		needs.Nodes = slices.Concat(needs.Nodes, blocking)
		slices.Sort(needs.Nodes)
		needs.Nodes = slices.Compact(needs.Nodes)
	}
	for {
		o, err := observe(needs)
		if err != nil {
			return Step{}, o, err
		}
		step := Advance(p, s, o, now)
		if step.Wait.Code != WaitRead || !step.Empty() || needs.All || len(p.Policy.Limits()) == 0 {
			return step, o, nil
		}
		needs = needs.everybody(p, s)
	}
}

// everybody adds all nodes that limits of places count.
func (n Needs) everybody(p Plan, s State) Needs {
	need := map[string]bool{}
	for _, name := range n.Nodes {
		need[name] = true
	}
	for m := range placed(p, s) {
		need[m.Node] = true
	}
	n.Nodes, n.All = slices.Sorted(maps.Keys(need)), true
	return n
}

// pagesFrom is the number of nodes of a job from which all keys of the environment are read: less than reading each node.
const pagesFrom = 400

// NeedsOf names what Advance looks at: the nodes in progress and the rest of the batch.
func NeedsOf(p Plan, s State) Needs {
	if s.Phase != Advancing {
		return Needs{}
	}
	need := map[string]bool{}
	for name := range s.Slots {
		need[name] = true
	}
	for _, name := range s.Again {
		need[name] = true
	}
	if p.Kind == Run && !s.Gathered {
		for _, g := range p.Groups {
			for _, m := range g.Nodes {
				need[m.Node] = true
			}
		}
	}
	g, ok := s.Current(p)
	from := s.Next
	if ok && s.Next >= len(g.Nodes) {
		g, ok = s.InOrder(p, s.Group+1)
		from = 0
	}
	if ok {
		_, to := g.batch(from / max(g.Batch, 1))
		for _, m := range g.Nodes[from:min(to, len(g.Nodes))] {
			need[m.Node] = true
		}
	}
	needs := Needs{Nodes: slices.Sorted(maps.Keys(need)), All: p.Kind == Run && !s.Gathered && len(need) >= pagesFrom, Hosts: p.Kind == Take && !s.Listed && s.Group >= len(p.Groups)}
	if !s.Asked.IsZero() {
		needs.Gates = p.Policy.Gates
	}
	return needs
}
