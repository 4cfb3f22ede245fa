package apply

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"pulley/internal/machines"
)

// guard knows which machines may be destroyed: those that were agreed to, each once, and those that this very apply ordered
// and that the provider says have failed.
type guard struct {
	mu      sync.Mutex
	allowed map[machines.Ref]bool
	ordered map[machines.Ref]bool
}

func newGuard(agreed []machines.Ref) *guard {
	g := &guard{allowed: map[machines.Ref]bool{}, ordered: map[machines.Ref]bool{}}
	for _, v := range agreed {
		g.allowed[v] = true
	}
	return g
}

// agreed reports whether v was named and agreed to, itself or as one of all machines of its name.
func (g *guard) agreed(v machines.Ref) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.allowed[v] || g.allowed[machines.Ref{Name: v.Name}]
}

// order notes that this apply asked for a machine.
func (g *guard) order(m machines.Machine) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ordered[m.Ref()] = true
}

// ours reports whether this apply asked for a machine.
func (g *guard) ours(m machines.Machine) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ordered[m.Ref()]
}

// fail allows the end of a machine that this apply asked for and that has failed, and of no other.
func (g *guard) fail(m machines.Machine) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.State != machines.Failed || !g.ordered[m.Ref()] {
		return false
	}
	g.allowed[m.Ref()] = true
	return true
}

// spend takes back what was agreed to once it is done, so that the next machine of that name is not meant by it.
func (g *guard) spend(v machines.Ref) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.allowed, v)
	delete(g.ordered, v)
}

// destroy is the one place that asks the provider for the end of a machine. It is noted before, with its reason: a machine
// that went without a trace is worse than a trace of one that was spared.
func (j *job) destroy(v machines.Ref, did machines.Did, why string) error {
	if !j.guard.agreed(v) {
		return fmt.Errorf("cannot delete machine %s: nobody agreed to that\n%s", v, j.plan.Anew())
	}
	if err := j.note(did, why); err != nil {
		return err
	}
	j.log.Info("machine is deleted", "machine", v.Name, "id", v.ID, "reason", why)
	_, err := j.ask("delete", func(ctx context.Context) error { return j.a.Provider.Delete(ctx, v) }, nil)
	if err != nil {
		return fmt.Errorf("cannot delete machine %s: %w", v, err)
	}
	return nil
}

// otherMachine ends what is done for a node when a machine turns up that the plan did not know.
func (j *job) otherMachine() error {
	return errors.New("another machine of this name is there, which the plan did not know\n" + j.plan.Anew())
}
