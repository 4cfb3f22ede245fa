package rollouts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/promotion"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
	"pulley/internal/where"
)

// PlannedRollout is a staged rollout that Campaigns.Start can begin. Start sets the ID and the epoch of its plan.
type PlannedRollout struct {
	Plan    rollout.Plan
	Desires targets.Desires
	Notes   []string // about the expression for canaries, for the user
	Unready []UnreadyNodes

	demandsSigned  bool // nodes refuse an unsigned release
	demandsPreview bool // by the policy
	maxChanged     int  // resources that the preview may show on a node; 0: any number
}

// PlanRollout plans a staged rollout of a target to the nodes of a role, or to all nodes. Empty parts of the target are
// inherited. The policy is that of the environment file as `env apply` stored it.
func PlanRollout(ctx context.Context, s *etcd.DB, ref model.Ref, target model.Target, role string, a targets.Author) (PlannedRollout, error) {
	return planned(ctx, s, ref, rollout.Plan{Role: role, Target: target}, a)
}

// planned plans a rollout with the role and the target, or the agent, of a plan.
func planned(ctx context.Context, s *etcd.DB, ref model.Ref, of rollout.Plan, a targets.Author) (PlannedRollout, error) {
	p, err := planRollout(ctx, s, ref, of, a)
	if err != nil {
		return PlannedRollout{}, fmt.Errorf("cannot plan a rollout in %s: %w", ref, err)
	}
	return p, nil
}

func planRollout(ctx context.Context, s *etcd.DB, ref model.Ref, of rollout.Plan, a targets.Author) (p PlannedRollout, err error) {
	scope := promotion.Scope{Role: of.Role}
	f, err := promotion.Find(ctx, s, ref, scope)
	if err != nil {
		return p, err
	}
	p.Desires, p.demandsSigned = f.Desires, promotion.Signers(f, scope)
	state, err := fleet.In(s).State(ctx, ref)
	if err != nil {
		return p, err
	}
	candidates := journal.Candidates(f.Hosts, f.Desires, of)
	for i := range candidates {
		candidates[i].View = viewOf(state, candidates[i].Node, a.At)
		candidates[i].Daemon = state.Statuses[candidates[i].Node].Enforce == model.EnforceDaemon
	}
	policy := rollout.PolicyOf(f.Spec)
	p.demandsPreview, p.maxChanged = f.Spec.Rollout.Preview.Required, f.Spec.Rollout.Preview.MaxChanged
	if limits := policy.Limits(); len(limits) > 0 {
		unknown, err := journal.In(s).Place(ctx, ref, f.Spec, limits, candidates)
		if err != nil {
			return p, err
		}
		if len(unknown) > 0 {
			return p, fmt.Errorf("its policy limits the unavailable nodes by %[1]s, and no registered node has such an attribute or trusted fact\n"+
				"list it in `layers:` of the environment file and give it to nodes; or trust the fact with `rollout: {trusted_facts: [%[1]s]}`, and see its values: `pulley facts --group %[1]s -e %[2]s`", unknown[0], ref)
		}
	}
	if policy.CanariesWhere != "" {
		if p.Notes, err = markCanaries(ctx, s, ref, state, policy.CanariesWhere, candidates, a); err != nil {
			return p, err
		}
	}
	p.Plan, err = rollout.Make(rollout.Order{
		Role: of.Role, Target: of.Target, Agent: of.Agent, Origin: f.Desires.Target(scope), Policy: policy, Roles: f.Spec.RolloutOrder(), By: a.By, Why: a.Why, At: a.At,
	}, candidates)
	switch {
	case err == nil:
		p.findUnready(state, a.At)
	case !errors.Is(err, rollout.ErrEmpty):
	case of.Agent.Version != "":
		err = fmt.Errorf("%w\n`pulley agents promote %s -e %s%s` sets the version for nodes that join later", err, of.Agent.Version, ref, promotion.Flags(scope))
	case of.Target.Release == "":
		err = fmt.Errorf("%w\n`pulley data revert %d -e %s` sets the data for nodes that join later", err, of.Target.Data, ref)
	default:
		err = fmt.Errorf("%w\n`pulley promote VERSION -e %s` sets the target for nodes that join later", err, ref)
	}
	return p, err
}

// findUnready lists the nodes of the plan that could not begin now, by cause, and what the policy does with them.
func (p *PlannedRollout) findUnready(f fleet.FleetState, now time.Time) {
	nodes := map[rollout.UnreadyCause][]string{}
	for _, g := range p.Plan.Groups {
		for _, m := range g.Nodes {
			if _, registered := f.Hosts[m.Node]; registered {
				cause := rollout.CannotBegin(viewOf(f, m.Node, now))
				nodes[cause] = append(nodes[cause], m.Node)
			}
		}
	}
	for _, cause := range rollout.UnreadyCauses() {
		if names := nodes[cause]; len(names) > 0 {
			slices.SortFunc(names, fleet.CompareNatural)
			p.Unready = append(p.Unready, UnreadyNodes{cause, p.Plan.Policy.Treats(cause), names})
		}
	}
}

// markCanaries marks the candidates for which the expression is true. It refuses one that is true for none.
func markCanaries(ctx context.Context, s *etcd.DB, ref model.Ref, f fleet.FleetState, text string, candidates []rollout.Candidate, a targets.Author) ([]string, error) {
	expression, err := where.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("canaries_where: %w", err)
	}
	sel, notes, err := fleet.Narrow(ctx, s, ref, f, fleet.Selection{Where: expression}, a.At)
	if err != nil {
		return nil, fmt.Errorf("canaries_where: %w", err)
	}
	found := false
	for i := range candidates {
		c := &candidates[i]
		c.Canary = sel.Has(c.Role, c.Node)
		found = found || c.Canary && !c.Excluded && !c.Daemon
	}
	if !found {
		notes = append(notes, "change rollout.canaries_where in the environment file, and run `pulley env apply`")
		return nil, fmt.Errorf("canaries_where selects no node of the rollout\n%s", strings.Join(notes, "\n"))
	}
	return notes, nil
}
