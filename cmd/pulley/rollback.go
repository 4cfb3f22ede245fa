package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/store"
)

type rollbackOptions struct {
	*options
	sign    signFlag
	message string
	dryRun  bool
}

func newRollback(o *options) *cobra.Command {
	r := rollbackOptions{options: o}
	var fleet cli.EnvironmentFlag
	var to int64
	cmd := &cobra.Command{
		Use:   "rollback -e ENVIRONMENT",
		Short: "Restore the targets before the last change, release and data together",
		Long: `rollback gives the scope of the newest change that is still in force the whole target that it had before: release and
data generation. A promotion of what was the target already, to sign it, is no change. Again, it goes one change further back; --to EPOCH goes back until that epoch is in force again.
` + "`pulley history` lists the epochs. Nodes that have the release on disk need no download." + `

Nodes that have allowed signers go below the highest release and data that they ever attempted only where --sign-key
permitted it; the permit is kept with the change.

EXIT STATUS
  0 done, 1 failed, or nothing to take back; 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error {
			if to < 0 {
				return cli.Usagef("cannot roll back to epoch %d: give one that `pulley history` lists, or 0 for before the first", to)
			}
			return o.inFleet(c, fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				if _, _, err := s.Environments.MustSpec(ctx, ref); err != nil {
					return err
				}
				if !c.Flags().Changed("to") {
					return retryConflicts(func() error { return r.rollback(ctx, s, ref) })
				}
				return r.rollbackTo(ctx, s, ref, agent.Epoch(to))
			})
		},
	}
	fleet.AddFlag(cmd.Flags())
	cmd.Flags().Int64Var(&to, "to", 0, "go back until this epoch is in force again")
	r.sign.add(cmd)
	cmd.Flags().StringVarP(&r.message, "message", "m", "", "why")
	cmd.Flags().BoolVar(&r.dryRun, "dry-run", false, "only say what would be taken back")
	return cmd
}

var errNothingToUndo = errors.New("nothing is left to take back")

func (r rollbackOptions) rollback(ctx context.Context, s *store.Store, ref environments.Ref) error {
	fleet, err := s.Fleet.State(ctx, ref)
	if err != nil {
		return err
	}
	history, err := s.Targets.HistoryOf(ctx, ref, fleet.Desires)
	if err != nil {
		return err
	}
	undo, ok := store.Undo(history)
	if !ok {
		return fmt.Errorf("cannot roll %s back: %w", ref, errNothingToUndo)
	}
	if r.dryRun {
		cli.Cleanf(r.env.Stdout, "would take back epoch %d (%s by %s): %s in %s goes from %s to %s\n",
			undo.Epoch, undo.Kind, undo.By, undo.Scope(), ref, describeTarget(undo.After), describeTarget(undo.Before))
		return nil
	}
	why := r.message
	if why == "" {
		why = fmt.Sprintf("takes back epoch %d", undo.Epoch)
	}
	c, err := s.Targets.Rollback(ctx, ref, fleet.Desires, undo, r.author(why, r.sign))
	if err != nil {
		return err
	}
	r.announce(ref, fleet, c)
	return nil
}

// rollbackTo takes changes back one by one until only those up to an epoch are in force.
func (r rollbackOptions) rollbackTo(ctx context.Context, s *store.Store, ref environments.Ref, to agent.Epoch) error {
	for undone := 0; ; undone++ {
		history, err := s.Targets.History(ctx, ref, 0)
		if err != nil {
			return err
		}
		newest := agent.Epoch(0)
		if len(history) > 0 {
			newest = history[0].Epoch
		}
		if to > newest {
			return fmt.Errorf("cannot roll %s back to epoch %d: its newest is %d", ref, to, newest)
		}
		undo, ok := store.Undo(history)
		if !ok || undo.Epoch <= to {
			if undone == 0 {
				fmt.Fprintf(r.env.Stdout, "epoch %d is in force already in %s\n", to, ref)
			}
			return nil
		}
		if err := retryConflicts(func() error { return r.rollback(ctx, s, ref) }); err != nil || r.dryRun {
			return err
		}
	}
}

func newHistory(o *options) *cobra.Command {
	var fleet cli.EnvironmentFlag
	var limit int64
	cmd := &cobra.Command{
		Use: "history -e ENVIRONMENT", Short: "List the changes of targets, newest first",
		Long: `history lists the changes of an environment's targets, the newest first. Each is an epoch, which ` + "`pulley rollback --to`" + ` takes.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.inFleet(c, fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				if _, _, err := s.Environments.MustSpec(ctx, ref); err != nil {
					return err
				}
				history, err := s.Targets.History(ctx, ref, limit)
				if err != nil {
					return err
				}
				return o.out.Print(o.env, history, func(t *cli.Table) error {
					t.Row("EPOCH", "WHEN", "WHAT", "WHOM", "FROM", "TO", "BY", "WHY")
					for _, h := range history {
						t.Row(strconv.FormatInt(int64(h.Epoch), 10), cli.Ago(o.env.Now(), h.At), string(h.Kind), h.Scope().String(),
							describeTarget(h.Before), describeTarget(h.After), h.By, strings.TrimSpace(h.Why))
					}
					return nil
				})
			})
		},
	}
	fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	cmd.Flags().Int64Var(&limit, "limit", 50, "how many; 0 for all")
	return cmd
}
