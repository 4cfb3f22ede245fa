package environments

import (
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Changes are the differences between two environments.
type Changes struct {
	Fleet     Ref          `json:"environment"`
	Roles     []RoleChange `json:"roles"`     // in the order of the new file, then the removed roles
	Reordered bool         `json:"reordered"` // the remaining roles are in another order

	Settings []SettingChange `json:"settings,omitempty"` // of the environment itself, in the order of the reference
}

// SettingChange is one value of the environment before and after, as text; "" if absent.
type SettingChange struct {
	Name string `json:"name"` // "provider", "flavors.small"
	Old  string `json:"old"`
	New  string `json:"new"`
}

// RoleChange is one role before and after. Old is nil for an added role, New for a removed one.
type RoleChange struct {
	Name string `json:"name"`
	Old  *Role  `json:"old"`
	New  *Role  `json:"new"`
}

// Diff returns the changes from old to new. If old is nil or another fleet, every role of new is added and none is
// removed.
func Diff(old, new *Environment) Changes {
	c := Changes{Fleet: new.Ref(), Roles: []RoleChange{}}
	if old == nil || old.Ref() != new.Ref() {
		old = &Environment{}
	}
	before, after := byName(old), byName(new)
	for _, r := range new.Roles {
		if was := before[r.Name]; was == nil || !reflect.DeepEqual(*was, r) {
			c.Roles = append(c.Roles, RoleChange{Name: r.Name, Old: was, New: after[r.Name]})
		}
	}
	for _, r := range old.Roles {
		if after[r.Name] == nil {
			c.Roles = append(c.Roles, RoleChange{Name: r.Name, Old: before[r.Name]})
		}
	}
	for _, w := range changed(old.words(), new.words()) {
		c.Settings = append(c.Settings, SettingChange{w.name, w.old, w.new})
	}
	c.Reordered = !slices.Equal(staying(old, after), staying(new, before))
	return c
}

func byName(e *Environment) map[string]*Role {
	roles := make(map[string]*Role, len(e.Roles))
	for _, r := range e.Roles {
		roles[r.Name] = &r
	}
	return roles
}

// staying returns the names of the roles of e that other has, too.
func staying(e *Environment, other map[string]*Role) []string {
	return slices.DeleteFunc(e.RoleNames(), func(name string) bool { return other[name] == nil })
}

// Empty reports whether there are no changes.
func (c Changes) Empty() bool { return len(c.Roles) == 0 && !c.Reordered && len(c.Settings) == 0 }

// Added yields the new nodes, role by role, in rising order of their numbers.
func (c Changes) Added() iter.Seq[Node] {
	return c.nodes(func(r RoleChange) (int, int) { return cardinality(r.Old), cardinality(r.New) })
}

// Removed yields the nodes that are no longer wanted, which are the highest numbers of their roles. They come role by
// role, in rising order of their numbers.
func (c Changes) Removed() iter.Seq[Node] {
	return c.nodes(func(r RoleChange) (int, int) { return cardinality(r.New), cardinality(r.Old) })
}

// nodes yields the nodes of each role with numbers above the first result of span, up to the second.
func (c Changes) nodes(span func(RoleChange) (int, int)) iter.Seq[Node] {
	return func(yield func(Node) bool) {
		for _, r := range c.Roles {
			least, most := span(r)
			for num := least + 1; num <= most; num++ {
				if !yield(Node{Role: r.Name, Num: num, Stack: c.Fleet.Stack}) {
					return
				}
			}
		}
	}
}

func cardinality(r *Role) int {
	if r == nil {
		return 0
	}
	return r.Cardinality
}

// Lines returns one line for each change, for people: "compute: cardinality 3 → 5 (+compute4, compute5)".
func (c Changes) Lines() []string {
	var lines []string
	for _, s := range c.Settings {
		lines = append(lines, fmt.Sprintf("%s: %s → %s", s.Name, or(s.Old, "none"), or(s.New, "none")))
	}
	for _, r := range c.Roles {
		switch nodes := c.nodeList(r); {
		case r.Old == nil:
			line := fmt.Sprintf("%s: new, cardinality %d, flavor %s", r.Name, r.New.Cardinality, or(r.New.Flavor, "none"))
			for _, w := range r.New.words()[1:] {
				line += ", " + w.said()
			}
			lines = append(lines, line+nodes)
		case r.New == nil:
			lines = append(lines, fmt.Sprintf("%s: removed, had cardinality %d%s", r.Name, r.Old.Cardinality, nodes))
		default:
			if r.Old.Cardinality != r.New.Cardinality {
				lines = append(lines, fmt.Sprintf("%s: cardinality %d → %d%s", r.Name, r.Old.Cardinality, r.New.Cardinality, nodes))
			}
			for _, w := range changed(r.Old.words(), r.New.words()) {
				lines = append(lines, r.Name+": "+w.line())
			}
		}
	}
	if c.Reordered {
		lines = append(lines, "the roles are in another order")
	}
	return lines
}

// nodeList names the added or removed nodes of one role: all if there are at most four, else the first, the last and
// the number.
func (c Changes) nodeList(r RoleChange) string {
	sign, least, most := "+", cardinality(r.Old), cardinality(r.New)
	if least > most {
		sign, least, most = "-", most, least
	}
	name := func(num int) string { return Node{Role: r.Name, Num: num, Stack: c.Fleet.Stack}.String() }
	switch count := most - least; {
	case count == 0:
		return ""
	case count > 4:
		return " (" + sign + name(least+1) + " … " + name(most) + ", " + strconv.Itoa(count) + " nodes)"
	}
	var names []string
	for num := least + 1; num <= most; num++ {
		names = append(names, name(num))
	}
	return " (" + sign + strings.Join(names, ", ") + ")"
}
