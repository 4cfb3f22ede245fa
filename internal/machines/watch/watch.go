// Package watch replaces dead machines, within a budget, and resumes work that an earlier watch began.
//
// It must never change protected roles, nodes under a hold, or nodes that are not in the environment.
package watch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
	"pulley/internal/model"
)

// The defaults of a Watcher.
const (
	DefaultBudget   = 3
	DefaultPatience = 5 * time.Minute
)

// Watcher finds dead machines and replaces them, within its budget. It remembers between looks which machines were
// dead: only one goroutine may use it.
type Watcher struct {
	Budget   int           // machines per hour; 0 is DefaultBudget
	Patience time.Duration // how long a machine must be seen dead before it is replaced; 0 is DefaultPatience

	dead  map[string]time.Time // since when a node has been seen dead
	tried map[string]time.Time // when a node's machine was last worked on
}

// Findings are the result of one look.
type Findings struct {
	Draft  apply.Draft
	Dead   []plan.Step       // found dead, and not reporting
	Resume []plan.Step       // begun and counted by a watch
	Again  []plan.Step       // dead for long enough, and within the budget
	Notes  []machines.Reason // why nothing, or not more, is done
}

// Ready reports whether there is work.
func (f Findings) Ready() bool { return len(f.Resume)+len(f.Again) > 0 }

// Look reads the fleet and judges its machines by the stored environment. It needs no lock.
func (w *Watcher) Look(ctx context.Context, s apply.Source) (Findings, error) {
	d, err := s.Look(ctx, nil, plan.Options{})
	if err != nil {
		return Findings{}, err
	}
	if d.Spec == nil {
		return Findings{}, fmt.Errorf("cannot watch %s: it is not stored\napply its file first", s.Ref)
	}
	f := w.judge(d)
	if len(f.Again) == 0 {
		return f, nil
	}
	acts, err := s.Reader.Acts(ctx, d.World.Now.Add(-time.Hour))
	if err != nil {
		return f, fmt.Errorf("cannot count what was done to %s in the last hour: %w", s.Ref, err)
	}
	w.keepBudget(acts, &f)
	return f, nil
}

// Act resumes unfinished work and replaces dead machines. The caller holds the Applier's lock. Act does nothing if the
// fleet changed since the look: the next look decides. It writes each replacement to the history first: a crash must
// not increase the budget. It runs no hooks: the machine is dead.
func (w *Watcher) Act(ctx context.Context, a *apply.Applier, f Findings) (apply.Result, error) {
	unchanged, err := a.Fleet.Unchanged(ctx, f.Draft.World)
	if err != nil || !unchanged {
		return apply.Result{}, err
	}
	if w.tried == nil {
		w.tried = map[string]time.Time{}
	}
	for _, s := range f.Again {
		act := machines.Act{At: a.Now().UTC(), Node: s.Node, Did: machines.Replaced, Reasons: s.Reasons, By: a.By, Watch: true}
		if err := a.Fleet.Note(ctx, act); err != nil {
			return apply.Result{}, fmt.Errorf("cannot write to the history that %s is made again: %w", s.Node, err)
		}
		delete(w.dead, s.Node)
	}
	d := f.Draft
	d.Steps = slices.Concat(f.Resume, f.Again)
	d.Reacting = d.ReactingTo(d.Steps)
	for _, s := range d.Steps {
		w.tried[s.Node] = a.Now()
	}
	watching := *a
	watching.Watch, watching.NoDrain = true, true
	return watching.Apply(ctx, d, d.Deleted())
}

// judge finds the unfinished work of watches, and the machines that have been dead for long enough.
func (w *Watcher) judge(d apply.Draft) Findings {
	f := Findings{Draft: d}
	f.findDead()
	if w.outage(&f) {
		return f
	}
	now := d.World.Now
	f.Resume = f.allowed(w.due(f.unfinished(), now))
	f.Again = f.allowed(w.ripe(f.Dead, now))
	return f
}

// note adds a note and its reasons.
func (f *Findings) note(r machines.Reason, why ...machines.Reason) {
	f.Notes = append(append(f.Notes, r), why...)
}

// findDead selects the steps that replace a dead machine. A node that reports is alive, whatever the provider reports.
func (f *Findings) findDead() {
	world := f.Draft.World
	for _, s := range f.Draft.Steps {
		if s.Verb != plan.Orphan && s.Verb != plan.Broken || !s.Creates {
			continue
		}
		if _, recorded := world.Records[s.Node]; !recorded {
			f.note(machines.Reason{Code: machines.DeadNotRecorded, Node: s.Node}, s.Reasons...)
			continue
		}
		if at, reports := world.LastReport(s.Node); reports {
			f.note(machines.Reason{Code: machines.DeadButReporting, Node: s.Node, At: at, Until: world.SilentFrom(s.Node)}, s.Reasons...)
			continue
		}
		f.Dead = append(f.Dead, s)
	}
}

// outage reports whether so many machines are dead or unlisted that the provider is the likely cause. Then the watch
// does nothing and remembers nothing. In a fleet of one or two machines, a lost machine cannot be distinguished from an
// incomplete list.
func (w *Watcher) outage(f *Findings) bool {
	world := f.Draft.World
	all, made, lost := 0, 0, 0
	for _, s := range f.Draft.Steps {
		rec, known := world.Records[s.Node]
		if !known || s.Verb == plan.Duplicate {
			continue
		}
		all++
		if rec.Phase == machines.Made {
			made++
		}
	}
	for _, s := range f.Dead {
		if s.Verb == plan.Orphan && world.Views[s.Node].State != model.Silent {
			lost++
		}
	}
	switch {
	case made > 0 && len(world.Machines) == 0:
		f.note(machines.Reason{Code: machines.NoneListed, Of: made})
	case len(f.Dead) >= 2 && len(f.Dead)*2 > all:
		f.note(machines.Reason{Code: machines.MostDead, Count: len(f.Dead), Of: all})
	case all <= 2 && lost > 0:
		f.note(machines.Reason{Code: machines.FewListed, Count: lost, Of: all})
	default:
		return false
	}
	w.dead = nil
	return true
}

// ripe selects the steps of machines that were dead in every look for long enough.
func (w *Watcher) ripe(dead []plan.Step, now time.Time) (ripe []plan.Step) {
	since := map[string]time.Time{}
	for _, s := range dead {
		first, seen := w.dead[s.Node]
		if !seen {
			first = now
		} else if now.Sub(first) >= w.patience() {
			ripe = append(ripe, s)
		}
		since[s.Node] = first
	}
	w.dead = since
	return ripe
}

func (w *Watcher) patience() time.Duration { return cmp.Or(w.Patience, DefaultPatience) }

// unfinished selects the steps that a watch began, counted, and did not finish. All other work is an operator's.
func (f *Findings) unfinished() (begun []plan.Step) {
	var others []string
	world := f.Draft.World
	for _, s := range f.Draft.Steps {
		rec := world.Records[s.Node]
		switch {
		case rec.Watch && resumes(s, rec, world):
			if at, reports := world.LastReport(s.Node); reports && deletesRunning(s, world) {
				f.note(machines.Reason{Code: machines.ReplacedButReports, Node: s.Node, Environment: f.Draft.Fleet.String(), At: at})
				continue
			}
			begun = append(begun, s)
		case s.Verb == plan.Create || s.Verb == plan.Replace:
			others = append(others, s.Node)
		}
	}
	if len(others) > 0 {
		f.note(machines.Reason{Code: machines.LeftToApply, Nodes: others})
	}
	return begun
}

// resumes reports whether a step completes the replacement of a machine. A machine that was ordered and died since is
// like any other dead one.
func resumes(s plan.Step, rec machines.Record, world machines.World) bool {
	switch rec.Phase {
	case machines.Retiring:
		return s.Verb == plan.Replace || s.Verb == plan.Adopt
	case machines.Making:
		exists := func(m machines.Machine) bool { return m.Name == rec.Name && m.State != machines.Deleting }
		return s.Verb == plan.Create || s.Verb == plan.Wait && slices.ContainsFunc(world.Machines, exists)
	}
	return false
}

func deletesRunning(s plan.Step, world machines.World) bool {
	return slices.ContainsFunc(world.Machines, func(m machines.Machine) bool {
		return m.State == machines.Running && slices.ContainsFunc(s.Deletes, m.Is)
	})
}

// due selects the steps that were not tried just now: a failed step is not retried in each look.
func (w *Watcher) due(steps []plan.Step, now time.Time) (due []plan.Step) {
	for _, s := range steps {
		if at, tried := w.tried[s.Node]; !tried || now.Sub(at) >= w.patience() {
			due = append(due, s)
		}
	}
	return due
}

// allowed removes the steps that are blocked, protected or under a hold.
func (f *Findings) allowed(steps []plan.Step) (rest []plan.Step) {
	world := f.Draft.World
	for _, s := range steps {
		held, isHeld := world.Held[s.Node]
		switch role, _ := world.Old.Role(s.Role); {
		case role.Protected:
			f.note(machines.Reason{Code: machines.RoleIsProtected, Node: s.Node, Role: s.Role})
		case s.Blocked != nil:
			f.note(machines.Reason{Code: machines.StepBlocked, Node: s.Node}, *s.Blocked)
		case isHeld:
			f.note(machines.Reason{Code: machines.NodeIsHeld, Node: s.Node, Hold: &held})
		default:
			rest = append(rest, s)
		}
	}
	return rest
}

// keepBudget limits the replacements to the rest of the budget, by the acts of the last hour.
func (w *Watcher) keepBudget(acts []machines.Act, f *Findings) {
	budget, spent := cmp.Or(w.Budget, DefaultBudget), 0
	for _, act := range acts {
		if act.Watch {
			spent++
		}
	}
	left := max(0, budget-spent)
	if len(f.Again) <= left {
		return
	}
	var late []string
	for _, s := range f.Again[left:] {
		late = append(late, s.Node)
	}
	f.note(machines.Reason{Code: machines.BudgetSpent, Nodes: late, Count: spent, Of: budget})
	f.Again = f.Again[:left]
}
