package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pulley/environments"
	"pulley/internal/pki"
	"pulley/internal/store"
)

// A new user makes etcd read all users again. serve therefore creates the users of an environment's nodes before they
// join. It does so slowly, because nodes' own requests have precedence.
const (
	precreateInterval = time.Minute      // without a change of an environment
	restFactor        = 3                // it rests three times as long as it worked
	minRest           = time.Millisecond // at least
	maxPrecreated     = 10_000           // users that wait for their nodes, of all environments
	skipAfterJoin     = 50               // nodes to skip after one that joined before its user existed
	strayInterval     = 10               // rounds between two searches for stray users
)

// precreateUsers creates users until ctx ends. Several serves may do it at once: a transaction claims each user, and a
// repeated creation changes nothing.
func (t *Tasks) precreateUsers(ctx context.Context) {
	wake := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		t.every(ctx, watchPause, "cannot watch environments", func(ctx context.Context) error {
			return t.Store.Environments.Watch(ctx, func() {
				select {
				case wake <- struct{}{}:
				default:
				}
			})
		})
	}()
	defer func() { <-done }()
	ticker := time.NewTicker(precreateInterval)
	defer ticker.Stop()
	for round := 0; ; round++ {
		t.complain(ctx, "cannot pre-create users", t.precreate(ctx, round%strayInterval == 0))
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-wake:
		}
	}
}

// precreate runs one round. The shared roles of all environments come first: joining nodes need them now.
func (t *Tasks) precreate(ctx context.Context, strays bool) error {
	names, err := t.Store.Environments.List(ctx)
	if err != nil {
		return err
	}
	var refs []environments.Ref
	for _, name := range names {
		ref, err := environments.ParseRef(name)
		if err != nil {
			continue // it can have no nodes
		}
		if err := t.Store.Access.EnsureEnvironment(ctx, ref.String()); err != nil {
			return err
		}
		refs = append(refs, ref)
	}
	if strays {
		if err := t.dropStrays(ctx); err != nil {
			return err
		}
	}
	left := maxPrecreated
	for _, ref := range refs {
		if left, err = t.precreateIn(ctx, ref, left); err != nil {
			return err
		}
	}
	return nil
}

// precreateIn creates the missing users of one environment, at most left, and deletes superfluous ones. It returns the
// remaining number.
func (t *Tasks) precreateIn(ctx context.Context, ref environments.Ref, left int) (int, error) {
	spec, _, err := t.Store.Environments.Spec(ctx, ref)
	if err != nil || spec == nil {
		return left, err
	}
	// Pre-created users before identities: a user that becomes an identity meanwhile is seen twice, not never.
	reserves, _, err := t.Store.Identities.Precreated(ctx, ref)
	if err != nil {
		return left, err
	}
	identities, damaged, err := t.Store.Identities.List(ctx, ref)
	if err != nil || len(damaged) > 0 {
		return left, err // a node whose identity is not readable may have joined
	}
	missing, superfluous := plan(spec, reserves, identities, left)
	waiting := t.precreated.WithLabelValues(ref.String())
	made := len(reserves) - len(superfluous)
	left -= made + len(missing)
	waiting.Set(float64(made))
	for _, node := range superfluous {
		if err := t.rested(ctx, func() error { return t.Store.Identities.DropPrecreated(ctx, ref, node) }); err != nil {
			return left, err
		}
	}
	for i := 0; i < len(missing); i++ {
		joined, err := t.precreateUser(ctx, ref, missing[i])
		if err != nil {
			return left, err
		}
		if joined {
			i += skipAfterJoin // machines that join now take the lowest numbers
			continue
		}
		made++
		waiting.Set(float64(made))
	}
	return left, nil
}

// precreateUser creates one user unless the node has joined since the plan.
func (t *Tasks) precreateUser(ctx context.Context, ref environments.Ref, node string) (joined bool, err error) {
	err = t.rested(ctx, func() error {
		_, _, err := t.Store.Identities.Precreate(ctx, ref, node, t.Now().UTC())
		if joined = errors.Is(err, store.ErrJoined); joined {
			return nil
		}
		return err
	})
	return joined, err
}

// plan returns the nodes with missing users, at most most, and the nodes with superfluous users. A removed node gets
// none: only an operator frees its name.
func plan(spec *environments.Environment, reserves map[string]store.Precreated, identities map[string]store.Identity, most int) (missing, superfluous []string) {
	wanted := map[string]bool{}
	for n := range spec.Nodes() {
		node := n.String()
		if _, known := identities[node]; known {
			continue
		}
		if len(wanted) == most {
			break
		}
		wanted[node] = true
		if r, ok := reserves[node]; !ok || !r.Ready {
			missing = append(missing, node)
		}
	}
	for node := range reserves {
		if !wanted[node] {
			superfluous = append(superfluous, node)
		}
	}
	slices.Sort(superfluous)
	return missing, superfluous
}

// dropStrays deletes the users of nodes and operators that no identity names. An interrupted join or removal left
// them.
func (t *Tasks) dropStrays(ctx context.Context) error {
	users, err := t.Store.Access.Users(ctx) // before the identities: an identity is written before its user is created
	if err != nil {
		return err
	}
	known, err := t.knownUsers(ctx)
	if err != nil {
		return err
	}
	for _, user := range users {
		name, err := pki.ParseName(user)
		if known[user] || err != nil || name.Prefix != t.Store.Prefix() {
			continue
		}
		stray, err := t.isStray(ctx, name)
		if err != nil {
			return err
		}
		if !stray {
			continue
		}
		t.Log.Info("removing a user without an identity", "user", user)
		if err := t.rested(ctx, func() error { return t.Store.Access.DropUser(ctx, user) }); err != nil {
			return err
		}
	}
	return nil
}

// knownUsers returns the users of operators, and of the nodes of all environments that have a spec. A user that a newer
// incarnation replaced is not among them.
func (t *Tasks) knownUsers(ctx context.Context) (map[string]bool, error) {
	names, err := t.Store.Environments.List(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, name := range names {
		ref, err := environments.ParseRef(name)
		if err != nil {
			continue
		}
		reserves, _, err := t.Store.Identities.Precreated(ctx, ref)
		if err != nil {
			return nil, err
		}
		identities, _, err := t.Store.Identities.List(ctx, ref)
		if err != nil {
			return nil, err
		}
		for _, r := range reserves {
			known[r.User] = true
		}
		for _, i := range identities {
			if i.Live() {
				known[i.User] = true
			}
		}
	}
	operators, _, err := t.Store.Identities.Operators(ctx)
	if err != nil {
		return nil, err
	}
	for _, o := range operators {
		if o.Live() {
			known[o.User] = true
		}
	}
	return known, nil
}

// isStray reads the records of one name, also of an environment without a spec. A name with unreadable records is no
// stray.
func (t *Tasks) isStray(ctx context.Context, name pki.Name) (bool, error) {
	var owners store.Owners
	switch name.Kind {
	case pki.KindOperator:
		o, _, err := t.Store.Identities.Operator(ctx, name.Subject)
		if err != nil {
			return false, fmt.Errorf("cannot read the identity of user %s: %w", name, err)
		}
		owners.Operator = o
	case pki.KindNode:
		ref, err := environments.ParseRef(name.Environment)
		if err != nil {
			return false, nil
		}
		precreated, damaged, err := t.Store.Identities.Precreated(ctx, ref)
		if err != nil || len(damaged) > 0 {
			return false, err
		}
		if p, ok := precreated[name.Subject]; ok {
			owners.Precreated = &p
		}
		if owners.Identity, _, err = t.Store.Identities.Get(ctx, ref, name.Subject); err != nil {
			return false, fmt.Errorf("cannot read the identity of user %s: %w", name, err)
		}
	}
	return !owners.Own(name), nil
}

// rested runs one piece of work, and then rests in proportion to its duration.
func (t *Tasks) rested(ctx context.Context, work func() error) error {
	begun := time.Now()
	if err := work(); err != nil {
		return err
	}
	timer := time.NewTimer(max(minRest, restFactor*time.Since(begun)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
