package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/promotion"
)

type rollbackOptions struct {
	*options
	to *model.Epoch
}

func newRollback(o *options) *cobra.Command {
	r := rollbackOptions{options: o}
	var to int64
	cmd := &cobra.Command{
		Use:   "rollback -e ENVIRONMENT",
		Short: "Roll back the last change of a target: release and data together",
		Long: `rollback finds the newest change in force of one target, and restores the complete target before it: release and data
generation. The target is that of all nodes, or with --role or --node that of one role or node; targets of other scopes stay.
A promotion that only signed the same target is not a change. Each further rollback reverts one more change.

With --to EPOCH, the target becomes what it was after that epoch, in one new epoch, also if that epoch was rolled back.
` + "`pulley history`" + ` lists the epochs. Nodes that have the release on disk need no download.

rollback shows the change and asks for confirmation. In scripts, use --yes.

Nodes with allowed signers go below the highest release and data that they ever attempted only if --sign-key permits it; the
permit is stored with the change.

With --wait, rollback waits for the nodes as promote does.

EXIT STATUS
  0 done, 1 failed, nothing to roll back, or not confirmed; 2 wrong usage, 3 etcd unreachable; with --wait, 4 some nodes failed, are held or
  silent, 5 its time passed`,
		Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := r.wait.check(c); err != nil {
				return err
			}
			if to < 0 {
				return cli.Usagef("cannot roll back to epoch %d: give one that `pulley history -e ENVIRONMENT` lists, or 0 for the state before the first", to)
			}
			if c.Flags().Changed("to") {
				r.to = new(model.Epoch)
				*r.to = model.Epoch(to)
			}
			scope, err := r.scope.value()
			if err == nil {
				err = r.mayConfirm()
			}
			if err != nil {
				return err
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				return r.rollback(ctx, s, ref, scope)
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.scope.add(cmd, "the target")
	cmd.Flags().Int64Var(&to, "to", 0, "restore the target of this epoch")
	r.sign.add(cmd)
	r.wait.add(cmd, "wait until the nodes are back")
	r.addMessage(cmd, "reason")
	r.addConfirmation(cmd)
	r.addDryRun(cmd)
	r.addAbort(cmd)
	return cmd
}

// maxUndone bounds the changes that a rollback lists.
const maxUndone = 10

func (r rollbackOptions) rollback(ctx context.Context, s *etcd.DB, ref model.Ref, scope etcd.Scope) error {
	u, err := promotion.PlanRollback(ctx, s, ref, scope, r.to)
	if err != nil {
		return err
	}
	if u == nil {
		fmt.Fprintf(r.env.Stdout, "the target of %s in %s is that of epoch %d already\n", scope, ref, *r.to)
		return nil
	}
	does := "rolls back"
	if r.dryRun {
		does = "would roll back"
	}
	cli.Cleanf(r.env.Stdout, "%s epoch %d (%s by %s): %s in %s: %s → %s\n", does,
		u.Undo.Epoch, u.Undo.Kind, u.Undo.By, scope, ref, describeTarget(u.From), describeTarget(u.To))
	for i, c := range u.All {
		if i == maxUndone {
			fmt.Fprintf(r.env.Stdout, "  it undoes %s more: `pulley history -e %s` lists them\n", cli.Count(len(u.All)-i, "change"), ref)
			break
		}
		what := string(c.Why)
		if c.Edit != nil {
			what = strings.TrimSuffix(c.Edit.String()+": "+what, ": ")
		}
		if len(u.All) > 1 || what != "" {
			cli.Cleanf(r.env.Stdout, "  it undoes epoch %d, %s by %s: %s\n", c.Epoch, c.Kind, c.By, cmp.Or(what, describeTarget(c.Before)+" → "+describeTarget(c.After)))
		}
	}
	if u.Other != nil {
		cli.Cleanf(r.env.Stdout, "  epoch %d of %s stays in force: `pulley rollback -e %s%s` rolls it back\n", u.Other.Epoch, u.Other.Scope(), ref, promotion.Flags(u.Other.Scope()))
	}
	if err := r.showMoves(u.Moves); err != nil || r.dryRun {
		return err
	}
	if err := r.confirm(ctx, "Roll it back?"); err != nil {
		return err
	}
	done, err := promotion.Rollback(ctx, s, ref, *u, r.to, r.changing())
	if err != nil {
		return err
	}
	r.announce(ref, done)
	return r.await(ctx, s, promotion.Awaiting(ref, done.Change))
}
