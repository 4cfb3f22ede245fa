package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/change"
	"pulley/internal/cli"
	"pulley/internal/fleet"
	"pulley/internal/store"
)

type rollbackOptions struct {
	*options
	dryRun bool
}

func newRollback(o *options) *cobra.Command {
	r := rollbackOptions{options: o}
	var to int64
	cmd := &cobra.Command{
		Use:   "rollback -e ENVIRONMENT",
		Short: "Roll back the last change of targets: release and data together",
		Long: `rollback finds the newest change in force, and restores the complete target that its scope had before: release and data
generation. A promotion that only signed the same target is not a change. Each further rollback reverts one more
change; --to EPOCH reverts changes until that epoch is in force. ` + "`pulley history`" + ` lists the epochs. Nodes that have the release on
disk need no download.

Nodes with allowed signers go below the highest release and data that they ever attempted only if --sign-key permits it; the
permit is stored with the change.

EXIT STATUS
  0 done, 1 failed, or nothing to roll back; 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error {
			if to < 0 {
				return cli.Usagef("cannot roll back to epoch %d: give one that `pulley history` lists, or 0 for the state before the first", to)
			}
			return o.inFleet(c, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				if !c.Flags().Changed("to") {
					return r.rollback(ctx, s, ref)
				}
				return r.rollbackTo(ctx, s, ref, agent.Epoch(to))
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	cmd.Flags().Int64Var(&to, "to", 0, "revert changes until this epoch is in force")
	r.sign.add(cmd)
	r.addMessage(cmd, "reason")
	cmd.Flags().BoolVar(&r.dryRun, "dry-run", false, "only print the change that would be rolled back")
	return cmd
}

func (r rollbackOptions) rollback(ctx context.Context, s *store.Store, ref environments.Ref) error {
	if r.dryRun {
		undo, err := change.NextRollback(ctx, s, ref)
		if err != nil {
			return err
		}
		cli.Cleanf(r.env.Stdout, "would roll back epoch %d (%s by %s): %s in %s: %s → %s\n",
			undo.Epoch, undo.Kind, undo.By, undo.Scope(), ref, describeTarget(undo.After), describeTarget(undo.Before))
		return nil
	}
	done, err := change.Rollback(ctx, s, ref, r.changing())
	if err != nil {
		return err
	}
	r.announce(ref, done)
	return nil
}

// rollbackTo reverts changes one by one.
func (r rollbackOptions) rollbackTo(ctx context.Context, s *store.Store, ref environments.Ref, to agent.Epoch) error {
	for undone := 0; ; undone++ {
		can, err := change.CanRollBackTo(ctx, s, ref, to)
		if err != nil {
			return err
		}
		if !can {
			if undone == 0 {
				fmt.Fprintf(r.env.Stdout, "epoch %d is in force already in %s\n", to, ref)
			}
			return nil
		}
		if err := r.rollback(ctx, s, ref); err != nil || r.dryRun {
			return err
		}
	}
}

func newHistory(o *options) *cobra.Command {
	var limit int64
	cmd := &cobra.Command{
		Use: "history -e ENVIRONMENT", Short: "List the changes of targets, newest first",
		Long: `history lists the changes of an environment's targets, newest first. Each is an epoch for ` + "`pulley rollback --to`" + `.`,
		Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.inFleet(c, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				if _, err := fleet.FindEnvironment(ctx, s.Environments, ref); err != nil {
					return err
				}
				history, err := s.Targets.History(ctx, ref, limit)
				if err != nil {
					return err
				}
				return o.out.Print(o.env, history, func(t *cli.Table) error {
					t.Row("EPOCH", "WHEN", "KIND", "SCOPE", "FROM", "TO", "BY", "WHY")
					for _, h := range history {
						t.Row(strconv.FormatInt(int64(h.Epoch), 10), cli.Ago(o.env.Now(), h.At), string(h.Kind), h.Scope().String(),
							describeTarget(h.Before), describeTarget(h.After), h.By, strings.TrimSpace(string(h.Why)))
					}
					return nil
				})
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	cmd.Flags().Int64Var(&limit, "limit", 50, "number of changes; 0 for all")
	return cmd
}
