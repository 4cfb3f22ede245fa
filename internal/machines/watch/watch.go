package watch

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/agent"
	"pulley/internal/machines"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
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

	dead  map[string]time.Time // since when a node is seen dead
	tried map[string]time.Time // when a node's machine was last worked at
}

// Watched is what one look came to.
type Watched struct {
	Dead   []plan.Step // what was found dead, and does not speak
	Acted  []plan.Step // what was done about it
	Notes  []string    // why nothing, or not more, was done: sentences
	Result apply.Result
}

// Once looks once, with an Applier whose lock the caller holds, and makes again what has been dead for long enough. It plans
// from the stored environment.
func (w *Watcher) Once(ctx context.Context, a *apply.Applier) (Watched, error) {
	world, err := a.World(ctx)
	if err != nil {
		return Watched{}, err
	}
	if world.Old == nil {
		return Watched{}, fmt.Errorf("cannot watch %s: it is not stored\napply its file first", a.Ref)
	}
	p := plan.Make(world.Old, world, plan.Options{Place: a.Place})
	begun, ripe, d := w.judge(p, world)
	if ripe, err = w.within(ctx, a, ripe, world.Now, &d); err != nil || len(begun)+len(ripe) == 0 {
		return d, err
	}
	return d, w.act(ctx, a, p, begun, ripe, &d)
}

// judge finds what a watch has begun and was cut off in, and what has been dead for long enough.
func (w *Watcher) judge(p plan.Plan, world machines.World) (begun, ripe []plan.Step, d Watched) {
	d.Dead = deadOf(p, world, &d)
	if w.outage(p, world, &d) {
		return nil, nil, d
	}
	begun = spared(w.due(unfinished(p, world, &d), world.Now), world, &d)
	ripe = spared(w.ripe(d.Dead, world.Now), world, &d)
	return begun, ripe, d
}

// deadOf picks the steps of a plan that make a dead machine again. Whatever the provider says of it: what speaks is alive.
func deadOf(p plan.Plan, world machines.World, d *Watched) (dead []plan.Step) {
	for _, s := range p.Steps {
		if s.Verb != plan.Orphan && s.Verb != plan.Broken || !s.Makes {
			continue
		}
		if _, booked := world.Records[s.Node]; !booked {
			d.Notes = append(d.Notes, fmt.Sprintf("%s is left to an apply: its machine is not in the books, and %s", s.Node, s.Why))
			continue
		}
		if at, speaks := world.LastSpoke(s.Node); speaks {
			d.Notes = append(d.Notes, fmt.Sprintf("%s is left alone: it spoke at %s, though %s; it counts as silent from %s", s.Node, machines.Clock(at), s.Why, machines.Clock(world.SilentFrom(s.Node))))
			continue
		}
		dead = append(dead, s)
	}
	return dead
}

// outage reports whether so much is dead, or is not listed, that it is not the machines: then nothing is done, and nothing
// remembered. Of one or two machines nothing tells a machine that is lost from a list that is not whole.
func (w *Watcher) outage(p plan.Plan, world machines.World, d *Watched) bool {
	all, made, lost := 0, 0, 0
	for _, s := range p.Steps {
		rec, known := world.Records[s.Node]
		if !known || s.Verb == plan.Duplicate {
			continue
		}
		all++
		if rec.Phase == machines.Made {
			made++
		}
	}
	for _, s := range d.Dead {
		if s.Verb == plan.Orphan && world.Views[s.Node].State != agent.Silent {
			lost++
		}
	}
	says := ""
	switch {
	case made > 0 && len(world.Machines) == 0:
		says = "the provider lists none of " + machines.Count(made, "machine")
	case len(d.Dead) >= 2 && len(d.Dead)*2 > all:
		says = fmt.Sprintf("%d of %d machines look dead", len(d.Dead), all)
	case all <= 2 && lost > 0:
		says = fmt.Sprintf("%d of %s %s not listed", lost, machines.Count(all, "machine"), machines.Are(lost))
	default:
		return false
	}
	d.Notes = append(d.Notes, says+": that looks like an outage of the provider, and nothing is done; pulley env plan shows them")
	w.dead = nil
	return true
}

// ripe picks those that were seen dead in a look that is long enough ago, and in all looks since.
func (w *Watcher) ripe(dead []plan.Step, now time.Time) (ripe []plan.Step) {
	since := map[string]time.Time{}
	for _, s := range dead {
		first, ok := w.dead[s.Node]
		if !ok {
			first = now
		}
		since[s.Node] = first
		if ok && now.Sub(first) >= w.patience() {
			ripe = append(ripe, s)
		}
	}
	w.dead = since
	return ripe
}

func (w *Watcher) patience() time.Duration {
	if w.Patience <= 0 {
		return DefaultPatience
	}
	return w.Patience
}

// spared leaves out those that are protected or under a hold.
func spared(dead []plan.Step, world machines.World, d *Watched) (rest []plan.Step) {
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
func (w *Watcher) within(ctx context.Context, a *apply.Applier, ripe []plan.Step, now time.Time, d *Watched) ([]plan.Step, error) {
	if len(ripe) == 0 {
		return nil, nil
	}
	acts, err := a.Fleet.Acts(ctx, now.Add(-time.Hour))
	if err != nil {
		return nil, fmt.Errorf("cannot count what was done to %s in the last hour: %w", a.Ref, err)
	}
	return w.budgeted(ripe, acts, d), nil
}

// budgeted is within, with the acts of the last hour.
func (w *Watcher) budgeted(ripe []plan.Step, acts []machines.Act, d *Watched) []plan.Step {
	budget := w.Budget
	if budget <= 0 {
		budget = DefaultBudget
	}
	spent := 0
	for _, act := range acts {
		if act.Watch {
			spent++
		}
	}
	left := max(0, budget-spent)
	if len(ripe) <= left {
		return ripe
	}
	var late []string
	for _, s := range ripe[left:] {
		late = append(late, s.Node)
	}
	d.Notes = append(d.Notes, fmt.Sprintf("%s wait: %d machines an hour are made again, and %d were", machines.Names(late), budget, spent))
	return ripe[:left]
}

// act goes on with what was begun, and makes dead machines again. Each of these is noted before anything is done, so that a crash
// never widens the budget. Nobody is asked to run hooks: it is dead, or is not the node.
func (w *Watcher) act(ctx context.Context, a *apply.Applier, p plan.Plan, begun, ripe []plan.Step, d *Watched) error {
	if w.tried == nil {
		w.tried = map[string]time.Time{}
	}
	for _, s := range ripe {
		act := machines.Act{At: a.Now().UTC(), Node: s.Node, Did: machines.Replaced, Why: s.Why, By: a.By, Watch: true}
		if err := a.Fleet.Note(ctx, act); err != nil {
			return fmt.Errorf("cannot remember that %s is made again: %w", s.Node, err)
		}
		delete(w.dead, s.Node)
	}
	d.Acted = slices.Concat(begun, ripe)
	for _, s := range d.Acted {
		w.tried[s.Node] = a.Now()
	}
	p.Steps, p.Reacting = d.Acted, p.ReactingTo(d.Acted)
	watching := *a
	watching.Watch, watching.NoDrain = true, true
	var err error
	d.Result, err = watching.Apply(ctx, p, p.Destroyed())
	return err
}

// Waiting names the nodes that were seen dead and are not given up yet, for people.
func (w *Watcher) Waiting() []string { return slices.Sorted(maps.Keys(w.dead)) }
