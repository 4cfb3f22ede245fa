package environments

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"pulley/internal/model"
)

// FlavorOf returns a role's flavor as the provider names it; "" is the driver's default.
func (e *Environment) FlavorOf(r Role) string { return resolved(e.Flavors, r.Flavor) }

// ImageOf returns a role's image as the provider names it; "" is the driver's default.
func (e *Environment) ImageOf(r Role) string { return resolved(e.Images, r.Image) }

// NetworksOf returns a role's networks as the provider names them, in the order of the file.
func (e *Environment) NetworksOf(r Role) []string {
	var out []string
	for _, n := range r.Networks {
		out = append(out, resolved(e.Networks, n))
	}
	return out
}

func resolved(words map[string]string, symbol string) string {
	if word, ok := words[symbol]; ok {
		return word
	}
	return symbol
}

// TimeoutOf returns the maximum time from the order of a machine until its node is converged.
func (e *Environment) TimeoutOf(r Role) time.Duration {
	if r.Replace.Timeout == 0 {
		return DefaultTimeout
	}
	return time.Duration(r.Replace.Timeout)
}

// UserdataOf returns the first-boot settings of a role; its own settings override the environment's.
func (e *Environment) UserdataOf(r Role) Userdata { return r.Userdata.Over(e.Userdata) }

// BatchOf returns how many machines of a role with cardinality nodes are replaced at a time, at least 1.
func (r replace) BatchOf(cardinality int) int { return max(1, share(r.Batch, 1, cardinality)) }

// FailuresOf returns how many machines of a role with cardinality nodes may fail before no more are ordered.
func (r replace) FailuresOf(cardinality int) int { return share(r.Failures, 0, cardinality) }

// share converts a checked share to a number of machines.
func share(text string, without, cardinality int) int {
	if text == "" {
		return without
	}
	digits, percent := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(digits)
	switch {
	case err != nil || n < 0:
		return without // check refuses such a share
	case percent:
		return max(1, n*max(cardinality, 0)/100)
	}
	return n
}

// Layers returns the names of all roles in layers whose machines can be made at the same time. A role is in the first
// layer after all roles that it depends on. Within a layer, roles have the order of the file.
func (e *Environment) Layers() [][]string {
	var layers [][]string
	done, left := map[string]bool{}, e.Roles
	for len(left) > 0 {
		var layer []string
		var later []Role
		for _, r := range left {
			if slices.ContainsFunc(r.After, func(name string) bool { return !done[name] }) {
				later = append(later, r)
			} else {
				layer = append(layer, r.Name)
			}
		}
		if len(layer) == 0 { // a cycle or an unknown role: check refuses both, but this loop must end
			for _, r := range later {
				layer = append(layer, r.Name)
			}
			later = nil
		}
		for _, name := range layer {
			done[name] = true
		}
		layers, left = append(layers, layer), later
	}
	return layers
}

// RoleOf returns the role of a node or a member by its name.
func (e *Environment) RoleOf(name string) (Role, bool) {
	if n, err := model.ParseNode(name); err == nil && e.Has(n) {
		return e.Role(n.Role)
	}
	for _, r := range e.Roles {
		if slices.Contains(r.Members, name) {
			return r, true
		}
	}
	return Role{}, false
}
