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

// Users are made ahead for nodes that an environment calls for, since each change of a user makes etcd look at all users
// anew: what a join would wait for, is done before it. It goes slowly, so that nodes' own requests hardly notice.
const (
	reserveInterval = time.Minute      // between two looks, if nothing wakes it before
	restFactor      = 3                // it rests three times as long as it worked
	minRest         = time.Millisecond // at least
	maxReserved     = 10_000           // users that wait for their nodes, of all environments
	overtaken       = 50               // nodes that are left out when one has joined before its user was made
	strangersEvery  = 10               // rounds until all users are looked at again
)

// keepReserves makes users ahead until ctx ends. Several serves may do that at once: each reserve is claimed by a
// transaction, and making a user twice changes nothing.
func (k *Keeper) keepReserves(ctx context.Context) {
	wake := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.untilDone(ctx, "watch environments", func(ctx context.Context) error {
			return k.Store.WatchSpecs(ctx, func() {
				select {
				case wake <- struct{}{}:
				default:
				}
			})
		})
	}()
	defer func() { <-done }()
	ticker := time.NewTicker(reserveInterval)
	defer ticker.Stop()
	for round := 0; ; round++ {
		k.complain(ctx, "cannot make users ahead", k.reserve(ctx, round%strangersEvery == 0))
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-wake:
		}
	}
}

// reserve makes one round: the roles of all environments first, which nodes that join at this moment need.
func (k *Keeper) reserve(ctx context.Context, strangersToo bool) error {
	names, err := k.Store.Environments(ctx)
	if err != nil {
		return err
	}
	var refs []environments.Ref
	for _, name := range names {
		ref, err := environments.ParseRef(name)
		if err != nil {
			continue // it can have no nodes
		}
		if err := k.Store.EnsureEnvironment(ctx, ref.String()); err != nil {
			return err
		}
		refs = append(refs, ref)
	}
	if strangersToo {
		if err := k.dropStrangers(ctx); err != nil {
			return err
		}
	}
	left := maxReserved
	for _, ref := range refs {
		if left, err = k.reserveIn(ctx, ref, left); err != nil {
			return err
		}
	}
	return nil
}

// reserveIn makes what is missing in one environment, at most left users, and drops what is not called for any more. It
// returns how many may still be made.
func (k *Keeper) reserveIn(ctx context.Context, ref environments.Ref, left int) (int, error) {
	spec, _, err := k.Store.Spec(ctx, ref)
	if err != nil || spec == nil {
		return left, err
	}
	// Reserves before identities: what becomes an identity in between is seen twice, not never.
	reserves, _, err := k.Store.Reserves(ctx, ref)
	if err != nil {
		return left, err
	}
	identities, damaged, err := k.Store.Identities(ctx, ref)
	if err != nil || len(damaged) > 0 {
		return left, err // who can't be read may have joined
	}
	missing, superfluous := plan(spec, reserves, identities, left)
	left -= len(reserves) - len(superfluous) + len(missing)
	k.reserved(ref, len(reserves)-len(superfluous))
	for _, node := range superfluous {
		if err := k.rested(ctx, func() error { return k.Store.DropReserve(ctx, ref, node) }); err != nil {
			return left, err
		}
	}
	made := len(reserves) - len(superfluous)
	for i := 0; i < len(missing); i++ {
		joined, err := k.makeAhead(ctx, ref, missing[i])
		if err != nil {
			return left, err
		}
		if joined {
			i += overtaken // machines are joining at this moment, and take the lowest numbers: let them
			continue
		}
		made++
		k.reserved(ref, made)
	}
	return left, nil
}

// makeAhead makes one user, unless the node has joined since that was planned.
func (k *Keeper) makeAhead(ctx context.Context, ref environments.Ref, node string) (joined bool, err error) {
	err = k.rested(ctx, func() error {
		_, _, err := k.Store.ReadyReserve(ctx, ref, node, k.Now().UTC())
		if joined = errors.Is(err, store.ErrJoined); joined {
			return nil
		}
		return err
	})
	return joined, err
}

// plan decides whose users are to be made, at most so many, and whose are not needed. Nodes that were removed get none:
// their names are free again only by an operator's word.
func plan(spec *environments.Environment, reserves map[string]store.Reserve, identities map[string]store.Identity, most int) (missing, superfluous []string) {
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

// dropStrangers removes the users of nodes and operators that nobody knows any more: a join, a removal or the like was cut
// off in the middle.
func (k *Keeper) dropStrangers(ctx context.Context) error {
	users, err := k.Store.Users(ctx) // before who is who: a user is made after it was written whose it is
	if err != nil {
		return err
	}
	known, err := k.knownUsers(ctx)
	if err != nil {
		return err
	}
	for _, user := range users {
		name, err := pki.ParseName(user)
		if known[user] || err != nil || name.Prefix != k.Store.Prefix() {
			continue
		}
		stranger, err := k.isStranger(ctx, name)
		if err != nil {
			return err
		}
		if !stranger {
			continue
		}
		k.Log.Info("removing a user who is nobody", "user", user)
		if err := k.rested(ctx, func() error { return k.Store.DropUser(ctx, user) }); err != nil {
			return err
		}
	}
	return nil
}

// knownUsers are those of operators, and of the nodes of all environments that have a spec. What a newer incarnation
// replaced is not known: it is to be dead once that is written.
func (k *Keeper) knownUsers(ctx context.Context) (map[string]bool, error) {
	names, err := k.Store.Environments(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, name := range names {
		ref, err := environments.ParseRef(name)
		if err != nil {
			continue
		}
		reserves, _, err := k.Store.Reserves(ctx, ref)
		if err != nil {
			return nil, err
		}
		identities, _, err := k.Store.Identities(ctx, ref)
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
	operators, _, err := k.Store.Operators(ctx)
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

// isStranger looks at one name alone, also of an environment that has no spec. What can't be read is none.
func (k *Keeper) isStranger(ctx context.Context, name pki.Name) (bool, error) {
	switch name.Kind {
	case pki.KindOperator:
		o, _, err := k.Store.Operator(ctx, name.Subject)
		if err != nil {
			return false, fmt.Errorf("cannot tell whether the user %s is needed: %w", name, err)
		}
		return !o.Live() || o.User != name.String(), nil
	case pki.KindNode:
		return k.isStrangeNode(ctx, name)
	}
	return false, nil
}

func (k *Keeper) isStrangeNode(ctx context.Context, name pki.Name) (bool, error) {
	ref, err := environments.ParseRef(name.Environment)
	if err != nil {
		return false, nil
	}
	reserves, damaged, err := k.Store.Reserves(ctx, ref)
	if err != nil || len(damaged) > 0 || reserves[name.Subject].User == name.String() {
		return false, err
	}
	i, _, err := k.Store.Identity(ctx, ref, name.Subject)
	if err != nil {
		return false, fmt.Errorf("cannot tell whether the user %s is needed: %w", name, err)
	}
	return !i.Live() || i.User != name.String(), nil
}

// rested does one piece of work, and then rests in proportion to how long it took.
func (k *Keeper) rested(ctx context.Context, work func() error) error {
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
