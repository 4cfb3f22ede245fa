package promotion

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"pulley/internal/desired"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/release"
)

// Choice is the wanted version of pulley-agent for one scope.
type Choice struct {
	Scope   Scope
	Version string
}

// choices lists the wanted versions of an environment, the default first.
func choices(w desired.AgentWish) []Choice {
	var all []Choice
	if w.Default.Version != "" {
		all = append(all, Choice{Scope{}, w.Default.Version})
	}
	for _, role := range slices.Sorted(maps.Keys(w.Roles)) {
		all = append(all, Choice{Scope{Role: role}, w.Roles[role].Version})
	}
	for _, node := range slices.SortedFunc(maps.Keys(w.Nodes), fleet.CompareNatural) {
		all = append(all, Choice{Scope{Node: node}, w.Nodes[node].Version})
	}
	return all
}

// AgentVersion is the result of a change of the wanted version.
type AgentVersion struct {
	Made   bool
	Before string // "" for none
	After  string
	Takes  int      // registered nodes that will try it
	Pinned []Choice // scopes with their own version, which the change does not affect
}

// PromoteAgent sets the wanted version of pulley-agent for a scope to a published version.
func PromoteAgent(ctx context.Context, s *etcd.DB, ref model.Ref, scope Scope, version string, downgrade bool, a Author) (done AgentVersion, err error) {
	err = Retry(func() error {
		done, err = promoteAgent(ctx, s, ref, scope, version, downgrade, a)
		return err
	})
	return done, err
}

func promoteAgent(ctx context.Context, s *etcd.DB, ref model.Ref, scope Scope, version string, downgrade bool, a Author) (AgentVersion, error) {
	if err := CheckScope(ctx, s, ref, scope); err != nil {
		return AgentVersion{}, err
	}
	f, err := nodesOf(ctx, s, ref, scope)
	if err != nil {
		return AgentVersion{}, err
	}
	r, err := release.In(s).Agent(ctx, version)
	if err != nil {
		return AgentVersion{}, err
	}
	w, revision, err := fleet.In(s).AgentWish(ctx, ref)
	if err != nil {
		return AgentVersion{}, err
	}
	before := w.For(scope.Role, scope.Node)
	own, _ := w.Choice(scope)
	after := model.AgentChoice{Version: r.Version, Downgrade: downgrade}
	done := AgentVersion{Before: before.Version, After: r.Version}
	switch {
	case own == after:
		return done, nil
	case before.Version != "" && release.CompareVersions(r.Version, before.Version) < 0 && !downgrade:
		return done, fmt.Errorf("cannot promote agent %s: the version for %s in %s is the newer %s\nto go back to it, give --allow-downgrade", r.Version, scope, ref, before.Version)
	}
	w.Choose(scope, after)
	if err := putWish(ctx, s, ref, w, revision, a); err != nil {
		return done, err
	}
	done.Made = true
	for _, h := range f.Hosts {
		if c := w.For(h.Role, h.Node); c.Version == r.Version && release.PlainVersion(f.Statuses[h.Node].Version) != r.Version && w.Reaches(scope, h.Role, h.Node) {
			done.Takes++
		}
	}
	if scope == (Scope{}) {
		done.Pinned = choices(w)[1:]
	}
	return done, nil
}

// nodesOf reads the nodes of a scope with their statuses.
func nodesOf(ctx context.Context, s *etcd.DB, ref model.Ref, scope Scope) (fleet.FleetState, error) {
	if scope.Node != "" {
		return fleet.In(s).One(ctx, ref, scope.Node)
	}
	return fleet.In(s).State(ctx, ref)
}

func putWish(ctx context.Context, s *etcd.DB, ref model.Ref, w desired.AgentWish, revision int64, a Author) error {
	w.By, w.Why, w.At = a.By, model.Prose(a.Why), a.At.UTC().Truncate(time.Second)
	return fleet.In(s).PutAgentWish(ctx, ref, w, revision)
}

// UnpinAgent removes the wanted version of a scope. The scope need not exist any more.
func UnpinAgent(ctx context.Context, s *etcd.DB, ref model.Ref, scope Scope, a Author) (done AgentVersion, err error) {
	if scope.Role != "" && scope.Node != "" {
		return done, errScope
	}
	err = Retry(func() error {
		w, revision, err := fleet.In(s).AgentWish(ctx, ref)
		if err != nil {
			return err
		}
		was, own := w.Choice(scope)
		if !own {
			done = AgentVersion{}
			return nil
		}
		w.Choose(scope, model.AgentChoice{})
		done = AgentVersion{Made: true, Before: was.Version}
		if scope != (Scope{}) {
			done.After = w.For(scope.Role, scope.Node).Version
		}
		return putWish(ctx, s, ref, w, revision, a)
	})
	return done, err
}

// RetryAgent allows nodes to try versions again that failed before.
func RetryAgent(ctx context.Context, s *etcd.DB, ref model.Ref, a Author) error {
	return Retry(func() error {
		w, revision, err := fleet.In(s).AgentWish(ctx, ref)
		if err != nil {
			return err
		}
		if len(choices(w)) == 0 {
			return fmt.Errorf("cannot retry: no version of the agent is set for %s\nset one: `pulley agents promote VERSION -e %s`", ref, ref)
		}
		w.Try++
		return putWish(ctx, s, ref, w, revision, a)
	})
}
