package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/internal/rollouts"
)

func newJob(o *options) *cobra.Command {
	return group("job", "Run Puppet on nodes in the order of their dependencies",
		"job runs Puppet on the nodes of an environment group by group: each group after the ones that it needs. All other nodes of the job\n"+
			"wait, and none of them runs by its schedule. `pulley serve` advances it; when nothing does, its nodes are free after 15 minutes.",
		newJobPlan(o), newJobRun(o), newJobRetry(o), newJobList(o), newJobShow(o), newJobWatch(o), newJobAbort(o),
	)
}

func newJobRun(o *options) *cobra.Command {
	var order jobOrder
	var sel jobSelect
	cmd := &cobra.Command{
		Use: "run -e ENVIRONMENT", Short: "Run Puppet on nodes, each after those that it needs",
		Long: `run starts a job: all of its nodes wait. When none of them runs, the nodes of the first group run Puppet on what is desired for them, then
those of the next one. When a node fails, the rest does not run. The end of the job ends all waits.

run shows the groups and asks for confirmation. In scripts, use --yes. Then it shows the job until it ends; Ctrl-C ends the view, and the
job continues.

EXIT STATUS
  0 the job completed, or the view was interrupted; 1 failed, or not confirmed; 2 wrong usage, 3 etcd unreachable; 4 the job ended without
  completing`,
		Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error {
			selection, err := sel.value()
			if err == nil {
				err = order.check()
			}
			if err != nil {
				return err
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				p, err := rollouts.PlanJob(ctx, s, ref, selection, order.JobOrder, o.env.Now())
				if err != nil {
					return err
				}
				return o.runJob(ctx, s, ref, p, order.JobOrder)
			})
		},
	}
	order.add(cmd)
	sel.add(cmd)
	sel.addCatalog(cmd)
	sel.addSkip(cmd, &order.JobOrder)
	cmd.Flags().BoolVar(&order.Noop, "noop", false, "run Puppet without changes: the runs count as no enforcement")
	cli.DurationVar(cmd.Flags(), &order.KeepWaiting, "keep-waiting", 0, "hold the nodes that fail for this long, for an investigation")
	return o.addJobRun(cmd)
}

func newJobRetry(o *options) *cobra.Command {
	var sel jobSelect
	var order rollouts.JobOrder
	cmd := &cobra.Command{
		Use: "retry [JOB] -e ENVIRONMENT", Short: "Run the nodes of a job that failed or never ran",
		Long: `retry starts a job over the nodes of an ended job that failed or never ran, in the same order: of the newest one, or of that which is
named. It shows the groups, asks, and shows the job, as run does.`,
		Args: arguments(0, 1, "takes at most one job"),
		RunE: func(c *cobra.Command, args []string) error {
			selection, err := sel.value()
			if err != nil {
				return err
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				p, again, err := rollouts.RestOfJob(ctx, s, ref, first(args), selection, order.SkipOutside, o.env.Now())
				if err != nil {
					return err
				}
				return o.runJob(ctx, s, ref, p, again)
			})
		},
	}
	sel.add(cmd)
	sel.addSkip(cmd, &order)
	return o.addJobRun(cmd)
}

func (o *options) addJobRun(cmd *cobra.Command) *cobra.Command {
	o.fleet.AddFlag(cmd.Flags())
	o.sign.add(cmd)
	o.addConfirmation(cmd)
	o.addDryRun(cmd)
	o.addMessage(cmd, "reason, shown in the history")
	return cmd
}

// runJob shows a job, asks, starts it and follows it.
func (o *options) runJob(ctx context.Context, s *etcd.DB, ref model.Ref, p rollouts.JobPlan, order rollouts.JobOrder) error {
	planned := o.changing()
	planned.DryRun = true
	r, err := rollouts.StartJob(ctx, s, ref, p, order, planned)
	if err != nil {
		return err
	}
	o.showJobPlan(r.Noun(), p)
	if o.dryRun {
		return nil
	}
	how := ""
	if order.Noop {
		how = " without changes"
	}
	if err := o.confirm(ctx, fmt.Sprintf("Run Puppet%s on %s?", how, cli.Count(r.Nodes, "node"))); err != nil {
		return err
	}
	if r, err = rollouts.StartJob(ctx, s, ref, p, order, o.changing()); err != nil {
		return err
	}
	fmt.Fprintf(o.env.Stdout, "%s started; `pulley serve` advances it\n%s", r.Name(), waysOn(ref))
	return o.watchRollout(ctx, s, ref, rollout.Run, r.ID)
}

func newJobList(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list -e ENVIRONMENT", Short: "List the jobs of an environment, newest first", Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				all, damaged, err := rollouts.Rollouts(ctx, s, ref, rollout.Run)
				if err != nil {
					return err
				}
				o.warn(damaged)
				return o.out.Print(o.env, all, func(t *cli.Table) error {
					t.Row("JOB", "STATE", "NODES", "DONE", "FAILED", "STARTED", "BY", "WHY")
					t.Spare("BY")
					for _, r := range all {
						t.Row(r.ID, string(r.State), strconv.Itoa(r.Nodes), strconv.Itoa(r.Done), strconv.Itoa(r.Failed), cli.Ago(o.env.Now(), r.At), r.By, string(r.Why))
					}
					return nil
				})
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func newJobShow(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show [JOB] -e ENVIRONMENT", Short: "Show a job: its groups, its nodes, and what it waits for",
		Long: "show prints the job in progress, or else the newest one. With an argument, it prints that one.",
		Args: arguments(0, 1, "takes at most one job"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				r, err := rollouts.LookAtRollout(ctx, s, ref, rollout.Run, first(args), o.env.Now())
				if err != nil {
					return err
				}
				return o.out.Print(o.env, r, func(*cli.Table) error { return o.showRollout(ref, r) })
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func newJobWatch(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "watch [JOB] -e ENVIRONMENT", Short: "Show a job until it ends",
		Long: `watch shows the job in progress, or else the newest one, until it has ended. On a terminal it is a live view, elsewhere one line for each
change. Ctrl-C ends the view, and the job continues.

EXIT STATUS
  0 the job completed, or watch was interrupted; 1 failed, 2 wrong usage, 3 etcd unreachable; 4 the job ended without completing`,
		Args: arguments(0, 1, "takes at most one job"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				return o.watchRollout(ctx, s, ref, rollout.Run, first(args))
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	return cmd
}

func newJobAbort(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "abort -e ENVIRONMENT", Short: "End a job: the nodes that did not begin do not run",
		Long: "abort ends the job in progress. Nodes that run end their runs; the others do not run, and no node waits any longer.",
		Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				r, err := rollouts.AbortJob(ctx, s, ref, o.changing())
				if err != nil {
					return err
				}
				fmt.Fprintf(o.env.Stdout, "%s in %s: %s; %d of %s done, %d failed\n", r.Name(), ref, r.State, r.Done, cli.Count(r.Nodes, "node"), r.Failed)
				return nil
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.sign.add(cmd)
	o.addDryRun(cmd)
	o.addMessage(cmd, "reason, shown in the history")
	return cmd
}

// first returns the first argument, or "".
func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}
