package hosts

import (
	"encoding/json"
	"slices"
	"time"
)

// A node that changed mostChanges times within changesWithin keeps its last values: each change runs Puppet on all nodes that see it.
const (
	mostChanges   = 6
	changesWithin = time.Hour
)

// Calm keeps the values of nodes that change again and again, in a list that was just read. It records the changes since the list
// before. kept names these nodes; the list must be read again at their Until.
func Calm(before, now []Node, at time.Time) (kept []string) {
	old := make(map[string]Node, len(before))
	for _, n := range before {
		old[n.Name] = n
	}
	for i := range now {
		n := &now[i]
		o, known := old[n.Name]
		if !known {
			continue
		}
		n.Changed = slices.DeleteFunc(slices.Clone(o.Changed), func(t time.Time) bool { return at.Sub(t) >= changesWithin || t.After(at) })
		switch same := sameValues(o, *n); {
		case !same && len(n.Changed) >= mostChanges:
			n.Addresses, n.Checked, n.At, n.Exports, n.Until = o.Addresses, o.Checked, o.At, o.Exports, n.Changed[0].Add(changesWithin)
			kept = append(kept, n.Name)
		case !same:
			n.Changed = append(n.Changed, at)
		}
	}
	return kept
}

func sameValues(a, b Node) bool {
	if !slices.Equal(a.Addresses, b.Addresses) || a.Checked != b.Checked || !a.At.Equal(b.At) {
		return false
	}
	one, err := json.Marshal(a.Exports)
	other, err2 := json.Marshal(b.Exports)
	return err == nil && err2 == nil && string(one) == string(other)
}
