package provision

import (
	"fmt"
	"slices"
	"time"
)

// unfinished picks the steps that go on with what a watch has begun, and counted, and was cut off in. Whatever else is short of
// what is wanted is an operator's: it is told.
func unfinished(p Plan, world World, d *Watched) (begun []Step) {
	var others []string
	for _, s := range p.Steps {
		rec := world.Records[s.Node]
		switch {
		case rec.Watch && goesOn(s, rec, world):
			if at, speaks := world.speaks(s.Node); speaks && runs(s, world) {
				d.Notes = append(d.Notes, fmt.Sprintf("%s is left alone: it was to be made again, and spoke at %s; `pulley nodes run %s --call-off` keeps its machine", s.Node, clock(at), s.Node))
				continue
			}
			begun = append(begun, s)
		case s.Verb == Create || s.Verb == Replace:
			others = append(others, s.Node)
		}
	}
	if len(others) > 0 {
		d.Notes = append(d.Notes, "left to an apply: "+names(others)+"; `pulley env plan` shows why")
	}
	return begun
}

// goesOn reports whether a step is what is left of a machine being made again. A machine that was ordered and is dead by now is
// like any other dead one.
func goesOn(s Step, rec Record, world World) bool {
	switch rec.Phase {
	case Retiring:
		return s.Verb == Replace || s.Verb == Adopt
	case Making:
		there := func(m Machine) bool { return m.Name == rec.Name && m.State != Deleting }
		return s.Verb == Create || s.Verb == Wait && slices.ContainsFunc(world.Machines, there)
	}
	return false
}

// runs reports whether a step destroys a machine that runs.
func runs(s Step, world World) bool {
	return slices.ContainsFunc(world.Machines, func(m Machine) bool { return m.State == Running && slices.ContainsFunc(s.Victims, m.is) })
}

// due picks those that were not worked at a moment ago: what failed is not tried again in each look.
func (w *Watcher) due(steps []Step, now time.Time) (due []Step) {
	for _, s := range steps {
		if at, tried := w.tried[s.Node]; !tried || now.Sub(at) >= w.patience() {
			due = append(due, s)
		}
	}
	return due
}
