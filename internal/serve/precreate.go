package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/specs"
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
			return specs.In(t.DB).Watch(ctx, func() {
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
	names, err := specs.In(t.DB).List(ctx)
	if err != nil {
		return err
	}
	var refs []model.Ref
	var problems []error // of one environment; they stop no others
	for _, name := range names {
		ref, err := model.ParseRef(name)
		if err != nil {
			continue // it can have no nodes
		}
		if err := access.In(t.DB).EnsureEnvironment(ctx, ref.String()); err != nil {
			problems = append(problems, err)
			continue
		}
		refs = append(refs, ref)
	}
	if strays {
		problems = append(problems, t.dropStrays(ctx))
	}
	left := maxPrecreated
	for _, ref := range refs {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if left, err = t.precreateIn(ctx, ref, left); err != nil {
			problems = append(problems, fmt.Errorf("environment %s: %w", ref, err))
		}
	}
	return errors.Join(problems...)
}

// damagedError names records that cannot be read.
type damagedError []string

func (e damagedError) Error() string {
	more := ""
	if n := len(e) - 1; n > 0 {
		more = fmt.Sprintf(", and %d more", n)
	}
	return e[0] + more + "\nrun `pulley doctor`: it names each of them with the command that deletes it"
}

// precreateIn creates the missing users of one environment, at most left, and deletes superfluous ones. It returns the
// remaining number.
func (t *Tasks) precreateIn(ctx context.Context, ref model.Ref, left int) (int, error) {
	spec, _, err := specs.In(t.DB).Spec(ctx, ref)
	if err != nil || spec == nil {
		return left, err
	}
	reserves, identities, damaged, err := t.recordsOf(ctx, ref)
	if err != nil {
		return left, err
	}
	t.board.showIdentities(ref.String(), identities)
	told := t.identified(ctx, ref, identities) // machines join although it failed
	left, err = t.precreateOf(ctx, ref, spec, reserves, identities, left)
	if err == nil && len(damaged) > 0 {
		err = damaged
	}
	if told == nil {
		return left, err
	}
	return left, errors.Join(err, told)
}

// precreateOf is precreateIn with the records of the environment.
func (t *Tasks) precreateOf(ctx context.Context, ref model.Ref, spec *environments.Environment, reserves map[string]access.Precreated, identities map[string]access.Identity, left int) (int, error) {
	missing, superfluous := plan(spec, reserves, identities, left)
	waiting := t.precreated.WithLabelValues(ref.String())
	made := len(reserves) - len(superfluous)
	left -= made + len(missing)
	waiting.Set(float64(made))
	for _, node := range superfluous {
		if err := t.rested(ctx, func() error { return access.IdentitiesIn(t.DB).DropPrecreated(ctx, ref, node) }); err != nil {
			return left, err
		}
	}
	for i := 0; i < len(missing); i++ {
		joined := false // since the plan
		err := t.rested(ctx, func() error {
			_, err := access.IdentitiesIn(t.DB).Precreate(ctx, ref, missing[i], t.Now().UTC())
			if joined = errors.Is(err, access.ErrJoined); joined {
				return nil
			}
			return err
		})
		switch {
		case err != nil:
			return left, err
		case joined:
			i += skipAfterJoin // machines that join now take the lowest numbers
		default:
			made++
			waiting.Set(float64(made))
		}
	}
	return left, nil
}

// recordsOf reads the holders of an environment's names. It reads pre-created users before identities: a user that
// becomes an identity meanwhile is seen twice, not never. A node with a record that cannot be read has an empty identity
// and no pre-created user: it may have joined.
func (t *Tasks) recordsOf(ctx context.Context, ref model.Ref) (p map[string]access.Precreated, i map[string]access.Identity, damaged damagedError, err error) {
	p, bad, err := access.IdentitiesIn(t.DB).Precreated(ctx, ref)
	if err != nil {
		return nil, nil, nil, err
	}
	i, worse, err := access.IdentitiesIn(t.DB).List(ctx, ref)
	if err == nil && len(bad)+len(worse) > 0 {
		err = access.IdentitiesIn(t.DB).Names(ctx, ref, func(node string, joined bool) {
			_, reserved := p[node]
			_, known := i[node]
			if joined && !known || !joined && !reserved && !known {
				i[node] = access.Identity{}
				delete(p, node)
			}
		})
	}
	return p, i, append(bad, worse...), err
}

// plan returns the nodes with missing users, at most most, and the nodes with superfluous users. A removed node gets
// none: only an operator frees its name.
func plan(spec *environments.Environment, reserves map[string]access.Precreated, identities map[string]access.Identity, most int) (missing, superfluous []string) {
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

// dropStrays deletes the users of nodes and operators that no record names. An interrupted join or removal left them.
func (t *Tasks) dropStrays(ctx context.Context) error {
	users, err := access.In(t.DB).Users(ctx) // before the records: each is written before its user is created
	if err != nil {
		return err
	}
	operators, damaged, err := access.IdentitiesIn(t.DB).Operators(ctx)
	if err != nil {
		return err
	}
	owned := map[string]func(node string) (_ access.Owners, readable bool){}
	var problems []error
	for _, user := range users {
		name, err := pki.ParseName(user)
		if err != nil || name.Prefix != t.DB.Prefix() {
			continue
		}
		var owners access.Owners
		readable := len(damaged) == 0
		if o, ok := operators[name.Subject]; ok && name.Kind == pki.KindOperator {
			owners.Operator = &o
		}
		if name.Kind == pki.KindNode {
			if owned[name.Environment] == nil {
				if owned[name.Environment], err = t.ownersIn(ctx, name.Environment); err != nil {
					problems = append(problems, err)
					owned[name.Environment] = unreadableOwners
				}
			}
			owners, readable = owned[name.Environment](name.Subject)
		}
		if !readable || owners.Own(name) {
			continue
		}
		t.Log.Info("removing a user without an identity", "user", user)
		if err := t.rested(ctx, func() error { return access.In(t.DB).DropUser(ctx, user) }); err != nil {
			return err
		}
	}
	return errors.Join(problems...)
}

// unreadableOwners are the owners of the names of an environment whose records cannot be read: they may be any.
func unreadableOwners(string) (_ access.Owners, readable bool) { return access.Owners{}, false }

// ownersIn reads the owners of the names of an environment, which may have no spec. Unreadable records name any user.
func (t *Tasks) ownersIn(ctx context.Context, env string) (func(node string) (_ access.Owners, readable bool), error) {
	ref, err := model.ParseRef(env)
	if err != nil {
		return unreadableOwners, nil
	}
	precreated, identities, damaged, err := t.recordsOf(ctx, ref)
	return func(node string) (owners access.Owners, readable bool) {
		if p, ok := precreated[node]; ok {
			owners.Precreated = &p
		}
		if i, ok := identities[node]; ok {
			owners.Identity = &i
		}
		return owners, len(damaged) == 0
	}, err
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
