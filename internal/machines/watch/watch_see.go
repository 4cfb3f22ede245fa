package watch

import (
	"pulley/internal/machines"
	"pulley/internal/machines/plan"
)

// See looks without the fleet's lock, at a plan that was just made of the stored environment from world, and reports whether
// Once would find something that has been dead for long enough, with acts, those of the last hour, within the budget. The notes
// say why something that is dead is left alone.
func (w *Watcher) See(p plan.Plan, world machines.World, acts []machines.Act) (ripe bool, notes []string) {
	begun, found, d := w.judge(p, world)
	found = w.budgeted(found, acts, &d)
	return len(begun)+len(found) > 0, d.Notes
}
