package plan

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"pulley/environments"
	"pulley/internal/machines"
)

// differs says what a machine was made as and why that is not what is wanted; "" when it will do.
func (p *planner) differs(n planned, m machines.Machine, rec machines.Record, booked bool) (Shape, string) {
	had := Shape{Flavor: m.Flavor, Image: m.Image}
	if booked {
		had = Shape{Flavor: rec.Flavor, Image: rec.Image}
	}
	// What was adopted tells no more than the provider does: no word is then no other word.
	ordered := booked && rec.Tries > 0
	var parts []string
	for _, one := range []struct{ what, had, want string }{{"flavor", had.Flavor, n.role.flavor}, {"image", had.Image, n.role.image}} {
		if one.had == one.want || !ordered && (one.had == "" || one.want == "") {
			continue
		}
		parts = append(parts, fmt.Sprintf("%s %s → %s", one.what, word(one.had), word(one.want)))
	}
	return had, strings.Join(parts, ", ")
}

// word is a word of the provider's for people.
func word(s string) string {
	if s == "" {
		return "(the provider's default)"
	}
	return machines.Clean(s)
}

// stale says what a file changes that machines which are there don't get.
func (p *planner) stale(was, now environments.Role) string {
	var parts []string
	if !slices.Equal(p.old.NetworksOf(was), p.want.NetworksOf(now)) {
		parts = append(parts, "networks")
	}
	if !maps.Equal(was.Labels, now.Labels) {
		parts = append(parts, "labels")
	}
	if !reflect.DeepEqual(p.old.UserdataOf(was), p.want.UserdataOf(now)) {
		parts = append(parts, "userdata")
	}
	if len(parts) == 0 {
		return ""
	}
	return "the file changes its " + strings.Join(parts, ", ") + ", and its machine keeps what it was made with"
}
