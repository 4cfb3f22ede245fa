package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/rollouts"
)

func newRolloutRevert(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "revert -e ENVIRONMENT", Short: "Take a rollout back: its nodes return to what is desired for them",
		Long: `revert ends the rollout in progress, also a paused or aborted one. Nodes that took its target return to what is desired for them at
their next tick; the rollout never changed that. Nodes with allowed signers accept the way back, because the key of the start signed
it. That permit ends 30 days after the start: then --sign-key signs another.

revert shows the nodes and asks for confirmation. In scripts, use --yes. With --wait, it waits for them as promote does.

EXIT STATUS
  0 done, 1 failed, no rollout in progress, or not confirmed; 2 wrong usage, 3 etcd unreachable; with --wait, 4 some nodes failed, are
  held or silent, 5 its time passed`,
		Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.wait.check(c); err != nil {
				return err
			}
			if err := o.mayConfirm(); err != nil {
				return err
			}
			return o.inFleet(c, o.revertRollout)
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.sign.add(cmd)
	o.sign.addUnsigned(cmd)
	o.wait.add(cmd, "wait until the nodes are back")
	o.addMessage(cmd, "reason")
	o.addConfirmation(cmd)
	o.addDryRun(cmd)
	return cmd
}

func (o *options) revertRollout(ctx context.Context, s *etcd.DB, ref model.Ref) error {
	r, err := rollouts.PlanRevert(ctx, s, ref)
	if err != nil {
		return err
	}
	does := "reverts"
	if o.dryRun {
		does = "would revert"
	}
	back := describeTarget(r.Back)
	if r.Rollout.Agent != "" {
		back = "agent " + cmp.Or(r.Agent, "any")
	}
	cli.Cleanf(o.env.Stdout, "%s rollout %s (started by %s) of %s in %s: %s → %s\n", does,
		r.Rollout.ID, r.Rollout.By, etcd.Scope{Role: r.Rollout.Role}, ref, r.Rollout.What(), back)
	if err := o.showMoves(r.Moves); err != nil || o.dryRun {
		return err
	}
	if err := o.confirm(ctx, "Revert it?"); err != nil {
		return err
	}
	done, err := rollouts.RevertRollout(ctx, s, ref, r, o.changing())
	if err != nil {
		return err
	}
	fmt.Fprintf(o.env.Stdout, "rollout %s of %s in %s: reverted (epoch %d)\n", r.Rollout.ID, r.Rollout.What(), ref, done.Epoch)
	o.announceTrust(ref, done)
	return o.await(ctx, s, rollouts.AwaitingRevert(ref, done))
}
