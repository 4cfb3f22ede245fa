package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/publish"
)

type pruneOptions struct {
	*options
	keep    int
	history time.Duration
	changes int
}

// pruned is the JSON output.
type pruned struct {
	publish.PrunePlan
	Removed bool  `json:"removed"` // false: plan only
	Freed   int64 `json:"freed"`   // bytes of removed values
}

func newReleasesPrune(o *options) *cobra.Command {
	p := pruneOptions{options: o}
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove unneeded releases and live data from etcd",
		Long: `prune removes a release if it is not a target, if no node runs it, tries it or has it as its last good release, if no rollback
leads to it, and if it is not among the newest. With the releases it removes the deltas, objects and live data that only they
needed. An unreadable value stops prune before it removes anything. prune shows its plan and asks for confirmation.

Then prune compacts etcd, which can use the room again at once. The file of etcd shrinks at the next defragmentation,
which stops a member for a moment: ` + "`pulley doctor --fix`" + ` defragments a file that is larger than half of the quota.

EXIT STATUS
  0 done, or nothing to do; 1 failed, or not confirmed; 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := p.check(); err != nil {
				return err
			}
			return p.withEtcd(c, p.prune)
		},
	}
	p.out.AddFlags(cmd.Flags())
	f := cmd.Flags()
	f.IntVar(&p.keep, "keep", publish.DefaultPruneKeep, "keep this many of the highest versions, and this many of the releases published last")
	cli.DurationVar(f, &p.history, "history", publish.DefaultPruneHistory, "keep the releases that younger changes can be rolled back to, and younger live data")
	f.IntVar(&p.changes, "changes", publish.DefaultPruneChanges, "keep the releases that this many changes of each environment can be rolled back to")
	p.addDryRun(cmd)
	p.addConfirmation(cmd)
	return cmd
}

func (p pruneOptions) check() error {
	switch {
	case p.keep < 0 || p.history <= 0 || p.changes <= 0:
		return cli.Usagef("give --keep at least 0, and --history and --changes more than 0")
	case !p.yes && !p.dryRun && !p.out.ForPeople():
		return cli.Usagef("cannot ask for confirmation with -o %s\ngive --yes, or --dry-run to see the changes", p.out.Format)
	}
	return p.mayConfirm()
}

func (p pruneOptions) prune(ctx context.Context, s *etcd.DB) error {
	plan, err := publish.PlanPrune(ctx, s, publish.PruneOptions{By: p.env.User, Keep: p.keep, History: p.history, Changes: p.changes}, p.env.Now())
	if err != nil {
		return err
	}
	if p.out.ForPeople() {
		if err := p.show(plan); err != nil {
			return err
		}
	}
	result := pruned{PrunePlan: plan}
	if !p.dryRun && !plan.Empty() {
		if err := p.confirm(ctx, "Remove all of this?"); err != nil {
			return err
		}
		if result.Freed, err = publish.ApplyPrune(ctx, s, plan); err != nil {
			if result.Freed > 0 {
				err = fmt.Errorf("%w\n%s are removed already", err, cli.Bytes(result.Freed))
			}
			return err
		}
		result.Removed = true
	}
	return p.out.Print(p.env, result, func(*cli.Table) error {
		if result.Removed {
			fmt.Fprintf(p.env.Stdout, "removed %s of values and compacted etcd; `pulley doctor --fix` shrinks its file\n", cli.Bytes(result.Freed))
		}
		return nil
	})
}

func (p pruneOptions) show(plan publish.PrunePlan) error {
	t := cli.NewTable(p.env)
	t.Row("RELEASE", "", "REASON")
	for _, v := range plan.Releases {
		t.Row(v, "removed", "unneeded")
	}
	for _, k := range plan.Kept {
		t.Row(k.Version, "kept", k.String())
	}
	for _, g := range plan.Generations {
		t.Row(fmt.Sprintf("data %d", g.Number), "removed", "unneeded in "+g.Environment)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if plan.Empty() {
		fmt.Fprintln(p.env.Stdout, "nothing to remove")
		return nil
	}
	goes := "removes"
	if p.dryRun {
		goes = "would remove"
	}
	fmt.Fprintf(p.env.Stdout, "%s %s, %s, %s; %s and %s of live data; together %s\n", goes,
		cli.Count(len(plan.Releases), "release"), cli.Count(len(plan.Deltas), "delta"), cli.Count(len(plan.Objects), "object"),
		cli.Count(len(plan.Generations), "generation"), cli.Count(len(plan.Layers), "layer"), cli.Bytes(plan.Bytes))
	return nil
}
