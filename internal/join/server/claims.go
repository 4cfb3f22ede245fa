package server

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/clip"
	"pulley/internal/etcd"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/specs"
)

// namesLast is the cache time of a role's taken names. A number that becomes free meanwhile is assigned a moment
// later. The transaction of a join detects a number that was taken meanwhile.
const namesLast = time.Second

// claims assigns numbers. Concurrent requests at this serve do not compete for the same one.
type claims struct {
	db  *etcd.DB
	now func() time.Time

	mu    sync.Mutex
	roles map[string]*roleClaims
}

// roleClaims are the numbers of a role.
type roleClaims struct {
	lock chan struct{} // held while names are read and a number is picked
	read time.Time     // time of the last read of names

	mu      sync.Mutex // guards the fields below
	names   map[string]bool
	pending map[string]bool // assigned, not yet written
}

// free returns a number. A taken number is not assigned again.
func (r *roleClaims) free(node string, taken bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pending, node)
	if taken {
		r.names[node] = true
	}
}

func (r *roleClaims) handedOut() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.pending)
}

func (c *claims) role(ref model.Ref, role string) *roleClaims {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := ref.String() + "/" + role
	if c.roles[key] == nil {
		c.roles[key] = &roleClaims{lock: make(chan struct{}, 1), pending: map[string]bool{}}
	}
	return c.roles[key]
}

// claimed is an assigned number. The caller must call free, and report whether the number was taken.
type claimed struct {
	node string
	free func(taken bool)
}

// claim picks the lowest free number of a role. before is the number of the last conflicting attempt ("" for none). If
// another serve got that number, claim also considers higher ones: otherwise two serves would keep competing for the
// same number.
func (c *claims) claim(ctx context.Context, ref model.Ref, role string, attempt int, before string) (claimed, error) {
	e, _, err := specs.In(c.db).Spec(ctx, ref)
	if err != nil {
		return claimed{}, err
	}
	if e == nil {
		return claimed{}, no(join.NoEnvironment, join.Params{Environment: ref.String()})
	}
	of, ok := e.Role(role)
	if !ok {
		return claimed{}, no(join.NoRole, join.Params{Role: clip.Text(role, maxSaid), Environment: ref.String()})
	}
	r := c.role(ref, role)
	select {
	case r.lock <- struct{}{}:
	case <-ctx.Done():
		return claimed{}, busy(3 * time.Second)
	}
	defer func() { <-r.lock }()
	begun := c.now()
	if attempt > 0 {
		r.read = time.Time{} // the cache was wrong
	}
	for {
		if err := c.readNames(ctx, r, ref, role); err != nil {
			return claimed{}, err
		}
		if node := r.pick(e, of, attempt, before); node != "" {
			return claimed{node, func(taken bool) { r.free(node, taken) }}, nil
		}
		if !r.read.Before(begun) {
			break
		}
		r.read = time.Time{} // one may have become free
	}
	if r.handedOut() > 0 { // one of them may become free
		return claimed{}, busy(3 * time.Second)
	}
	return claimed{}, no(join.AllTaken, join.Params{Role: role, Environment: ref.String(), Limit: of.Cardinality})
}

// readNames reads the taken names unless the cache is fresh.
func (c *claims) readNames(ctx context.Context, r *roleClaims, ref model.Ref, role string) error {
	now := c.now()
	if age := now.Sub(r.read); age >= 0 && age < namesLast {
		return nil
	}
	// This read includes every earlier write. Numbers that are assigned but not yet written stay pending.
	names, err := access.IdentitiesIn(c.db).TakenNames(ctx, ref, role)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.names, r.read = names, now
	r.mu.Unlock()
	return nil
}

// pick assigns the lowest free number. If another serve took the number of the previous attempt, it assigns one of the
// lowest.
func (r *roleClaims) pick(e *environments.Environment, of environments.Role, attempt int, before string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	skip := 0
	if attempt > 0 && r.names[before] {
		skip = rand.N(2 * attempt)
	}
	last := ""
	for num := 1; num <= of.Cardinality; num++ {
		node := model.Node{Role: of.Name, Num: num, Stack: e.Stack}.String()
		if r.names[node] || r.pending[node] {
			continue
		}
		if last = node; skip == 0 {
			break
		}
		skip--
	}
	if last != "" {
		r.pending[last] = true
	}
	return last
}
