package apply

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"pulley/internal/machines"
)

const (
	goneLimit   = 15 * time.Minute // of a machine's end, from being asked for
	deleteAgain = time.Minute      // a machine that is not on its way out by then is deleted again
)

// deleteAll asks for the end of each machine that the plan named.
func (j *job) deleteAll() error {
	for _, v := range j.step.Victims {
		if err := j.destroy(v, j.ends(), j.step.Why); err != nil {
			return err
		}
	}
	return nil
}

// ends is what the end of the node's machines is called.
func (j *job) ends() machines.Did {
	if j.step.Makes {
		return machines.Replaced
	}
	return machines.Deleted
}

// spare looks once more whether the machine that was taken for the node is there, before another of its name is deleted: what
// was agreed to may be long ago.
func (j *job) spare() error {
	s, err := j.look()
	if err != nil {
		return err
	}
	stays := false
	for _, m := range s.World.Machines {
		if m.Name != j.name() {
			continue
		}
		going := m.State == machines.Deleting || m.State == machines.Failed
		switch victim := slices.ContainsFunc(j.step.Victims, m.Is); {
		case !victim:
			stays = stays || !going && !j.guard.agreed(m.Ref())
		case going:
		case s.World.RegisteredFrom(j.step.Node, m):
			return fmt.Errorf("machine %s has joined: it is the node by now\nlook at a new plan", m.Ref())
		}
	}
	if !stays {
		return errors.New("the machine that was to stay is gone: this is the last one\nlook at a new plan")
	}
	return nil
}

// gone waits until none of the machines is listed any more, and makes sure that no other of that name is left: what comes
// next takes the name for free.
func (j *job) gone() error {
	if err := j.cleared(); err != nil {
		return err
	}
	if j.a.Provider == nil {
		return nil
	}
	s, err := j.look()
	if err != nil {
		return err
	}
	if _, ok := j.machine(s); ok {
		return j.otherMachine()
	}
	return nil
}

// cleared waits until none of the step's machines is listed any more.
func (j *job) cleared() error { return j.awaitGone("gone", j.step.Victims, j.ends(), j.step.Why) }

func (j *job) awaitGone(step string, victims []machines.Ref, did machines.Did, why string) error {
	if len(victims) == 0 {
		return nil
	}
	asked := j.a.Now()
	j.since = j.eyes.next()
	err := j.await(step, asked.Add(goneLimit), func(s sight) (bool, string, error) {
		for _, m := range s.World.Machines {
			if !slices.ContainsFunc(victims, m.Is) {
				continue
			}
			if m.State != machines.Deleting && j.a.Now().Sub(asked) >= deleteAgain {
				asked = j.a.Now()
				return false, "its machine is still there: its end is asked for again", j.destroy(m.Ref(), did, why)
			}
			return false, "its machine is not gone yet", nil
		}
		return true, "", nil
	})
	var late *lateError
	if errors.As(err, &late) {
		return fmt.Errorf("its machine is not gone %s after its end was asked for\nlook at it at the provider, and %s", goneLimit, j.plan.GoOn())
	}
	if err != nil {
		return err
	}
	for _, v := range victims {
		j.guard.spend(v)
	}
	return nil
}

// awaitEnd waits until a machine is gone whose end somebody else asked for.
func (j *job) awaitEnd(step string, v machines.Ref) error {
	err := j.await(step, j.a.Now().Add(goneLimit), func(s sight) (bool, string, error) {
		there := slices.ContainsFunc(s.World.Machines, func(m machines.Machine) bool { return m.Is(v) })
		return !there, "its machine is being deleted by somebody else", nil
	})
	if late := (*lateError)(nil); errors.As(err, &late) {
		return fmt.Errorf("%s, and is not gone after %s\nlook at it at the provider, and %s", late.what, goneLimit, j.plan.GoOn())
	}
	return err
}

// forget strikes the node off the books: its name is free. Where another machine is made of it the same write claims the name for
// that one, so that there is no moment at which nobody knows what was begun.
func (j *job) forget() error {
	s, err := j.look()
	if err != nil {
		return err
	}
	// A machine that was booting may have joined after its node was removed, and before its end.
	if _, joined := s.World.Hosts[j.step.Node]; joined && j.step.Removes {
		if err := j.removeNode(j.step.Why); err != nil {
			return err
		}
	}
	j.heard, j.resume = s.World.Statuses[j.step.Node], false
	if !j.step.Makes {
		return j.dropRecord()
	}
	j.claimed = true
	return j.put(j.claims())
}
