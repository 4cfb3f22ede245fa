package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/promotion"
)

// maxRecovery limits the validity of a recovery: its permit lowers nodes from any height.
const maxRecovery = 30 * 24 * time.Hour

func newRecover(o *options) *cobra.Command {
	var valid time.Duration
	cmd := &cobra.Command{
		Use:   "recover -e ENVIRONMENT",
		Short: "Restore targets that were written without Pulley, and lower high-water marks",
		Long: `recover writes the target of the last change to each scope whose target in etcd differs, and the number of the newest data if
somebody wrote another. It then finds the nodes that refuse
their target because their high-water mark is above it. For these it signs a permit with --sign-key: until its end, a node of
the environment may go down from any of these marks to exactly this target, once. Nodes take it at their next tick.

Before you sign, check the targets in ` + "`pulley history`" + `, and find the writer: ` + "`--dry-run`" + ` prints the differences.

EXIT STATUS
  0 done, or nothing to recover; 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error {
			if valid <= 0 || valid > maxRecovery {
				return cli.Usagef("cannot sign a permit that is valid for %s: give --valid more than 0 and at most %s", valid, maxRecovery)
			}
			if err := o.sign.check(o.env); err != nil {
				return err
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				until := o.env.Now().Add(valid)
				done, err := promotion.Recover(ctx, s, ref, until, o.dryRun, o.changing())
				for _, r := range done.Scopes {
					o.announceRecovery(ref, r, until)
				}
				o.announceHead(ref, done.Head)
				if err == nil && len(done.Scopes) > 0 && done.Scopes[0].Began {
					fmt.Fprintf(o.env.Stdout, "the history of %s was deleted, and nothing shows the right targets: find out who deleted it, check `pulley status -e %[1]s`, then promote every target again\n", ref)
					return nil
				}
				if err == nil && len(done.Scopes) > 0 && !o.dryRun {
					st, missing, err := promotion.Restate(ctx, s, ref, o.changing())
					if warnUnstated(o.env, ref, missing); st.Epoch > 0 {
						o.announceStatement(ref, st)
					}
					return err
				}
				if err == nil && len(done.Scopes) == 0 && done.Head == nil {
					fmt.Fprintf(o.env.Stdout, "nothing to recover in %s: targets and history agree, and no node refuses its target because of its high-water mark\n", ref)
				}
				return err
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.sign.add(cmd)
	cli.DurationVar(cmd.Flags(), &valid, "valid", 7*24*time.Hour, "how long nodes accept the permit")
	o.addDryRun(cmd)
	o.addMessage(cmd, "reason")
	return cmd
}

// announceHead prints the recovery of the number after which the next data has its number; nil: there was none.
func (o *options) announceHead(ref model.Ref, h *targets.DataHead) {
	if h == nil {
		return
	}
	was, would := fmt.Sprintf("was %d", h.Head), ""
	if h.Head < 0 {
		was = "was unreadable"
	}
	if o.dryRun {
		would = "would be "
	}
	fmt.Fprintf(o.env.Stdout, "the newest data of %s: %sgeneration %d; the head in etcd %s\n", ref, would, h.Newest, was)
}

// announceRecovery prints the recovery of a scope.
func (o *options) announceRecovery(ref model.Ref, r promotion.Recovery, until time.Time) {
	if o.dryRun {
		cli.Cleanf(o.env.Stdout, "would recover %s in %s to %s\n", r.Scope(), ref, describeTarget(r.Target))
	} else {
		cli.Cleanf(o.env.Stdout, "%s in %s: %s (epoch %d)\n", r.Scope(), ref, describeTarget(r.Target), r.Epoch)
	}
	if r.Was != r.Target {
		cli.Cleanf(o.env.Stdout, "  the target in etcd was %s\n", describeTarget(r.Was))
	}
	if r.Passed > 0 {
		fmt.Fprintf(o.env.Stdout, "  the next change follows epoch %d, which a node, `pulley serve` or the gate in etcd has: the history ends before it\n", r.Passed)
	}
	if r.Lost != "" {
		fmt.Fprintf(o.env.Stdout, "  it ends %s %s, which cannot be read\n", model.Noun(r.Lost), r.Lost)
	}
	for i, node := range r.Nodes {
		mark := r.Marks[i]
		cli.Cleanf(o.env.Stdout, "  %s may go down from release %s and data %d until %s\n", node, mark.Release, mark.Data, until.UTC().Format(time.RFC3339))
	}
}
