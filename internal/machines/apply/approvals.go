package apply

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"pulley/internal/machines"
)

// approvals contains the machines that may be deleted: those that were approved, each once, and those that this apply
// ordered and that the provider reports as failed.
type approvals struct {
	mu      sync.Mutex
	allowed map[machines.Ref]bool
	ordered map[machines.Ref]bool
}

func newApprovals(approved []machines.Ref) *approvals {
	a := &approvals{allowed: map[machines.Ref]bool{}, ordered: map[machines.Ref]bool{}}
	for _, r := range approved {
		a.allowed[r] = true
	}
	return a
}

// has reports whether the deletion of a machine was approved, by its id or with all machines of its name.
func (a *approvals) has(r machines.Ref) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.allowed[r] || a.allowed[machines.Ref{Name: r.Name}]
}

// addOrdered records that this apply ordered a machine.
func (a *approvals) addOrdered(m machines.Machine) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ordered[m.Ref()] = true
}

// hasOrdered reports whether this apply ordered a machine.
func (a *approvals) hasOrdered(m machines.Machine) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ordered[m.Ref()]
}

// addFailed approves the deletion of a failed machine that this apply ordered. It approves no other.
func (a *approvals) addFailed(m machines.Machine) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m.State != machines.Failed || !a.ordered[m.Ref()] {
		return false
	}
	a.allowed[m.Ref()] = true
	return true
}

// spend ends an approval once the machine is gone: it does not apply to the next machine of that name.
func (a *approvals) spend(r machines.Ref) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.allowed, r)
	delete(a.ordered, r)
}

// destroy is the only place that requests a deletion from the provider. It writes the reason to the history first: an
// entry without a deletion is better than a deletion without an entry.
func (j *job) destroy(r machines.Ref, did machines.Did, why []machines.Reason) error {
	if !j.approvals.has(r) {
		return fmt.Errorf("cannot delete machine %s: its deletion is not approved\n%s", r, lookAgain(j.draft.Destroys))
	}
	if err := j.note(did, why); err != nil {
		return err
	}
	j.log.Info("machine is deleted", "machine", r.Name, "id", r.ID, "reason", codes(why))
	_, err := j.ask("delete", func(ctx context.Context) error { return j.a.Provider.Delete(ctx, r) }, nil)
	if err != nil {
		return fmt.Errorf("cannot delete machine %s: %w", r, err)
	}
	return nil
}

// otherMachine fails a step if there is a machine that the plan does not contain.
func (j *job) otherMachine() error {
	return errors.New("another machine has its name, and is not in the plan\n" + lookAgain(j.draft.Destroys))
}

func codes(why []machines.Reason) (all []machines.Code) {
	for _, r := range why {
		all = append(all, r.Code)
	}
	return all
}
