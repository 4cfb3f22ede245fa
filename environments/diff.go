package environments

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"pulley/internal/model"
)

// Changes are the differences between two environments.
type Changes struct {
	Fleet     model.Ref    `json:"environment"`
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
	c.Settings = changed(settingsOf("", shownFields(old)), settingsOf("", shownFields(new)))
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

// changed returns the settings that differ between two lists, in the order of the first, then of the second.
func changed(old, new []setting) []SettingChange {
	before, after := map[string]string{}, map[string]string{}
	for _, s := range old {
		before[s.path] = s.text
	}
	for _, s := range new {
		after[s.path] = s.text
	}
	var out []SettingChange
	for _, s := range old {
		if now := after[s.path]; now != s.text {
			out = append(out, SettingChange{s.path, s.text, now})
		}
	}
	for _, s := range new {
		if before[s.path] == "" {
			out = append(out, SettingChange{s.path, "", s.text})
		}
	}
	return out
}

func (s SettingChange) values() string {
	return cmp.Or(s.Old, "none") + " → " + cmp.Or(s.New, "none")
}

// Lines returns one line for each change, for people: "compute: cardinality 3 → 5 (+compute4, compute5)".
func (c Changes) Lines() []string {
	var lines []string
	for _, s := range c.Settings {
		lines = append(lines, s.Name+": "+s.values())
	}
	for _, r := range c.Roles {
		switch nodes := c.nodeList(r); {
		case r.Old == nil:
			line := fmt.Sprintf("%s: new, cardinality %d", r.Name, r.New.Cardinality)
			for _, s := range settingsOf("", fieldsOf(r.New)) {
				line += ", " + s.path + " " + s.text
			}
			lines = append(lines, line+nodes)
		case r.New == nil:
			lines = append(lines, fmt.Sprintf("%s: removed, had cardinality %d%s", r.Name, r.Old.Cardinality, nodes))
		default:
			if r.Old.Cardinality != r.New.Cardinality {
				lines = append(lines, fmt.Sprintf("%s: cardinality %d → %d%s", r.Name, r.Old.Cardinality, r.New.Cardinality, nodes))
			}
			for _, s := range changed(settingsOf("", fieldsOf(r.Old)), settingsOf("", fieldsOf(r.New))) {
				lines = append(lines, r.Name+": "+s.Name+" "+s.values())
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
	sign, least, most := "+", 0, 0
	if r.Old != nil {
		least = r.Old.Cardinality
	}
	if r.New != nil {
		most = r.New.Cardinality
	}
	if least > most {
		sign, least, most = "-", most, least
	}
	name := func(num int) string { return model.Node{Role: r.Name, Num: num, Stack: c.Fleet.Stack}.String() }
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
