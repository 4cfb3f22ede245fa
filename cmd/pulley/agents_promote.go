package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/publish"
	"pulley/internal/store"
)

type agentsChange struct {
	*options
	fleet     cli.EnvironmentFlag
	scope     scopeFlags
	downgrade bool
	message   string
}

func newAgentsPromote(o *options) *cobra.Command {
	p := agentsChange{options: o}
	cmd := &cobra.Command{
		Use:   "promote VERSION -e ENVIRONMENT",
		Short: "Set the version of pulley-agent for an environment, a role or a node",
		Long: `promote has each node of the scope fetch this version after a tick in which it had nothing else to do, test it, and watch it
for a while before it takes over. A version that fails on a node stays back there, and the one before goes on.

EXIT STATUS
  0 done, or it was wanted already; 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(1, 1, "takes one version"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.inFleet(c, p.fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				return retryConflicts(func() error { return p.promote(ctx, s, ref, args[0]) })
			})
		},
	}
	p.fleet.AddFlag(cmd.Flags())
	p.scope.add(cmd, "only the agent")
	cmd.Flags().BoolVar(&p.downgrade, "allow-downgrade", false, "nodes may go back to it from a newer version")
	cmd.Flags().StringVarP(&p.message, "message", "m", "", "why")
	return cmd
}

func (p agentsChange) promote(ctx context.Context, s *store.Store, ref environments.Ref, version string) error {
	fleet, scope, err := p.scope.find(ctx, s, ref)
	if err != nil {
		return err
	}
	r, err := s.Releases.Agent(ctx, version)
	if err != nil {
		return err
	}
	w, revision, err := s.Fleet.AgentWish(ctx, ref)
	if err != nil {
		return err
	}
	before := w.For(scope.Role, scope.Node)
	own, _ := w.Choice(scope)
	after := agent.AgentChoice{Version: r.Version, Downgrade: p.downgrade}
	switch {
	case own == after:
		fmt.Fprintf(p.env.Stdout, "%s in %s is to run agent %s already\n", scope, ref, r.Version)
		return nil
	case before.Version != "" && store.CompareVersions(r.Version, before.Version) < 0 && !p.downgrade:
		return fmt.Errorf("cannot promote agent %s: %s in %s is to run the newer %s\nwith --allow-downgrade nodes go back to it", r.Version, scope, ref, before.Version)
	}
	w.Choose(scope, after)
	if err := p.put(ctx, s, ref, w, revision); err != nil {
		return err
	}
	takers := 0
	for _, h := range fleet.Hosts {
		if c := w.For(h.Role, h.Node); c.Version == r.Version && publish.PlainVersion(fleet.Statuses[h.Node].Version) != r.Version && reaches(w, scope, h) {
			takers++
		}
	}
	was := before.Version
	if was == "" {
		was = "whatever they have"
	}
	fmt.Fprintf(p.env.Stdout, "%s in %s: agent %s → %s; %s it, each after a tick with nothing else to do\n", scope, ref, was, r.Version, triers(takers))
	if scope == (store.Scope{}) {
		for _, c := range choices(w)[1:] {
			fmt.Fprintf(p.env.Stdout, "  %s stays on its own %s (`pulley agents unpin` gives it back)\n", c.scope, c.version)
		}
	}
	return nil
}

// reaches says whether a scope's choice is what counts for a host.
func reaches(w store.AgentWish, scope store.Scope, h agent.Host) bool {
	_, ownNode := w.Nodes[h.Node]
	_, ownRole := w.Roles[h.Role]
	switch {
	case scope.Node != "":
		return scope.Node == h.Node
	case scope.Role != "":
		return scope.Role == h.Role && !ownNode
	}
	return !ownNode && !ownRole
}

func triers(n int) string {
	if n == 1 {
		return "1 registered node tries"
	}
	return fmt.Sprintf("%d registered nodes try", n)
}

func (p agentsChange) put(ctx context.Context, s *store.Store, ref environments.Ref, w store.AgentWish, revision int64) error {
	w.By, w.Why, w.At = p.env.User, p.message, p.env.Now().UTC().Truncate(time.Second)
	return s.Fleet.PutAgentWish(ctx, ref, w, revision)
}

func newAgentsUnpin(o *options) *cobra.Command {
	p := agentsChange{options: o}
	cmd := &cobra.Command{
		Use:   "unpin -e ENVIRONMENT",
		Short: "Unset the version of pulley-agent of an environment, a role or a node",
		Args:  arguments(0, 0, "takes no arguments; --role or --node names whom"),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.inFleet(c, p.fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				return retryConflicts(func() error { return p.unpin(ctx, s, ref) })
			})
		},
	}
	p.fleet.AddFlag(cmd.Flags())
	cmd.Flags().StringVar(&p.scope.role, "role", "", "the version of one role")
	cmd.Flags().StringVar(&p.scope.node, "node", "", "the version of one node")
	cmd.Flags().StringVarP(&p.message, "message", "m", "", "why")
	return cmd
}

func (p agentsChange) unpin(ctx context.Context, s *store.Store, ref environments.Ref) error {
	if p.scope.role != "" && p.scope.node != "" {
		return cli.Usagef("--role and --node exclude each other")
	}
	scope := store.Scope{Role: p.scope.role, Node: p.scope.node} // also one that is gone may be given back
	w, revision, err := s.Fleet.AgentWish(ctx, ref)
	if err != nil {
		return err
	}
	was, own := w.Choice(scope)
	if !own {
		fmt.Fprintf(p.env.Stdout, "%s in %s has no version of its own\n", scope, ref)
		return nil
	}
	w.Choose(scope, agent.AgentChoice{})
	if err := p.put(ctx, s, ref, w, revision); err != nil {
		return err
	}
	now := "whatever is there"
	if c := w.For(scope.Role, scope.Node); c.Version != "" && scope != (store.Scope{}) {
		now = c.Version
	}
	fmt.Fprintf(p.env.Stdout, "%s in %s: agent %s → %s\n", scope, ref, was.Version, now)
	return nil
}

func newAgentsRetry(o *options) *cobra.Command {
	p := agentsChange{options: o}
	cmd := &cobra.Command{
		Use:   "retry -e ENVIRONMENT",
		Short: "Make nodes retry an agent version that they dropped",
		Args:  arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.inFleet(c, p.fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				return retryConflicts(func() error { return p.retry(ctx, s, ref) })
			})
		},
	}
	p.fleet.AddFlag(cmd.Flags())
	cmd.Flags().StringVarP(&p.message, "message", "m", "", "why")
	return cmd
}

func (p agentsChange) retry(ctx context.Context, s *store.Store, ref environments.Ref) error {
	w, revision, err := s.Fleet.AgentWish(ctx, ref)
	if err != nil {
		return err
	}
	if len(choices(w)) == 0 {
		return fmt.Errorf("cannot retry: nobody said which agent %s is to run\nsay so: `pulley agents promote VERSION -e %s`", ref, ref)
	}
	w.Try++
	if err := p.put(ctx, s, ref, w, revision); err != nil {
		return err
	}
	fmt.Fprintf(p.env.Stdout, "nodes of %s try once more what they dropped\n", ref)
	return nil
}
