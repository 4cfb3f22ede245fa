package environments

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// word is one value as text, for comparison and display.
type word struct {
	name, text string // text is "" if absent
	long       bool   // the text is too long for display
}

// said returns the text of a value of a new role.
func (w word) said() string {
	switch {
	case w.name == "protected":
		return w.name
	case w.long:
		return "own " + w.name
	}
	return w.name + " " + w.text
}

// Told returns the values of a role besides its name, cardinality and flavor: "image debian", "after db", "protected".
func (r Role) Told() []string { return inWords(r.words()[1:]) }

// Told returns the values of the environment besides its roles: "provider openstack", "flavors.small m1.small".
func (e *Environment) Told() []string { return inWords(e.words()) }

func inWords(words []word) []string {
	var out []string
	for _, w := range words {
		out = append(out, w.said())
	}
	return out
}

// wordChange is a value that changed.
type wordChange struct {
	name, old, new string
	long           bool
}

func (w wordChange) line() string {
	sentence := w.name == "after" || w.name == "reacts to"
	switch {
	case w.name == "protected" && w.new != "":
		return "protected"
	case w.name == "protected":
		return "no longer protected"
	case sentence && w.old == "":
		return w.name + " " + w.new
	case sentence && w.new == "":
		return "no longer " + w.name + " " + w.old
	case w.long && w.old != "" && w.new != "":
		return w.name + " changed"
	}
	return fmt.Sprintf("%s %s → %s", w.name, or(w.old, "none"), or(w.new, "none"))
}

// changed returns the words that differ between two lists, in the order of the first, then of the second.
func changed(old, new []word) []wordChange {
	var out []wordChange
	after := map[string]word{}
	for _, w := range new {
		after[w.name] = w
	}
	before := map[string]bool{}
	for _, was := range old {
		before[was.name] = true
		is := after[was.name]
		if was.text == is.text {
			continue
		}
		change := wordChange{was.name, was.text, is.text, was.long || is.long}
		out = append(out, change.short())
	}
	for _, is := range new {
		if !before[is.name] && is.text != "" {
			out = append(out, wordChange{is.name, "", is.text, is.long}.short())
		}
	}
	return out
}

// short removes the text of long values.
func (w wordChange) short() wordChange {
	if w.long {
		if w.old != "" {
			w.old = "as it was"
		}
		if w.new != "" {
			w.new = "another"
			if w.old == "" {
				w.new = "its own"
			}
		}
	}
	return w
}

// words returns all values of a role besides its name and cardinality; those that every role has come first.
func (r *Role) words() []word {
	words := []word{{name: "flavor", text: r.Flavor}}
	add := func(name, text string) {
		if text != "" {
			words = append(words, word{name: name, text: text})
		}
	}
	add("image", r.Image)
	add("networks", strings.Join(r.Networks, ", "))
	for _, key := range slices.Sorted(maps.Keys(r.Labels)) {
		add("label "+key, r.Labels[key])
	}
	add("after", strings.Join(r.After, ", "))
	add("reacts to", strings.Join(r.ReactsTo, ", "))
	if r.Protected {
		add("protected", "yes")
	}
	add("rollout batch", r.Rollout.Batch)
	add("rollout failures", r.Rollout.Failures)
	if r.Rollout.Timeout != 0 {
		add("rollout timeout", r.Rollout.Timeout.String())
	}
	words = append(words, userdataWords(&r.Userdata, "userdata ")...)
	add("members", strings.Join(r.Members, ", "))
	return words
}

// words returns all values of the environment besides its roles.
func (e *Environment) words() []word {
	var words []word
	add := func(name, text string) {
		if text != "" {
			words = append(words, word{name: name, text: text})
		}
	}
	p := e.Provider
	add("provider", p.Driver)
	for _, w := range []struct{ name, text string }{
		{"owner", p.Owner}, {"command", joined(p.Command)}, {"folder", p.Folder}, {"agent", p.Agent}, {"interval", p.Interval},
		{"bridge", p.Bridge}, {"subnet", p.Subnet}, {"cloud", p.Cloud}, {"region", p.Region}, {"availability_zone", p.AvailabilityZone},
		{"key_name", p.KeyName}, {"server_group", p.ServerGroup}, {"security_groups", joined(p.SecurityGroups)},
	} {
		add("provider."+w.name, w.text)
	}
	if p.Timeout != 0 {
		add("provider.timeout", p.Timeout.String())
	}
	if p.ConfigDrive {
		add("provider.config_drive", "true")
	}
	for _, table := range []struct {
		name  string
		words map[string]string
	}{{"flavors", e.Flavors}, {"images", e.Images}, {"networks", e.Networks}} {
		for _, symbol := range slices.Sorted(maps.Keys(table.words)) {
			add(table.name+"."+symbol, table.words[symbol])
		}
	}
	return append(words, userdataWords(&e.Userdata, "userdata.")...)
}

// userdataWords returns all values of userdata. Of texts with several lines, it only gives the presence.
func userdataWords(u *Userdata, prefix string) []word {
	var words []word
	add := func(name, text string, long bool) {
		if text != "" {
			words = append(words, word{prefix + name, text, long})
		}
	}
	for _, f := range u.Fields() {
		switch v := f.Value.(type) {
		case *string:
			add(f.Name, *v, f.Long)
		case *[]string:
			if f.Long {
				add(f.Name, joined(*v), true)
			} else {
				add(f.Name, strings.Join(*v, ", "), false)
			}
		case *map[string]string:
			for _, key := range slices.Sorted(maps.Keys(*v)) {
				add(f.Name+"."+key, (*v)[key], false)
			}
		}
	}
	return words
}

// joined joins texts such that different lists have different results.
func joined(texts []string) string {
	if len(texts) == 0 {
		return ""
	}
	return fmt.Sprintf("%q", texts)
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
