package apply

import (
	"slices"
	"strings"
	"time"

	"pulley/internal/machines"
)

// machine finds the node's machine: the one in the books, else the one of its name that is not to be deleted, the newest.
func (j *job) machine(s sight) (found machines.Machine, ok bool) {
	name := j.name()
	for _, m := range s.World.Machines {
		if m.Name != name || j.guard.agreed(m.Ref()) {
			continue
		}
		if j.record != nil && j.record.ID != "" && m.ID == j.record.ID {
			return m, true
		}
		if !ok || m.Created.After(found.Created) {
			found, ok = m, true
		}
	}
	return found, ok
}

// name is the node's machine's, at the provider.
func (j *job) name() string {
	switch {
	case j.step.Order != nil:
		return j.step.Order.Name
	case j.record != nil:
		return j.record.Name
	case len(j.step.Victims) > 0:
		return j.step.Victims[0].Name
	}
	return strings.ReplaceAll(j.step.Node, "_", "-")
}

// deadline is when the node's machine has to be what is waited for.
func (j *job) deadline() time.Time {
	began := j.a.Now()
	if j.record != nil && j.record.At.Before(began) {
		began = j.record.At
	}
	// An order that somebody else gave long ago still gets a look.
	return latest(began.Add(j.plan.Spec.TimeoutOf(j.role)), j.a.Now().Add(time.Minute))
}

func latest(times ...time.Time) time.Time {
	return slices.MaxFunc(times, time.Time.Compare)
}
