// Package promotion owns changes of what an environment wants: it promotes and rolls back releases and versions of the agent, holds nodes,
// signs what is in force, and recovers an etcd that went back in time. It checks that a change is possible, makes it, and returns its
// effects. It must never print or prompt.
package promotion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/choice"
	"pulley/internal/release/trust"
	"pulley/internal/rollout"
	"pulley/internal/specs"
)

// Author is the author of a change, with a reason and a signing key. With a nil key the change is not signed.
type Author struct {
	targets.Author
	Key      *trust.Key
	Unsigned bool // the author confirmed a change that nodes with allowed signers refuse
	Foreign  bool // a release may be of another repository than those that the environment has
	Rollout  bool // of live data: a rollout brings the new generation to the nodes
	DryRun   bool // nothing is written: no rollout can name the new generation, and no node previews it
}

// Signing is the author with the key as a function.
func (a Author) Signing() targets.Author {
	if a.Key != nil {
		a.Author.Sign = a.Key.Sign
	}
	return a.Author
}

// Scope is the target of a change: a role, a node, or all nodes if both are empty.
type Scope = etcd.Scope

// errScope reports a scope with both a role and a node.
var errScope = errors.New("--role and --node exclude each other")

// Find reads the environment. It refuses a role or a node that is neither in the environment nor
// registered: a removed node keeps its status, and is no target.
func Find(ctx context.Context, s *etcd.DB, ref model.Ref, scope Scope) (fleet.FleetState, error) {
	if scope.Role != "" && scope.Node != "" {
		return fleet.FleetState{}, errScope
	}
	f, err := listed(ctx, s, ref, scope.Node)
	if err != nil {
		return fleet.FleetState{}, err
	}
	switch {
	case scope.Role != "":
		err = fleet.CheckRole(f.Spec, scope.Role)
	case scope.Node != "":
		err = checkNode(ctx, s, ref, f, scope.Node)
	}
	return f, err
}

// listed reads an environment that must exist, with its targets, holds and host list. With a node, its Hosts contain
// only that node: a change of one node reads no fleet.
func listed(ctx context.Context, s *etcd.DB, ref model.Ref, node string) (fleet.FleetState, error) {
	f, err := fleet.In(s).Listed(ctx, ref, node)
	if err != nil || f.Spec != nil {
		return f, err
	}
	if _, err := fleet.FindEnvironment(ctx, specs.In(s), ref); err != nil {
		return f, err
	}
	return f, fmt.Errorf("cannot read environment %s: another command wrote it at the same time", ref)
}

// checkNode refuses a node that is neither registered nor called for. It reads the host list only to suggest a name.
func checkNode(ctx context.Context, s *etcd.DB, ref model.Ref, f fleet.FleetState, node string) error {
	if _, registered := f.Hosts[node]; registered {
		return nil
	}
	if _, called := f.Spec.RoleOf(node); called {
		return nil
	}
	hosts, err := fleet.In(s).Hosts(ctx, ref)
	if err != nil {
		return err
	}
	registered := map[string]bool{}
	for name := range hosts {
		registered[name] = true
	}
	return fleet.CheckNode(f.Spec, registered, node)
}

// CheckScope refuses a scope that Find refuses, with point reads.
func CheckScope(ctx context.Context, s *etcd.DB, ref model.Ref, scope Scope) error {
	if scope.Role != "" && scope.Node != "" {
		return errScope
	}
	e, err := fleet.FindEnvironment(ctx, specs.In(s), ref)
	switch {
	case err != nil || scope == (Scope{}):
		return err
	case scope.Role != "":
		return fleet.CheckRole(e, scope.Role)
	}
	f, err := fleet.In(s).One(ctx, ref, scope.Node)
	if err != nil {
		return err
	}
	f.Spec = e
	return checkNode(ctx, s, ref, f, scope.Node)
}

// maxTries limits the attempts of a change that loses races against other operators. Five attempts are enough for
// people, but too few for scripts that race.
const maxTries = 5

// Retry repeats an operation that lost a race against another operator. Each attempt reads again.
func Retry(do func() error) error {
	for range maxTries - 1 {
		if err := do(); !errors.Is(err, etcd.ErrConflict) {
			return err
		}
	}
	return do()
}

// Targets is the result of a change of targets.
type Targets struct {
	targets.Change
	Made   bool        // false: the target was already in force
	Moves  []Move      // affected registered nodes
	Pinned []Pin       // scopes with their own target, which the change does not affect
	Hold   *model.Hold // hold of all nodes, if any: no node changes until it ends
}

// Pin is a scope with its own target.
type Pin struct {
	Scope  Scope
	Target model.Target
}

// Move is the change of one node's target.
type Move struct {
	Node     string
	From, To model.Target

	FromAgent, ToAgent string // versions; of the revert of a rollout of the agent, which moves no target
}

// moves lists the registered nodes that a change of a scope's target affects.
func moves(f fleet.FleetState, scope Scope, after model.Target) (all []Move) {
	c := targets.Change{Role: scope.Role, Node: scope.Node, Before: f.Desires.Target(scope), After: after}
	for _, node := range slices.SortedFunc(maps.Keys(f.Hosts), fleet.CompareNatural) {
		if m, reached := moved(f.Desires, c, f.Hosts[node]); reached {
			all = append(all, m)
		}
	}
	return all
}

// moved returns what a change does to the target of a host. A node with a release of its own keeps it, and takes the
// data: the change reaches that node, too.
func moved(d targets.Desires, c targets.Change, h model.Host) (m Move, reached bool) {
	if !c.Scope().Has(h.Role, h.Node) {
		return m, false
	}
	at := func(t model.Target) model.Target {
		desired := d.For(h.Role, h.Node)
		switch {
		case c.Node != "":
			desired.ForNode = t
		case c.Role != "":
			desired.ForRole = t
		default:
			desired.Default = t
		}
		return desired.Wanted()
	}
	m = Move{Node: h.Node, From: at(c.Before), To: at(c.After)}
	return m, m.From != m.To || d.Reaches(c.Scope(), h.Role, h.Node)
}

func made(before fleet.FleetState, c targets.Change) Targets {
	t := Targets{Change: c, Made: true, Moves: moves(before, c.Scope(), c.After)}
	if c.Scope() == (Scope{}) {
		for _, scope := range before.Desires.Pinned() {
			t.Pinned = append(t.Pinned, Pin{scope, before.Desires.Target(scope)})
		}
	}
	if h, held := before.Holds[Scope{}]; held {
		t.Hold = &h
	}
	return t
}

// Direct refuses a change of more nodes than the policy allows without a rollout, which has more than one node. doing is what
// the change does to nodes, and remedy how a rollout does it.
func Direct(f fleet.FleetState, ref model.Ref, scope Scope, nodes int, a Author, doing, remedy string) error {
	limit := rollout.Share(f.Spec.Rollout.DirectLimit)
	if limit == "" || scope.Node != "" {
		return nil
	}
	if f.Desires.Gate.Rollout != "" && !a.Aborts { // the rollout in progress is the first obstacle
		return nil
	}
	most := limit.Of(len(f.Hosts), 0)
	if nodes <= most {
		return nil
	}
	return fmt.Errorf("cannot %s %d of %d nodes at once, and rollout.direct_limit of %s allows %d\nuse a rollout: %s", doing, nodes, len(f.Hosts), ref, most, remedy)
}

// directPromotion is Direct for a promotion. Nodes without a release have nothing to lose.
func directPromotion(f fleet.FleetState, ref model.Ref, scope Scope, after model.Target, a Author) error {
	changed := 0
	for _, m := range moves(f, scope, after) {
		if m.From.Release != "" && m.From.Release != m.To.Release {
			changed++
		}
	}
	release := cmp.Or(after.Release, f.Desires.Default.Release)
	return Direct(f, ref, scope, changed, a, fmt.Sprintf("promote %s: it changes the release of", release),
		fmt.Sprintf("`pulley rollout start %s -e %s%s`", release, ref, Flags(scope)))
}

// Taker is what decides which releases a scope takes.
func Taker(ctx context.Context, s *etcd.DB, ref model.Ref, d targets.Desires, scope Scope, a Author) (choice.Taker, error) {
	return choice.Of(ctx, release.In(s), ref, a.Foreign, d.Default.Release, d.Target(scope).Release)
}

// Promote sets the target of a scope to a release. With an empty version, a role or node inherits its target again.
// With a key, Promote repeats a target that is in force without a signed permit.
func Promote(ctx context.Context, s *etcd.DB, ref model.Ref, scope Scope, version string, a Author) (done Targets, err error) {
	err = Retry(func() error {
		done, err = promote(ctx, s, ref, scope, version, a)
		return err
	})
	return done, err
}

func promote(ctx context.Context, s *etcd.DB, ref model.Ref, scope Scope, version string, a Author) (Targets, error) {
	f, err := Find(ctx, s, ref, scope)
	if err != nil {
		return Targets{}, err
	}
	var after model.Target
	signed := true
	if version != "" {
		taker, err := Taker(ctx, s, ref, f.Desires, scope, a)
		if err != nil {
			return Targets{}, err
		}
		r, err := taker.Resolve(ctx, release.In(s), version)
		if err != nil {
			return Targets{}, err
		}
		signed = len(r.Signatures) > 0
		after = r.Target()
		if scope == (Scope{}) {
			after.Data, after.DataDigest = f.Desires.Default.Data, f.Desires.Default.DataDigest
		}
	}
	if before := f.Desires.Target(scope); before == after && f.Desires.Gate.Rollout == "" {
		permitted := true
		if a.Key != nil {
			if permitted, err = targets.In(s).Permitted(ctx, ref, f.Desires, scope, a.At); err != nil {
				return Targets{}, err
			}
		}
		if permitted {
			return Targets{Change: targets.Change{Role: scope.Role, Node: scope.Node, Before: before, After: after}}, nil
		}
	}
	if !a.Unsigned && Signers(f, scope) {
		if !signed {
			return Targets{}, UnsignedError("promote "+after.Release, ref, fmt.Sprintf("sign the release: `pulley releases sign %s --sign-key FILE`", after.Release))
		}
		if a.Key == nil {
			lower, err := targets.In(s).Lowers(ctx, ref, f.Desires, scope, after, a.At)
			if err != nil {
				return Targets{}, err
			}
			if lower {
				return Targets{}, UnsignedError("go back to "+after.String(), ref, "sign the permit to go back: give --sign-key FILE")
			}
		}
	}
	if err := directPromotion(f, ref, scope, after, a); err != nil {
		return Targets{}, err
	}
	c, err := targets.In(s).Promote(ctx, ref, f.Desires, scope, targets.Promoted, after, a.Signing())
	if err != nil {
		return Targets{}, err
	}
	return made(f, c), nil
}
