package watch

import (
	"fmt"
	"slices"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/plan"
)

// unfinished picks the steps that go on with what a watch has begun, and counted, and was cut off in. Whatever else is short of
// what is wanted is an operator's: it is told.
func unfinished(p plan.Plan, world machines.World, d *Watched) (begun []plan.Step) {
	var others []string
	for _, s := range p.Steps {
		rec := world.Records[s.Node]
		switch {
		case rec.Watch && goesOn(s, rec, world):
			if at, speaks := world.LastSpoke(s.Node); speaks && runs(s, world) {
				d.Notes = append(d.Notes, fmt.Sprintf("%s is left alone: it was to be made again, and spoke at %s; `pulley nodes run %s --cancel-retirement` keeps its machine", s.Node, machines.Clock(at), s.Node))
				continue
			}
			begun = append(begun, s)
		case s.Verb == plan.Create || s.Verb == plan.Replace:
			others = append(others, s.Node)
		}
	}
	if len(others) > 0 {
		d.Notes = append(d.Notes, "left to an apply: "+machines.Names(others)+"; `pulley env plan` shows why")
	}
	return begun
}

// goesOn reports whether a step is what is left of a machine being made again. A machine that was ordered and is dead by now is
// like any other dead one.
func goesOn(s plan.Step, rec machines.Record, world machines.World) bool {
	switch rec.Phase {
	case machines.Retiring:
		return s.Verb == plan.Replace || s.Verb == plan.Adopt
	case machines.Making:
		there := func(m machines.Machine) bool { return m.Name == rec.Name && m.State != machines.Deleting }
		return s.Verb == plan.Create || s.Verb == plan.Wait && slices.ContainsFunc(world.Machines, there)
	}
	return false
}

// runs reports whether a step destroys a machine that runs.
func runs(s plan.Step, world machines.World) bool {
	return slices.ContainsFunc(world.Machines, func(m machines.Machine) bool {
		return m.State == machines.Running && slices.ContainsFunc(s.Victims, m.Is)
	})
}

// due picks those that were not worked at a moment ago: what failed is not tried again in each look.
func (w *Watcher) due(steps []plan.Step, now time.Time) (due []plan.Step) {
	for _, s := range steps {
		if at, tried := w.tried[s.Node]; !tried || now.Sub(at) >= w.patience() {
			due = append(due, s)
		}
	}
	return due
}
