package rollout

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"pulley/internal/model"
)

// Order is a campaign to plan.
type Order struct {
	ID      string
	Epoch   model.Epoch
	Role    string            // scope; "" for all nodes
	Target  model.Target      // empty parts are inherited
	Agent   model.AgentChoice // instead of a target
	Noop    bool              // of a job
	Origin  model.Target
	Policy  Policy
	Roles   []string // in the order of their groups; nodes of other roles follow
	By, Why string
	At      time.Time
}

// Candidate is a registered node.
type Candidate struct {
	Node, Role, Machine string
	Excluded            bool     // it has a target of its own, or of its role, that the campaign does not change
	Daemon              bool     // Puppet's own daemon runs there
	Canary              bool     // Policy.CanariesWhere is true for it
	Places              []string // as in Member
	View                model.View
}

// ErrEmpty means that a campaign has no node.
var ErrEmpty = errors.New("no registered node would take it")

// Make plans a campaign: canaries, then each role in its order, each cut into batches. Equal input gives an equal plan.
func Make(o Order, candidates []Candidate) (Plan, error) {
	policy := o.Policy.withDefaults()
	p := Plan{
		ID: o.ID, Kind: Take, Epoch: o.Epoch, Role: o.Role, Target: o.Target, Agent: o.Agent, Origin: o.Origin, Policy: policy, Roles: o.Roles,
		By: o.By, Why: model.Prose(o.Why), At: o.At.UTC().Truncate(time.Second),
	}
	sorted := natural(candidates)
	byRole, total := map[string][]Member{}, 0
	may := map[string]bool{} // be a canary
	away, broken := Away{}, map[string]bool{}
	for _, c := range sorted {
		m := Member{Node: c.Node, Machine: c.Machine, Places: c.Places}
		outside := o.Role != "" && c.Role != o.Role
		settled := c.View
		settled.New = false // it converges before its turn, unless it fails
		if Unavailable(settled) {
			away.Add(m, false)
		}
		broken[c.Node] = repairable(CannotBegin(c.View))
		switch {
		case outside:
		case c.Excluded:
			p.Excluded = append(p.Excluded, c.Node)
		case c.Daemon:
			p.Daemons = append(p.Daemons, c.Node)
		}
		switch {
		case outside || c.Excluded || c.Daemon:
			if len(c.Places) > 0 {
				p.Outside = append(p.Outside, m)
			}
		default:
			byRole[c.Role] = append(byRole[c.Role], m)
			total++
			if policy.CanariesWhere == "" || c.Canary {
				may[c.Node] = true
			}
		}
	}
	if total == 0 {
		return Plan{}, ErrEmpty
	}
	p.Others = len(p.Outside)
	for _, members := range byRole {
		apart(policy, members, broken)
	}
	roles := ordered(o.Roles, byRole)
	most := len(may)
	if policy.Canaries != "" {
		most = policy.Canaries.canaries(total)
	}
	canaries := pick(roles, byRole, most, func(m Member) (rank int, ok bool) {
		if _, full := policy.Full(away, m); full {
			rank = 2
		} else if broken[m.Node] && len(policy.Limits()) > 0 {
			rank = 1
		}
		return rank, may[m.Node]
	})
	if len(canaries) > 0 {
		p.Groups = append(p.Groups, Group{Kind: Canaries, Batch: len(canaries), Failures: policy.BatchFailures, Size: len(canaries), Nodes: canaries})
	}
	p.Groups = append(p.Groups, policy.groups(OfRole, o.Roles, byRole, sizes(sorted))...)
	return p, nil
}

// sizes counts the nodes of each role. A percentage of a role is of all of them, also of its canaries.
func sizes(candidates []Candidate) map[string]int {
	of := map[string]int{}
	for _, c := range candidates {
		if !c.Excluded && !c.Daemon {
			of[c.Role]++
		}
	}
	return of
}

// groups makes a group of each role that has members, in the given order of roles.
func (p Policy) groups(kind GroupKind, given []string, byRole map[string][]Member, sizes map[string]int) (all []Group) {
	for _, role := range ordered(given, byRole) {
		if members := byRole[role]; len(members) > 0 { // else all of them are canaries
			all = append(all, Group{
				Kind: kind, Role: role, Batch: p.batchOf(role).Of(sizes[role], 1), Failures: p.failuresOf(role), Size: len(members), Nodes: members,
			})
		}
	}
	return all
}

// ordered returns the roles that have members: the given ones in their order, then the others by name.
func ordered(given []string, members map[string][]Member) []string {
	roles := slices.DeleteFunc(slices.Clone(given), func(r string) bool { return len(members[r]) == 0 })
	var others []string
	for role := range members {
		if !slices.Contains(given, role) {
			others = append(others, role)
		}
	}
	slices.Sort(others)
	return append(roles, others...)
}

// apart orders members such that limits of places delay them least: place by place where MaxPlaces limits the number of
// places, and by turns where MaxUnavailable limits the nodes of each place. Broken nodes come first: others of their places wait for them.
func apart(p Policy, members []Member, broken map[string]bool) {
	if len(p.Limits()) == 0 {
		return
	}
	type places struct{ together, alone string }
	type keyed struct {
		Member
		order    int // 0: broken
		together string
		turn     int
	}
	turns, all := map[places]int{}, make([]keyed, len(members))
	for i, m := range members {
		k := keyed{Member: m, order: 1}
		if broken[m.Node] {
			k.order = 0
		}
		var alone []string
		for _, place := range m.Places {
			attribute := attributeOf(place)
			if _, limited := p.MaxPlaces[attribute]; limited {
				k.together += place + " "
			}
			if _, limited := p.MaxUnavailable[attribute]; limited {
				alone = append(alone, place)
			}
		}
		for _, place := range alone {
			at := places{k.together, place}
			k.turn = max(k.turn, turns[at])
			turns[at]++
		}
		all[i] = k
	}
	slices.SortStableFunc(all, func(a, b keyed) int {
		return cmp.Or(a.order-b.order, strings.Compare(a.together, b.together), a.turn-b.turn)
	})
	for i, k := range all {
		members[i] = k.Member
	}
}

// attributeOf returns the attribute, or the fact, of a place.
func attributeOf(place string) string {
	attribute, _, _ := strings.Cut(place, "=")
	return attribute
}

// pick takes n canaries out of the members that may be one: one of each role in turn, so that the first batch shows most roles. Of a role, it
// takes the first member of the lowest rank.
func pick(roles []string, members map[string][]Member, n int, rank func(Member) (rank int, may bool)) (canaries []Member) {
	for len(canaries) < n {
		before := len(canaries)
		for _, role := range roles {
			i, lowest := -1, 0
			for at, m := range members[role] {
				if of, may := rank(m); may && (i < 0 || of < lowest) {
					i, lowest = at, of
				}
			}
			if i >= 0 && len(canaries) < n {
				canaries, members[role] = append(canaries, members[role][i]), slices.Delete(members[role], i, i+1)
			}
		}
		if len(canaries) == before {
			return canaries
		}
	}
	return canaries
}

// natural sorts nodes by role, stack and number of their names.
func natural(candidates []Candidate) []Candidate {
	type keyed struct {
		model.Node
		Candidate
	}
	all := make([]keyed, len(candidates))
	for i, c := range candidates {
		n, err := model.ParseNode(c.Node)
		if err != nil {
			n = model.Node{Role: c.Node}
		}
		all[i] = keyed{n, c}
	}
	slices.SortFunc(all, func(a, b keyed) int {
		return cmp.Or(strings.Compare(a.Node.Role, b.Node.Role), strings.Compare(a.Stack, b.Stack), a.Num-b.Num, strings.Compare(a.Candidate.Node, b.Candidate.Node))
	})
	sorted := make([]Candidate, len(all))
	for i, k := range all {
		sorted[i] = k.Candidate
	}
	return sorted
}
