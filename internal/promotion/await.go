package promotion

import (
	"fmt"

	"pulley/internal/desired/targets"
	"pulley/internal/fleet"
	"pulley/internal/model"
)

// Awaiting returns the wait for the registered nodes that changes of one environment reach. The wait ends if somebody
// replaces the target of one of them.
func Awaiting(ref model.Ref, changes ...targets.Change) fleet.Awaited {
	a := fleet.Awaited{Ref: ref, What: fmt.Sprintf("the changes in %s", ref)}
	if len(changes) == 1 {
		a.What = fmt.Sprintf("the change of %s in %s", changes[0].Scope(), ref)
	}
	last := map[Scope]targets.Change{}
	for _, c := range changes {
		last[c.Scope()] = c
	}
	a.Has = func(f fleet.FleetState, n fleet.Node) bool {
		h, listed := f.Hosts[n.Node]
		if !listed {
			return false
		}
		for _, c := range changes {
			if _, reached := moved(f.Desires, c, h); reached {
				return true
			}
		}
		return false
	}
	a.Current = func(d targets.Desires) error {
		for scope, c := range last {
			if now := d.Target(scope); now != c.After {
				return fmt.Errorf("%s replaced the target of %s by another one, at epoch %d\nrun `pulley history -e %s` to see it", d.Gate.By, scope, d.Gate.Epoch, ref)
			}
		}
		return nil
	}
	return a
}
