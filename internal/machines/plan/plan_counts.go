package plan

import (
	"slices"

	"pulley/internal/machines"
)

// Verbs lists all verbs, those that do most first.
func Verbs() []Verb {
	return []Verb{Create, Replace, Broken, Orphan, Adopt, Retire, Duplicate, Wait, Missing, Extra, Stranger, Keep}
}

// Counts is how many steps there are of each verb that occurs.
func (p Plan) Counts() map[Verb]int {
	counts := map[Verb]int{}
	for _, s := range p.Steps {
		counts[s.Verb]++
	}
	return counts
}

// Destroyed lists the machines that carrying a plan out deletes, in its order, each once.
func (p Plan) Destroyed() []machines.Ref {
	var all []machines.Ref
	known := map[machines.Ref]bool{}
	for _, s := range p.Steps {
		for _, v := range s.Victims {
			if !known[v] {
				known[v] = true
				all = append(all, v)
			}
		}
	}
	return all
}

// Removed lists the nodes that carrying a plan out takes out of the fleet and that no machine is deleted of.
func (p Plan) Removed() []string {
	var nodes []string
	for _, s := range p.Steps {
		if s.Removes && len(s.Victims) == 0 {
			nodes = append(nodes, s.Node)
		}
	}
	return nodes
}

// Made lists the nodes that machines are asked for.
func (p Plan) Made() []string {
	var nodes []string
	for _, s := range p.Steps {
		if s.Makes {
			nodes = append(nodes, s.Node)
		}
	}
	return nodes
}

// Blocked lists the steps for which a plan is refused.
func (p Plan) Blocked() []Step {
	return slices.DeleteFunc(slices.Clone(p.Steps), func(s Step) bool { return s.Blocked == "" })
}

// Acts reports whether something is done to a machine, or to what is known of one. Waiting is not, and neither is storing the
// file.
func (p Plan) Acts() bool { return slices.ContainsFunc(p.Steps, Step.acts) }

// Empty reports whether nothing is to be done to any machine, and none waited for. That the file is to be stored all the
// same, Changed tells.
func (p Plan) Empty() bool {
	return !p.Acts() && p.Counts()[Wait] == 0
}

// acts reports whether carrying a step out does something to a machine or to what is known of it.
func (s Step) acts() bool {
	switch s.Verb {
	case Create, Replace, Broken, Orphan, Adopt, Retire, Duplicate:
		return true
	}
	return s.Blocked != ""
}
