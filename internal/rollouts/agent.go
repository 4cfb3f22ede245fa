package rollouts

import (
	"context"
	"fmt"
	"strings"

	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/promotion"
	"pulley/internal/release"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
)

// startAgentRollout starts a staged rollout of a published version of the agent. It refuses one without a way back: without a desired
// version, a revert leaves each node on the version that it has.
func startAgentRollout(ctx context.Context, s *etcd.DB, ref model.Ref, scope promotion.Scope, version string, downgrade bool, a promotion.Author) (r Rollout, err error) {
	published, err := release.In(s).Agent(ctx, version)
	if err != nil {
		return r, err
	}
	p, err := planned(ctx, s, ref, rollout.Plan{Role: scope.Role, Agent: model.AgentChoice{Version: published.Version, Downgrade: downgrade}}, a.Author)
	if err != nil {
		return r, err
	}
	fail := func(format string, args ...any) (Rollout, error) {
		return Rollout{}, fmt.Errorf("cannot start a rollout in %s: %w", ref, fmt.Errorf(format, args...))
	}
	switch own := p.Desires.Agents.For(scope.Role, ""); {
	case p.Desires.Agents.Unknown:
		return fail("the desired versions of the agent are unreadable\n`pulley agents show -e %s` names the key", ref)
	case own.Version == "":
		return fail("no version of the agent is desired for %s, and a revert could bring no node back\npublish the version that the nodes run, and promote it: `pulley agents promote VERSION -e %s%s`", scope, ref, promotion.Flags(scope))
	case own.Version == published.Version:
		return fail("agent %s is the version for %s already\nto let nodes retry it: `pulley agents retry -e %s`", published.Version, scope, ref)
	case release.CompareVersions(published.Version, own.Version) < 0 && !downgrade:
		return fail("agent %s is older than %s, the version for %s\nto go back to it, give --allow-downgrade", published.Version, own.Version, scope)
	case !a.Unsigned && p.demandsSigned && len(published.Signatures) == 0:
		return r, promotion.UnsignedError("roll out agent "+published.Version, ref, "sign it: `pulley agents publish FILE --sign-key FILE`, with the same programs")
	}
	if p.Plan, err = journal.In(s).Start(ctx, ref, p.Desires, p.Plan, a.Signing()); err != nil {
		return r, err
	}
	r = describeRollout(p.Plan, rollout.Start(a.At), model.Gate{Rollout: p.Plan.ID, State: model.GateOpen})
	r.Notes, r.Unready = p.Notes, p.Unready
	return r, nil
}

// onAgent reports whether a node runs the version of the agent that is desired for it, installed, and wants no other.
func onAgent(f fleet.FleetState, n fleet.Node) bool {
	st := f.Statuses[n.Node]
	return st.Agent == nil && strings.TrimPrefix(st.Version, "v") == f.Desires.Agents.For(n.Role, n.Node).Version
}
