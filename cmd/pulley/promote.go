package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/store"
)

type promoteOptions struct {
	*options
	fleet   cli.EnvironmentFlag
	scope   scopeFlags
	sign    signFlag
	inherit bool
	message string
}

func newPromote(o *options) *cobra.Command {
	p := promoteOptions{options: o}
	cmd := &cobra.Command{
		Use:   "promote VERSION -e ENVIRONMENT",
		Short: "Make a release the target of an environment, a role or a node",
		Long: `promote takes an exact version, or a constraint such as '~> 1.4' that is resolved now and recorded. Every node of the
scope takes the release at its next tick. --inherit gives a role or a node back to what its environment is on.

Nodes that have allowed signers go below the highest release that they ever attempted only where --sign-key permitted it.
With a key, a target that was set without one is promoted again.

EXIT STATUS
  0 done, or it was the target already; 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 1, "takes one version"),
		RunE: func(c *cobra.Command, args []string) error {
			if p.inherit != (len(args) == 0) {
				return cli.Usagef("give a version, or --inherit with --role or --node")
			}
			return o.inFleet(c, p.fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				return retryConflicts(func() error { return p.promote(ctx, s, ref, args) })
			})
		},
	}
	p.fleet.AddFlag(cmd.Flags())
	p.scope.add(cmd, "only the target")
	p.sign.add(cmd)
	cmd.Flags().BoolVar(&p.inherit, "inherit", false, "no target of its own for the role or node")
	cmd.Flags().StringVarP(&p.message, "message", "m", "", "why")
	return cmd
}

func (p promoteOptions) promote(ctx context.Context, s *store.Store, ref environments.Ref, args []string) error {
	fleet, scope, err := p.scope.find(ctx, s, ref)
	if err != nil {
		return err
	}
	var after agent.Target
	if p.inherit {
		if scope == (store.Scope{}) {
			return cli.Usagef("--inherit needs --role or --node: an environment has nothing to inherit from")
		}
	} else {
		r, err := s.Releases.Resolve(ctx, args[0])
		if err != nil {
			return err
		}
		after = r.Target()
		if scope == (store.Scope{}) {
			after.Data, after.DataDigest = fleet.Desires.Default.Data, fleet.Desires.Default.DataDigest
		}
	}
	if before := fleet.Desires.Target(scope); before == after {
		permitted := true // what was promoted or rolled back without a key is signed now
		if p.sign.key(p.env) != nil {
			if permitted, err = s.Targets.Permitted(ctx, ref, fleet.Desires, scope); err != nil {
				return err
			}
		}
		if permitted {
			fmt.Fprintf(p.env.Stdout, "%s in %s is on %s already\n", scope, ref, describeTarget(after))
			return nil
		}
	}
	c, err := s.Targets.Promote(ctx, ref, fleet.Desires, scope, store.Promoted, after, p.author(p.message, p.sign))
	if err != nil {
		return err
	}
	p.announce(ref, fleet, c)
	return nil
}

// find is the scope that the flags mean, checked against the environment as it is.
func (f *scopeFlags) find(ctx context.Context, s *store.Store, ref environments.Ref) (store.FleetState, store.Scope, error) {
	if _, _, err := s.Environments.MustSpec(ctx, ref); err != nil {
		return store.FleetState{}, store.Scope{}, err
	}
	fleet, err := s.Fleet.State(ctx, ref)
	if err != nil {
		return store.FleetState{}, store.Scope{}, err
	}
	if fleet.Spec == nil {
		return store.FleetState{}, store.Scope{}, errors.New("cannot read the environment: it was removed at this moment")
	}
	registered := map[string]bool{}
	for node := range fleet.Hosts {
		registered[node] = true
	}
	scope, err := f.scope(fleet.Spec, registered)
	return fleet, scope, err
}

// announce says what a change of targets means, and what it does not reach.
func (o *options) announce(ref environments.Ref, before store.FleetState, c store.Change) {
	reached := 0
	for _, h := range before.Hosts {
		if before.Desires.Reaches(c.Scope(), h.Role, h.Node) {
			reached++
		}
	}
	fmt.Fprintf(o.env.Stdout, "%s in %s: %s → %s (epoch %d); %s at the next tick\n",
		c.Scope(), ref, describeTarget(c.Before), describeTarget(c.After), c.Epoch, takers(reached))
	if c.Unsigned {
		fmt.Fprintf(o.env.Stderr, "%s: unsigned: nodes that have allowed signers will refuse to go back\n  give --sign-key and promote the same target again\n", program)
	}
	if c.Scope() == (store.Scope{}) {
		for _, pinned := range before.Desires.Pinned() {
			fmt.Fprintf(o.env.Stdout, "  %s stays on its own %s (promote --inherit gives it back)\n", pinned, describeTarget(before.Desires.Target(pinned)))
		}
	}
	if h, held := before.Holds[store.Scope{}]; held {
		fmt.Fprintf(o.env.Stdout, "  a hold on all is in force (%s, by %s): nothing moves until it ends\n", h.Mode, cli.Clean(h.Who))
	}
}

func takers(n int) string {
	if n == 1 {
		return "1 registered node takes it"
	}
	return fmt.Sprintf("%d registered nodes take it", n)
}

// describeTarget is a target as it stands at one scope, where a part may be inherited.
func describeTarget(t agent.Target) string {
	switch {
	case t == agent.Target{}:
		return "nothing of its own"
	case t.IsZero():
		return fmt.Sprintf("data %d", t.Data)
	}
	return t.String()
}
