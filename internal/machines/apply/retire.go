package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"pulley/internal/fleet"
	"pulley/internal/machines"
	"pulley/internal/machines/plan"
	"pulley/internal/machines/render"
	"pulley/internal/model"
)

const (
	goneLimit   = 15 * time.Minute // of a machine's deletion
	deleteAgain = time.Minute      // a machine that the provider is not deleting by then is deleted again
)

// retire records the retirement of the node's machine before it changes anything. The approval may be old: a machine
// that appeared since then, or that is healthy again, is not changed.
func retire(j *job) error {
	if err := j.awaitPlace(); err != nil {
		return err
	}
	s, err := j.look()
	if err != nil {
		return err
	}
	if _, other := j.machine(s); other {
		return j.otherMachine()
	}
	if j.step.Verb == plan.Broken && j.healthy(s) {
		return errors.New("its machine runs and the node is converged: it is not broken any more\n" + lookAgain(j.draft.Destroys))
	}
	if at, reports := s.World.LastReport(j.step.Node); reports && j.step.Verb == plan.Orphan {
		return fmt.Errorf("the provider had no machine of it, but it reported at %s\n%s", at.UTC().Format(time.RFC3339), lookAgain(j.draft.Destroys))
	}
	if j.record != nil && j.record.Phase == machines.Retiring {
		return nil
	}
	if len(j.step.Deletes) == 0 {
		if err := j.note(machines.Released, j.step.Reasons); err != nil {
			return err
		}
	}
	r := machines.Record{Node: j.step.Node, Name: j.name(), Driver: j.a.Driver, Place: j.a.Place}
	if j.record != nil {
		r = *j.record
	}
	r.Phase, r.By, r.At, r.Places = machines.Retiring, j.a.By, j.now(), j.draft.World.Places[j.step.Node]
	r.Ask, r.Drained, r.Watch, r.Problem, r.Reasons = "", false, j.a.Watch, "", j.step.Reasons
	return j.put(r)
}

// awaitPlace waits until the policy for rollouts allows that the node becomes unavailable, and then counts it as unavailable. It
// fails if the same nodes prevent that for the role's timeout.
func (j *job) awaitPlace() error {
	if len(j.draft.World.Places[j.step.Node]) == 0 || j.draft.Destroys {
		return nil
	}
	j.since = j.poller.next()
	limit := j.draft.Spec.TimeoutOf(j.role)
	var first, last machines.Reason
	late := func(cause string) error {
		switch {
		case !slices.Equal(first.Nodes, last.Nodes):
			return errOtherNodes
		case len(last.Nodes) == 0:
			return fmt.Errorf("its retirement could not begin within %s: %s", limit, cause)
		}
		return fmt.Errorf("its retirement could not begin within %s: %s\n`pulley explain %s -e %s` shows why; repair or remove the node, and %s", limit, render.Reason(last), last.Nodes[0], j.a.Ref, resume(false))
	}
	for {
		first = machines.Reason{}
		waited := false
		until := j.a.Now().Add(limit)
		err := j.await("retire", until, late, func(s snapshot) (bool, machines.Reason, error) {
			if left := j.turn.left(); left != nil {
				return false, last, left
			}
			why := j.unavailable(s)
			if why == nil {
				return true, machines.Reason{}, nil
			}
			if j.hopeless(why.Nodes) {
				return false, *why, fmt.Errorf("cannot begin its retirement: %s, and this apply failed on them\nrepair or remove %s, and %s",
					render.Reason(*why), strings.Join(why.Nodes, " or "), resume(false))
			}
			j.turn.end() // others may work meanwhile
			waited = true
			if last = *why; len(first.Nodes) == 0 {
				first = last
			}
			shown := *why
			shown.Until = until
			return false, j.lasting(shown), nil
		})
		if err == nil && waited {
			err = j.reenter()
		}
		if !errors.Is(err, errOtherNodes) {
			return err
		}
	}
}

// reenter takes the turn again, which may come long after the place was free, and looks at the place once more.
func (j *job) reenter() error {
	if !j.turn.begin() {
		return j.over()
	}
	err := j.turn.left()
	if err == nil {
		var s snapshot
		if s, err = j.look(); err == nil && j.unavailable(s) != nil {
			err = errOtherNodes
		}
	}
	if err != nil { // nothing was begun
		j.available(j.step.Node)
	}
	return err
}

// lasting returns the cause to show of a wait for a place: the shown one while only nodes that this apply works on have followed it.
// Otherwise each node that is done would add a line for each one that waits.
func (j *job) lasting(now machines.Reason) machines.Reason {
	j.retiring.Lock()
	defer j.retiring.Unlock()
	shown := j.waiting
	other := func(node string) bool { return !j.begun[node] && !slices.Contains(shown.Nodes, node) }
	if shown.Code != now.Code || shown.Place != now.Place || !shown.Until.Equal(now.Until) || slices.ContainsFunc(now.Nodes, other) {
		return now
	}
	return shown
}

// errOtherNodes means that a wait may continue: others became unavailable meanwhile.
var errOtherNodes = errors.New("it waits for other nodes than before")

// unavailable counts the node as unavailable from now on, unless a limit forbids it. Two nodes never take the same place at once.
func (j *job) unavailable(s snapshot) *machines.Reason {
	j.retiring.Lock()
	defer j.retiring.Unlock()
	begun := maps.Clone(j.begun)
	maps.DeleteFunc(begun, func(node string, _ bool) bool {
		since, failed := j.failed[node]
		return failed && s.No.world >= since.world
	})
	if j.step.Yields() {
		if why := plan.MayRetire(j.draft.Spec, s.World, j.step.Node, begun); why != nil {
			return why
		}
	}
	j.begun[j.step.Node] = true
	return nil
}

// available ends what unavailable began: the node is removed, or its next machine converged.
func (e *engine) available(node string) {
	e.retiring.Lock()
	defer e.retiring.Unlock()
	delete(e.begun, node)
}

// givenUp notes that the step of a node failed. Whether the node is unavailable is then to be seen: it may be without a machine, or its
// machine works although its hooks failed.
func (e *engine) givenUp(node string) {
	e.retiring.Lock()
	defer e.retiring.Unlock()
	e.failed[node] = e.poller.next()
}

// hopeless reports whether the steps of all these nodes failed: nothing in this apply makes them available.
func (e *engine) hopeless(nodes []string) bool {
	e.retiring.Lock()
	defer e.retiring.Unlock()
	return len(nodes) > 0 && !slices.ContainsFunc(nodes, func(node string) bool { _, failed := e.failed[node]; return !failed })
}

// goal returns the state that the job waits for. A node with places counts as unavailable until its new machine converged.
func (j *job) goal() Waiting {
	j.retiring.Lock()
	defer j.retiring.Unlock()
	if j.begun[j.step.Node] && j.step.Yields() {
		return WaitConverged
	}
	return j.a.Wait
}

// healthy reports whether a node that the plan found broken is healthy now.
func (j *job) healthy(s snapshot) bool {
	if _, ok := s.World.Hosts[j.step.Node]; !ok || !s.World.Views[j.step.Node].Settled() {
		return false
	}
	found := false
	for _, m := range s.World.Machines {
		if slices.ContainsFunc(j.step.Deletes, m.Is) {
			if m.State != machines.Running {
				return false
			}
			found = true
		}
	}
	return found
}

// hold keeps the node from running Puppet, which would undo the work of its retire hooks.
func hold(j *job) error {
	s, err := j.look()
	if err != nil || !j.drains(s) {
		return err
	}
	h := model.Hold{Scope: "nodes/" + j.step.Node, Mode: model.Stop, Kind: model.RetirementHold, Who: j.a.By, Why: model.Prose(render.Reasons(j.step.Reasons)), Since: j.a.Now().UTC()}
	err = j.persist(j.step.Node+"hold", func(ctx context.Context) error { return j.a.Fleet.Hold(ctx, j.step.Node, h) })
	if err != nil {
		return fmt.Errorf("cannot hold it: %w", err)
	}
	return nil
}

// drains reports whether a machine can run the node's hooks.
func (j *job) drains(s snapshot) bool {
	if !j.step.Drain || j.a.NoDrain || j.record.Drained {
		return false
	}
	if _, ok := s.World.Hosts[j.step.Node]; !ok {
		return false
	}
	if len(j.step.Deletes) == 0 { // a member, whose machine no provider lists
		return true
	}
	return slices.ContainsFunc(s.World.Machines, func(m machines.Machine) bool {
		return slices.ContainsFunc(j.step.Deletes, m.Is) && (m.State == machines.Running || m.State == machines.Unknown)
	})
}

// requestRetirement requests the retire hooks of the node, once: an apply that resumes waits for the answer to the same
// request.
func requestRetirement(j *job) error {
	s, err := j.look()
	if err != nil || !j.drains(s) {
		return err
	}
	if asked := s.World.Hosts[j.step.Node].Request; j.record.Ask != "" && asked != nil && asked.ID == j.record.Ask {
		return nil
	}
	r := *j.record
	if r.Ask == "" {
		r.Ask = newID()
		if err := j.put(r); err != nil {
			return err
		}
	}
	err = j.request(model.Request{ID: r.Ask, Do: model.RequestRetire, Why: model.Prose(render.Reasons(j.step.Reasons))})
	if errors.Is(err, fleet.ErrNotListed) { // an operator removed it
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot request its retirement: %w", err)
	}
	j.since = j.poller.next()
	return nil
}

// drain waits until the node has run its hooks, or can no longer run them.
func drain(j *job) error {
	limit := cmp.Or(j.a.DrainTimeout, DefaultDrainTimeout)
	waits := machines.Reason{Code: machines.WaitsForHooks}
	var failed model.Prose
	remedy := fmt.Sprintf("%s, with --no-drain to skip its hooks", resume(j.draft.Destroys))
	late := func(string) error {
		return fmt.Errorf("its retire hooks did not finish within %s\nthe node is held and stays as it is; check it and %s", limit, remedy)
	}
	err := j.await("drain", j.a.Now().Add(limit), late, func(s snapshot) (bool, machines.Reason, error) {
		if !j.drains(s) {
			return true, waits, nil
		}
		if a := s.World.Statuses[j.step.Node].Answer; a != nil && a.ID == j.record.Ask {
			failed = machines.Quote(a.Sentence())
			return true, waits, nil
		}
		if asked := s.World.Hosts[j.step.Node].Request; asked == nil || asked.ID != j.record.Ask {
			return false, waits, errors.New("its retirement was cancelled: another request replaced it\n" + lookAgain(j.draft.Destroys))
		}
		return false, waits, nil
	})
	if err != nil {
		return err
	}
	r := *j.record
	if failed != "" {
		r.Ask, r.Problem = "", failed // the next apply requests it again
		if err := j.put(r); err != nil {
			return err
		}
		return fmt.Errorf("its retire hooks failed: %s\nthe node is held and stays as it is; fix that and %s", failed, remedy)
	}
	if r.Drained {
		return nil
	}
	r.Drained = true
	return j.put(r)
}

// remove removes the node from the fleet. From here on, no activity of its machine counts as the node's.
func remove(j *job) error {
	if !j.step.Removes {
		return nil
	}
	return j.removeNode(j.step.Reasons)
}

// deleteAll deletes each machine in the plan's step.
func deleteAll(j *job) error {
	for _, r := range j.step.Deletes {
		if err := j.destroy(r, j.deletion(), j.step.Reasons); err != nil {
			return err
		}
	}
	return nil
}

// deletion returns the kind of the history entry for the deletion of the node's machines.
func (j *job) deletion() machines.Did {
	if j.step.Creates {
		return machines.Replaced
	}
	return machines.Deleted
}

// recheckDuplicate checks that the node's own machine still exists before it deletes another of its name: the approval
// may be old.
func recheckDuplicate(j *job) error {
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
		switch deleted := slices.ContainsFunc(j.step.Deletes, m.Is); {
		case !deleted:
			stays = stays || !going && !j.approvals.has(m.Ref())
		case going:
		case s.World.RegisteredFrom(j.step.Node, m):
			return fmt.Errorf("machine %s has joined, and is the node now\n%s", m.Ref(), lookAgain(j.draft.Destroys))
		}
	}
	if !stays {
		return errors.New("the machine that was to stay is gone: this is the last one\n" + lookAgain(j.draft.Destroys))
	}
	return nil
}

// awaitGone waits until none of the machines is listed, and checks that no other machine has the name. Then the name is
// free.
func awaitGone(j *job) error {
	if err := awaitCleared(j); err != nil {
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

// awaitCleared waits until none of the step's machines is listed.
func awaitCleared(j *job) error {
	return j.awaitGone("gone", j.step.Deletes, j.deletion(), j.step.Reasons)
}

func (j *job) awaitGone(task string, refs []machines.Ref, did machines.Did, why []machines.Reason) error {
	if len(refs) == 0 {
		return nil
	}
	deleted := j.a.Now()
	j.since = j.poller.next()
	late := func(string) error {
		return fmt.Errorf("its machine is not gone %s after its deletion\ncheck it at the provider, and %s", goneLimit, resume(j.draft.Destroys))
	}
	err := j.await(task, deleted.Add(goneLimit), late, func(s snapshot) (bool, machines.Reason, error) {
		for _, m := range s.World.Machines {
			if !slices.ContainsFunc(refs, m.Is) {
				continue
			}
			// A machine that another program deletes may report another state for a moment: only an approved deletion is repeated.
			if m.State != machines.Deleting && j.approvals.has(m.Ref()) && j.a.Now().Sub(deleted) >= deleteAgain {
				deleted = j.a.Now()
				return false, machines.Reason{Code: machines.WaitsForEndAgain}, j.destroy(m.Ref(), did, why)
			}
			return false, machines.Reason{Code: machines.WaitsForEnd}, nil
		}
		return true, machines.Reason{}, nil
	})
	if err != nil {
		return err
	}
	for _, r := range refs {
		j.approvals.spend(r)
	}
	return nil
}

// forget deletes the node's record, which frees its name. If a new machine is made for the node, the same write claims
// the name for it: the intention is never lost.
func forget(j *job) error {
	s, err := j.look()
	if err != nil {
		return err
	}
	// A machine that was booting may have joined after its node was removed, and before its end.
	if _, joined := s.World.Hosts[j.step.Node]; joined && j.step.Removes {
		if err := j.removeNode(j.step.Reasons); err != nil {
			return err
		}
	}
	j.heard, j.resumes = s.World.Statuses[j.step.Node], false
	if !j.step.Creates {
		return j.dropRecord()
	}
	j.claimed = true
	return j.put(j.claimedRecord())
}

// newID returns the id of a request: 16 hex digits.
func newID() string { return fmt.Sprintf("%016x", rand.Uint64()) }
