package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/fleet"
	"pulley/internal/store"
)

func newStatus(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status -e ENVIRONMENT", Short: "Show the state of every node of an environment", Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		Long: `status shows each node's state: ` + fleet.States() + `.

An environment is healthy when each of its nodes is registered and converged. The second line of a degraded environment
lists the missing nodes.

EXIT STATUS
  0 done, whatever the states of the nodes; 1 failed; 2 wrong usage; 3 etcd unreachable`,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.inFleet(c, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				if _, err := fleet.FindEnvironment(ctx, s.Environments, ref); err != nil {
					return err
				}
				f, err := s.Fleet.State(ctx, ref)
				if err != nil {
					return err
				}
				o.warn(f.Damaged)
				if alarms, err := s.Cluster.Alarms(ctx); err == nil && slices.Contains(alarms, store.AlarmNoSpace) {
					o.warn([]string{"etcd is full: nodes cannot report, and no command can change anything\nrun `pulley doctor` for the cause"})
				}
				status := fleet.Look(f, ref, o.env.Now())
				switch history, err := s.Targets.HistoryOf(ctx, ref, f.Desires); {
				case errors.Is(err, agent.ErrUnreachable):
					return err
				case err != nil: // one unreadable change must not hide the nodes
					o.warn([]string{err.Error()})
				default:
					status.Contradictions = fleet.Contradictions(f, history, o.env.Now())
				}
				return o.showStatus(status)
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func (o *options) showStatus(status fleet.Status) error {
	return o.out.Print(o.env, status, func(t *cli.Table) error {
		fmt.Fprint(o.env.Stdout, status.Summary())
		for _, c := range status.Contradictions {
			cli.Cleanf(o.env.Stdout, "contradiction: %s\n", c.Sentence())
		}
		t.Row("NODE", "STATE", "RELEASE", "DATA", "OUTCOME", "LAST RUN", "WHY")
		for _, n := range status.Nodes {
			t.Row(n.Node, string(n.State), n.ReleaseCell(), n.DataCell(), string(n.Outcome), n.LastRun, cli.Shorten(n.Why(), o.env.Width))
		}
		return nil
	})
}

func newExplain(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain NODE -e ENVIRONMENT",
		Short: "Explain why a node is in its state, and what its next tick will do",
		Long: `explain runs the node's own decision on its last report and on its desired state in etcd, and shows each check with
its result.`,
		Args: arguments(1, 1, "takes one node"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.inFleet(c, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				e, err := fleet.FindEnvironment(ctx, s.Environments, ref)
				if err != nil {
					return err
				}
				f, err := s.Fleet.State(ctx, ref)
				if err != nil {
					return err
				}
				if err := fleet.CheckNode(e, f.Known(), args[0]); err != nil {
					return err
				}
				x := fleet.Explain(f, ref, args[0], o.env.Now())
				return o.out.Print(o.env, x, func(*cli.Table) error {
					_, err := fmt.Fprint(o.env.Stdout, x.Words(o.env.Now()))
					return err
				})
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func newRuns(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "runs NODE [ID] -e ENVIRONMENT", Short: "List a node's runs, or show one run, failures first", Args: arguments(1, 2, "takes a node, and the id of a run to show"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.inFleet(c, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				return o.runs(ctx, s, ref, args)
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func (o *options) runs(ctx context.Context, s *store.Store, ref environments.Ref, args []string) error {
	e, err := fleet.FindEnvironment(ctx, s.Environments, ref)
	if err != nil {
		return err
	}
	runs, damaged, err := s.Fleet.Runs(ctx, ref, args[0])
	if err != nil {
		return err
	}
	if len(runs)+len(damaged) == 0 {
		if err := knownNode(ctx, s, ref, e, args[0]); err != nil {
			return err
		}
	}
	for _, d := range damaged {
		cli.Complain(o.env, program, fmt.Errorf("warning: cannot read run %s", d))
	}
	slices.SortStableFunc(runs, func(a, b agent.Run) int { return b.Started.Compare(a.Started) })
	if len(args) == 1 {
		return o.out.Print(o.env, runs, func(t *cli.Table) error { return o.runTable(t, args[0], runs) })
	}
	for _, r := range runs {
		if r.ID == args[1] {
			return o.out.Print(o.env, r, func(*cli.Table) error { printRun(o.env.Stdout, r); return nil })
		}
	}
	return fmt.Errorf("cannot find run %s of %s: %w\n`pulley runs %s -e %s` lists the kept runs", quoted(args[1]), args[0], store.ErrNotFound, args[0], ref)
}

func (o *options) runTable(t *cli.Table, node string, runs []agent.Run) error {
	if len(runs) == 0 {
		fmt.Fprintf(o.env.Stdout, "%s has reported no runs\n", node)
		return nil
	}
	t.Row("ID", "WHEN", "TOOK", "TARGET", "OUTCOME", "CHANGED", "FAILED", "WHY", "PROBLEM")
	for _, r := range runs {
		outcome := string(r.Outcome)
		if r.Noop {
			outcome = "noop"
		}
		if r.Drift {
			outcome += " (drift)"
		}
		t.Row(r.ID, cli.Ago(o.env.Now(), r.Started), cli.Span(r.Duration), r.Target.String(), outcome,
			fmt.Sprint(r.Counts.Changed), fmt.Sprint(r.Counts.Failed), agent.Cause{Reason: r.Reason}.Sentence(), cli.Shorten(r.Problem.String(), o.env.Width))
	}
	return nil
}

// knownNode rejects a node that is not in the environment, not registered, and has never reported.
func knownNode(ctx context.Context, s *store.Store, ref environments.Ref, e *environments.Environment, node string) error {
	f, err := s.Fleet.State(ctx, ref)
	if err != nil {
		return err
	}
	return fleet.CheckNode(e, f.Known(), node)
}

func printRun(w io.Writer, r agent.Run) {
	cli.Cleanf(w, "run %s of %s: %s on %s\n", r.ID, r.Node, r.Outcome, r.Target)
	cli.Cleanf(w, "  began %s, took %s, reason: %s\n", r.Started.UTC().Format(time.RFC3339), r.Duration.Round(time.Millisecond), agent.Cause{Reason: r.Reason}.Sentence())
	cli.Cleanf(w, "  resources: %d in all, %d changed, %d failed, %d skipped\n", r.Counts.Total, r.Counts.Changed, r.Counts.Failed, r.Counts.Skipped)
	if r.Drift {
		fmt.Fprintln(w, "  drift: the target was already in place, and the machine had changed")
	}
	if r.Problem != (agent.Problem{}) {
		cli.Cleanf(w, "  problem: %s\n  left the machine %s\n", r.Problem, r.Kind)
	}
	for _, e := range r.Resources {
		place := ""
		if e.File != "" {
			place = fmt.Sprintf(" (%s:%d)", e.File, e.Line)
		}
		cli.Cleanf(w, "\n%s %s%s\n", strings.ToUpper(e.Status), e.Resource, place)
		for _, m := range e.Messages {
			cli.Cleanf(w, "  %s\n", m)
		}
	}
	if len(r.Log) > 0 {
		fmt.Fprintln(w, "\nlog")
	}
	for _, l := range r.Log {
		cli.Cleanf(w, "  %-7s %s\n", l.Level, strings.TrimSpace(l.Source+" "+l.Message))
	}
}
