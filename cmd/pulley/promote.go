package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/promotion"
	"pulley/internal/rollouts"
)

func newPromote(o *options) *cobra.Command {
	var inherit bool
	cmd := &cobra.Command{
		Use:   "promote VERSION -e ENVIRONMENT",
		Short: "Make a release the target of an environment, a role or a node",
		Long: `promote takes an exact version, or a constraint such as '~> 1.4', which it resolves now. Every node of the scope takes the
release at its next tick. It refuses a release of another repository than those that the environment has, unless --foreign is given.
A constraint picks none. Where the releases of the environment are of a named repository, as 1.4.0+shop, 1.5.0 means 1.5.0+shop. --inherit removes the target of a role or a node: its nodes take the environment's target.

Nodes with allowed signers go below the highest release that they ever attempted only if --sign-key permits it. With a key,
promote also sets the current target again if it was set without a key. If the stored environment has allowed signers, promote
refuses an unsigned release, and a way back without a key, unless --unsigned is given.

With --wait, promote waits until every registered node that the change reaches is converged. It stops waiting when each
other one failed at the target, is held, or is silent.

EXIT STATUS
  0 done, or it was the target already; 1 failed, 2 wrong usage, 3 etcd unreachable; with --wait, 4 some nodes failed, are
  held or silent, 5 its time passed`,
		Args: arguments(0, 1, "takes one version"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := o.wait.check(c); err != nil {
				return err
			}
			if inherit != (len(args) == 0) {
				return cli.Usagef("give a version, or --inherit with --role or --node")
			}
			sc, err := o.scope.value()
			if err != nil {
				return err
			}
			version := ""
			if !inherit {
				version = args[0]
			} else if sc == (etcd.Scope{}) {
				return cli.Usagef("--inherit needs --role or --node: an environment has nothing to inherit from")
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				done, err := promotion.Promote(ctx, s, ref, sc, version, o.changing())
				if err != nil {
					return err
				}
				if done.Made {
					o.announce(ref, done)
				} else {
					fmt.Fprintf(o.env.Stdout, "the target of %s in %s is %s already\n", sc, ref, describeTarget(done.After))
				}
				if o.dryRun {
					return o.showMoves(done.Moves)
				}
				return o.await(ctx, s, promotion.Awaiting(ref, done.Change))
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.scope.add(cmd, "only the target")
	o.sign.add(cmd)
	o.sign.addUnsigned(cmd)
	o.addDryRun(cmd)
	o.addAbort(cmd)
	o.addForeign(cmd)
	cmd.Flags().BoolVar(&inherit, "inherit", false, "remove the target of the role or node")
	o.wait.add(cmd, "wait until the nodes took the target")
	o.addMessage(cmd, "reason")
	return cmd
}

func (o *options) addForeign(c *cobra.Command) {
	c.Flags().BoolVar(&o.foreign, "foreign", false, "take a release of another repository than those that the environment has")
}

// changing returns the author of a change.
func (o *options) changing() promotion.Author {
	return promotion.Author{
		Author: targets.Author{By: o.env.User, Why: o.message, At: o.env.Now(), Aborts: o.aborts}, Key: o.sign.key(o.env), Unsigned: o.sign.unsigned, Foreign: o.foreign, Rollout: o.rollout, DryRun: o.dryRun,
	}
}

// starting is the author of a rollout.
func (o *options) starting() rollouts.Author {
	return rollouts.Author{Author: o.changing(), Look: o.lookFirst}
}

// announce prints a change of targets, and the scopes that it does not reach.
func (o *options) announce(ref model.Ref, t promotion.Targets) {
	fmt.Fprintf(o.env.Stdout, "%s in %s: %s → %s (epoch %d); %s at the next tick\n",
		t.Scope(), ref, describeTarget(t.Before), describeTarget(t.After), t.Epoch, takers(len(t.Moves), "takes", "take"))
	o.announceTrust(ref, t)
	own := "target %s"
	if t.Before.Data != t.After.Data {
		own = "release %s, with the new data"
	}
	for _, pin := range t.Pinned {
		fmt.Fprintf(o.env.Stdout, "  %s keeps its own "+own+"; to remove it: `pulley promote --inherit -e %s%s`\n", pin.Scope, describeTarget(pin.Target), ref, promotion.Flags(pin.Scope))
	}
}

// announceTrust prints what a change permits nodes with allowed signers, or lacks for them, and a hold that keeps all nodes.
func (o *options) announceTrust(ref model.Ref, t promotion.Targets) {
	if t.Unsigned {
		fmt.Fprintf(o.env.Stderr, "%s: unsigned: nodes with allowed signers will refuse to go back\n  %s\n", program, signAgain(ref, t))
	}
	announcePermit(o.env, t.Change)
	warnUnstated(o.env, ref, t.Unstated)
	if t.Hold != nil {
		fmt.Fprintf(o.env.Stdout, "  a hold on all nodes is in force (%s, by %s): no node changes its target before the hold ends\n", t.Hold.Mode, cli.Clean(t.Hold.Who))
	}
}

// announcePermit shows a permit that begins above the target before the change: a signer must see what the history made of it.
func announcePermit(env cli.Env, c targets.Change) {
	var above []string
	before := c.Before
	if c.Rollout != nil {
		before = c.Rollout.Target.Overlay(before)
	}
	if p := c.Permits; p != nil && p.Release != nil && p.Release.From != before.Release {
		above = append(above, "release "+p.Release.From)
	}
	if p := c.Permits; p != nil && p.Data != nil && p.Data.From != int64(before.Data) {
		above = append(above, fmt.Sprintf("data %d", p.Data.From))
	}
	if len(above) > 0 {
		cli.Cleanf(env.Stdout, "  the signature also covers nodes that have seen %s, the highest of the history: they follow\n", strings.Join(above, " and "))
	}
}

// signAgain is the remedy of an unsigned change: the command that sets the same target with a signed permit.
func signAgain(ref model.Ref, t promotion.Targets) string {
	flags := promotion.Flags(t.Scope())
	switch {
	case t.After.Release != "":
		return fmt.Sprintf("to sign it: `pulley promote %s -e %s%s --sign-key FILE`", t.After.Release, ref, flags)
	case flags != "":
		return fmt.Sprintf("to sign it: `pulley promote --inherit -e %s%s --sign-key FILE`", ref, flags)
	}
	return "promote a release with --sign-key"
}

func takers(n int, one, more string) string {
	if n == 1 {
		return "1 registered node " + one + " it"
	}
	return fmt.Sprintf("%d registered nodes %s it", n, more)
}

// describeTarget formats the target of one scope. Parts of it may be inherited.
func describeTarget(t model.Target) string {
	if t == (model.Target{}) {
		return "none"
	}
	return t.String()
}
