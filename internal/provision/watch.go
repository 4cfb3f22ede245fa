package provision

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/environments"
)

// The limits that a Watcher has where it is told none.
const (
	DefaultBudget   = 3
	DefaultPatience = 5 * time.Minute
)

// Watcher makes machines that died again, by itself: never those of protected roles, never nodes under a hold, and no more
// than its budget allows in an hour. It remembers from one look to the next who was dead, so one goroutine uses it.
type Watcher struct {
	Budget   int           // machines an hour; 0 is DefaultBudget
	Patience time.Duration // how long a machine has to be seen dead before anything is done; 0 is DefaultPatience

	dead map[string]time.Time // since when a node is seen dead
}

// Watched is what one look came to.
type Watched struct {
	Dead   []Step   // what was found dead
	Acted  []Step   // what was done about it
	Notes  []string // why nothing, or not more, was done: sentences
	Result Result
}

// Once looks once, with an Applier whose lock the caller holds, and makes again what has been dead for long enough. It plans
// from the stored environment.
func (w *Watcher) Once(ctx context.Context, a *Applier) (Watched, error) {
	world, err := a.world(ctx)
	if err != nil {
		return Watched{}, err
	}
	if world.Old == nil {
		return Watched{}, fmt.Errorf("cannot watch %s: it is not stored\napply its file first", a.Ref)
	}
	p := Make(world.Old, world, Options{})
	d := Watched{Dead: deadOf(p)}
	if w.outage(p, world, &d) {
		return d, nil
	}
	ripe := w.ripe(d.Dead, world.Now)
	ripe = spared(ripe, world, &d)
	if ripe, err = w.within(ctx, a, ripe, world.Now, &d); err != nil || len(ripe) == 0 {
		return d, err
	}
	return d, w.act(ctx, a, p, ripe, &d)
}

// deadOf picks the steps of a plan that make a dead machine again.
func deadOf(p Plan) (dead []Step) {
	for _, s := range p.Steps {
		if (s.Verb == Orphan || s.Verb == Broken) && s.Makes {
			dead = append(dead, s)
		}
	}
	return dead
}

// outage reports whether so much is dead that it is not the machines: then nothing is done, and nothing remembered.
func (w *Watcher) outage(p Plan, world World, d *Watched) bool {
	all := 0
	for _, s := range p.Steps {
		if _, known := world.Records[s.Node]; known {
			all++
		}
	}
	if len(d.Dead) < 2 || len(d.Dead)*2 <= all {
		return false
	}
	d.Notes = append(d.Notes, fmt.Sprintf("%d of %d machines look dead: that looks like an outage of the provider, and nothing is done; pulley env plan shows them", len(d.Dead), all))
	w.dead = nil
	return true
}

// ripe picks those that were seen dead in a look that is long enough ago, and in all looks since.
func (w *Watcher) ripe(dead []Step, now time.Time) (ripe []Step) {
	patience := w.Patience
	if patience <= 0 {
		patience = DefaultPatience
	}
	since := map[string]time.Time{}
	for _, s := range dead {
		first, ok := w.dead[s.Node]
		if !ok {
			first = now
		}
		since[s.Node] = first
		if ok && now.Sub(first) >= patience {
			ripe = append(ripe, s)
		}
	}
	w.dead = since
	return ripe
}

// spared leaves out those that are protected or under a hold.
func spared(dead []Step, world World, d *Watched) (rest []Step) {
	for _, s := range dead {
		held := world.Held[s.Node]
		switch role, _ := world.Old.Role(s.Role); {
		case s.Blocked != "":
			why, _, _ := strings.Cut(s.Blocked, "\n") // what to do about it is for who applies
			d.Notes = append(d.Notes, fmt.Sprintf("%s is left alone: %s", s.Node, why))
		case role.Protected:
			d.Notes = append(d.Notes, fmt.Sprintf("%s is left alone: %s is protected", s.Node, s.Role))
		case held != "":
			d.Notes = append(d.Notes, fmt.Sprintf("%s is left alone: %s", s.Node, held))
		default:
			rest = append(rest, s)
		}
	}
	return rest
}

// within cuts the steps to what is left of the budget, counted from what was done by itself in the last hour.
func (w *Watcher) within(ctx context.Context, a *Applier, ripe []Step, now time.Time, d *Watched) ([]Step, error) {
	budget := w.Budget
	if budget <= 0 {
		budget = DefaultBudget
	}
	if len(ripe) == 0 {
		return nil, nil
	}
	acts, err := a.Fleet.Acts(ctx, now.Add(-time.Hour))
	if err != nil {
		return nil, fmt.Errorf("cannot count what was done to %s in the last hour: %w", a.Ref, err)
	}
	spent := 0
	for _, act := range acts {
		if act.Watch {
			spent++
		}
	}
	left := max(0, budget-spent)
	if len(ripe) <= left {
		return ripe, nil
	}
	var late []string
	for _, s := range ripe[left:] {
		late = append(late, s.Node)
	}
	d.Notes = append(d.Notes, fmt.Sprintf("%s wait: %d machines an hour are made again, and %d were", names(late), budget, spent))
	return ripe[:left], nil
}

// act makes dead machines again. Each is noted before anything is done, so that a crash never widens the budget.
func (w *Watcher) act(ctx context.Context, a *Applier, p Plan, ripe []Step, d *Watched) error {
	var victims []Victim
	for _, s := range ripe {
		act := Act{At: a.Now().UTC(), Node: s.Node, Did: Replaced, Why: s.Why, By: a.By, Watch: true}
		if err := a.Fleet.Note(ctx, act); err != nil {
			return fmt.Errorf("cannot remember that %s is made again: %w", s.Node, err)
		}
		victims = append(victims, s.Victims...)
		delete(w.dead, s.Node)
	}
	d.Acted = ripe
	p.Steps, p.Reacting = ripe, p.reactingTo(ripe)
	var err error
	d.Result, err = a.Apply(ctx, p, victims)
	return err
}

// reactingTo are the nodes that are asked for a run when only these steps are done.
func (p Plan) reactingTo(steps []Step) (nodes []string) {
	came := map[string]bool{}
	for _, s := range steps {
		came[s.Role] = true
	}
	made := map[string]bool{}
	for _, s := range steps {
		made[s.Node] = true
	}
	for _, node := range p.Reacting {
		role := roleOf(p.Spec, node)
		if !made[node] && slices.ContainsFunc(role.ReactsTo, func(r string) bool { return came[r] }) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

func roleOf(e *environments.Environment, node string) environments.Role {
	r, _ := e.RoleOf(node)
	return r
}

// Waiting names the nodes that were seen dead and are not given up yet, for people.
func (w *Watcher) Waiting() []string { return slices.Sorted(maps.Keys(w.dead)) }
