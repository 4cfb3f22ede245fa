package environments

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/internal/model"
)

// The defaults of RolloutPolicy.Deadline and RolloutPolicy.Progress.
const (
	DefaultDeadline = model.Duration(time.Hour)
	DefaultProgress = model.Duration(2 * time.Hour)
)

// checkRollout checks what the policy for staged rollouts says about roles and attributes.
func (c checker) checkRollout() {
	known, after := map[string]bool{}, map[string][]string{}
	for _, r := range c.Roles {
		known[r.Name] = true
	}
	names := slices.Sorted(maps.Keys(c.Rollout.Roles))
	for _, name := range names {
		at := spot{noRole, "rollout.roles." + name}
		if !known[name] {
			c.add(at, noRoleHint(name, c.RoleNames()), "rollout.roles has %s, and there is no such role", model.Quoted(name))
			continue
		}
		after[name] = c.Rollout.Roles[name].After
		c.others(spot{noRole, at.field + ".after"}, name, "takes targets after", after[name], known)
	}
	for _, cycle := range cycles(after) {
		c.add(spot{noRole, "rollout.roles." + cycle[0] + ".after"}, "remove one of these dependencies",
			"rollout.roles: after makes a cycle: %s → %s", strings.Join(cycle, " → "), cycle[0])
	}
	if p := c.Rollout.Preview; p.MaxChanged > 0 && !p.Required {
		c.add(spot{noRole, "rollout.preview.max_changed"}, "write required: true beside it", "rollout.preview.max_changed limits a preview that is not required")
	}
	if p := c.Rollout; p.Promote == "manual" && (p.Canaries == "0" || p.Canaries == "0%") {
		c.add(spot{noRole, "rollout.promote"}, "write promote: batches, or canaries: 1", "rollout.promote: manual waits for an approval after the canaries, and canaries is %s", p.Canaries)
	}
	deadline, progress := cmp.Or(c.Rollout.Deadline, DefaultDeadline), cmp.Or(c.Rollout.Progress, DefaultProgress)
	if at := (spot{noRole, "rollout.progress"}); progress <= deadline {
		if c.Rollout.Progress == 0 {
			at.field = "rollout.deadline"
		}
		c.add(at, "write a longer progress", "rollout.progress is %s, and a node has %s until its deadline: the rollout would pause before it", progress, deadline)
	}
	for _, limit := range []struct {
		key string
		of  map[string]int
	}{{"max_unavailable", c.Rollout.MaxUnavailable}, {"max_places", c.Rollout.MaxPlaces}} {
		for _, name := range slices.Sorted(maps.Keys(limit.of)) {
			if slices.Contains(standardLayers, name) {
				c.add(spot{noRole, "rollout." + limit.key + "." + name}, "name an attribute; batch limits the nodes of a role", "rollout.%s has the layer %s", limit.key, name)
			} else if !c.HasAttribute(name) && !slices.Contains(c.Rollout.TrustedFacts, name) {
				c.add(spot{noRole, "rollout." + limit.key + "." + name}, "add it to layers, and give it to nodes as an attribute; or add the fact to rollout.trusted_facts, and let each node choose its own",
					"rollout.%s has %s, which is neither an attribute nor a trusted fact", limit.key, model.Quoted(name))
			}
		}
	}
	for _, name := range c.Rollout.TrustedFacts {
		_, nodes := c.Rollout.MaxUnavailable[name]
		_, places := c.Rollout.MaxPlaces[name]
		switch at := (spot{noRole, "rollout.trusted_facts"}); {
		case c.HasAttribute(name):
			c.add(at, "remove it", "rollout.trusted_facts has %s, and its values are attributes of this file", model.Quoted(name))
		case !nodes && !places:
			c.add(at, "remove it, or name it in max_unavailable or max_places", "rollout.trusted_facts has %s, and no limit uses it", model.Quoted(name))
		}
	}
}

// RolloutOrder returns the names of all roles in the order in which staged rollouts reach them: each one after those of its
// `after` in the policy, and otherwise in the order in which the roles' machines are created.
func (e *Environment) RolloutOrder() (order []string) {
	left := slices.Concat(e.Layers()...)
	for len(left) > 0 {
		next := slices.IndexFunc(left, func(name string) bool {
			return !slices.ContainsFunc(e.Rollout.Roles[name].After, func(other string) bool { return slices.Contains(left, other) })
		})
		next = max(next, 0) // a cycle: check refuses it, but this loop must end
		order, left = append(order, left[next]), slices.Delete(left, next, next+1)
	}
	return order
}
