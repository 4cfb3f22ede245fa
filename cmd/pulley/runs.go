package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/specs"
)

// runsCommand shows the runs of nodes.
type runsCommand struct{ *options }

func newRuns(o *options) *cobra.Command {
	var follows bool
	cmd := &cobra.Command{
		Use: "runs NODE [ID|latest] -e ENVIRONMENT", Short: "List a node's runs, or show one run, failures first", Args: arguments(1, 2, "takes a node, and the id of a run to show"),
		Long: `runs lists a node's runs, the newest first. With an id, or with latest, it shows one run: failed resources first, then the
changed ones, then Puppet's log. With puppet.settings.show_diff in the environment file, it shows how the text of files changed. With
--follow it prints the newest run, and each later one when the node reports it.`,
		Example: `  pulley runs compute1 -e production
  pulley runs compute1 latest -e production
  pulley runs compute1 -e production --follow`,
		RunE: func(c *cobra.Command, args []string) error {
			if follows && len(args) > 1 {
				return cli.Usagef("--follow takes no id of a run")
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				if follows {
					return runsCommand{o}.followRuns(ctx, s, ref, args[0])
				}
				return runsCommand{o}.runs(ctx, s, ref, args)
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	cmd.Flags().BoolVar(&follows, "follow", false, "print each new run when the node reports it, until interrupted")
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func (o runsCommand) runs(ctx context.Context, s *etcd.DB, ref model.Ref, args []string) error {
	if _, err := fleet.FindEnvironment(ctx, specs.In(s), ref); err != nil {
		return err
	}
	runs, err := o.readRuns(ctx, s, ref, args[0])
	if err != nil {
		return err
	}
	if len(args) == 1 {
		return o.out.Print(o.env, runs, func(t *cli.Table) error { return o.runTable(t, args[0], runs) })
	}
	for _, r := range runs {
		if r.ID == args[1] || args[1] == latestRun {
			return o.out.Print(o.env, r, func(*cli.Table) error { printRun(o.env.Stdout, r); return nil })
		}
	}
	return fmt.Errorf("cannot find run %s of %s: %w\n`pulley runs %s -e %s` lists the kept runs", quoted(args[1]), args[0], etcd.ErrNotFound, args[0], ref)
}

// latestRun stands for the id of the newest run.
const latestRun = "latest"

// readRuns reads a node's runs, the newest first. The node must exist.
func (o runsCommand) readRuns(ctx context.Context, s *etcd.DB, ref model.Ref, node string) ([]model.Run, error) {
	runs, damaged, err := fleet.In(s).Runs(ctx, ref, node)
	if err != nil {
		return nil, err
	}
	if len(runs)+len(damaged) == 0 {
		if _, err := fleet.FindNode(ctx, s, ref, node); err != nil {
			return nil, err
		}
	}
	for _, d := range damaged {
		cli.Complain(o.env, program, fmt.Errorf("warning: cannot read run %s", d))
	}
	slices.SortStableFunc(runs, func(a, b model.Run) int { return b.Started.Compare(a.Started) })
	return runs, nil
}

// runsPoll is the time between two looks for a new run. A look without one reads the node's status alone.
const runsPoll = time.Second

// followRuns prints the newest run of a node, and each later one, until ctx ends.
func (o runsCommand) followRuns(ctx context.Context, s *etcd.DB, ref model.Ref, node string) error {
	tick := time.NewTicker(runsPoll)
	defer tick.Stop()
	var shown *model.Run
	for {
		st, _, err := control.In(s).Status(ctx, model.Identity{Environment: ref.String(), Node: node})
		if err == nil && (shown == nil || st.LastRun != shown.ID) { // a status names a run before its record is written
			var runs []model.Run
			if runs, err = o.readRuns(ctx, s, ref, node); err == nil {
				err = o.printNewRuns(runs, &shown)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// printNewRuns prints the runs after shown, oldest first, or only the newest one if none was shown.
func (o runsCommand) printNewRuns(runs []model.Run, shown **model.Run) error {
	fresh := runs[:min(len(runs), 1)]
	if *shown != nil {
		fresh = runs
		if at := slices.IndexFunc(runs, func(r model.Run) bool { return r.ID == (*shown).ID }); at >= 0 {
			fresh = runs[:at]
		}
	}
	for _, r := range slices.Backward(fresh) {
		*shown = &r
		err := o.out.Print(o.env, r, func(*cli.Table) error {
			cli.Cleanf(o.env.Stdout, "%s  %-9s  took %-4s  %s  %s\n", r.ID, outcomeOf(r), cli.Span(r.Duration), r.Target, r.Problem)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func outcomeOf(r model.Run) string {
	switch {
	case r.Noop && r.Partial():
		return "noop, partial"
	case r.Noop:
		return "noop"
	case r.Partial():
		return string(r.Outcome) + ", partial"
	case r.Unclassified:
		return string(r.Outcome) + ", 0 classes"
	case r.Counts.Pending > 0:
		return fmt.Sprintf("%s, %d pending", r.Outcome, r.Counts.Pending)
	case r.Drift && r.Served != nil:
		return string(r.Outcome) + " (drift or catalog)"
	case r.Drift:
		return string(r.Outcome) + " (drift)"
	}
	return string(r.Outcome)
}

func outcomeStyle(outcome string) cli.Style {
	if strings.HasPrefix(outcome, string(model.Failed)) {
		return cli.Red
	}
	return ""
}

func (o runsCommand) runTable(t *cli.Table, node string, runs []model.Run) error {
	if len(runs) == 0 {
		fmt.Fprintf(o.env.Stdout, "%s has reported no runs\n", node)
		return nil
	}
	t.Row("ID", "WHEN", "TOOK", "TARGET", "COMMIT", "OUTCOME", "CHANGED", "FAILED", "WHY", "PROBLEM")
	t.Paint("OUTCOME", outcomeStyle)
	t.Spare("TOOK", "CHANGED", "FAILED", "COMMIT")
	for _, r := range runs {
		t.Row(r.ID, cli.Ago(o.env.Now(), r.Started), cli.Span(r.Duration), r.Target.String(), fmt.Sprintf("%.10s", r.Commit), outcomeOf(r),
			fmt.Sprint(r.Counts.Changed), fmt.Sprint(r.Counts.Failed), model.Cause{Reason: r.Reason}.Sentence(), r.Problem.String())
	}
	return nil
}

func atCommit(commit string) string {
	if commit == "" {
		return ""
	}
	return ", commit " + commit
}

// kindWords say what a run that failed left on the machine.
var kindWords = map[model.Kind]string{
	model.Success: "the complete catalog was applied", model.Untouched: "nothing was applied", model.Between: "part of the catalog may be applied",
}

func printRun(w io.Writer, r model.Run) {
	cli.Cleanf(w, "run %s of %s: %s on %s\n", r.ID, r.Node, r.Outcome, r.Target)
	cli.Cleanf(w, "  began %s, took %s, reason: %s\n", r.Started.UTC().Format(time.RFC3339), r.Duration.Round(time.Millisecond), model.Cause{Reason: r.Reason}.Sentence())
	cli.Cleanf(w, "  resources: %d in all, %d changed, %d failed, %d skipped\n", r.Counts.Total, r.Counts.Changed, r.Counts.Failed, r.Counts.Skipped)
	if r.Counts.Pending > 0 && !r.Noop {
		cli.Cleanf(w, "  pending: %s would change without noop in the code\n", cli.Count(r.Counts.Pending, "resource"))
	}
	if r.ConfigVersion != "" {
		cli.Cleanf(w, "  version: %s%s\n", r.ConfigVersion, atCommit(r.Commit))
	}
	if r.Served != nil {
		cli.Cleanf(w, "  catalog: %s\n", fleet.ServedWords(*r.Served))
	}
	if len(r.Tags) > 0 {
		cli.Cleanf(w, "  partial: only resources with tags %s\n", strings.Join(r.Tags, ", "))
	}
	if len(r.SkipTags) > 0 {
		cli.Cleanf(w, "  partial: no resources with tags %s\n", strings.Join(r.SkipTags, ", "))
	}
	if r.Unclassified {
		cli.Cleanf(w, "  warning: %s\n", strings.ReplaceAll(model.UnclassifiedWords, "\n", "; "))
	}
	switch {
	case r.Drift && r.Served != nil:
		fmt.Fprintln(w, "  drift or catalog: the target was already in place, and the machine or the catalog of the server had changed")
	case r.Drift:
		fmt.Fprintln(w, "  drift: the target was already in place, and the machine had changed")
	}
	if r.Problem != (model.Problem{}) {
		cli.Cleanf(w, "  problem: %s\n", r.Problem)
		if left := kindWords[r.Kind]; left != "" { // a newer agent may know other kinds
			cli.Cleanf(w, "  %s\n", left)
		}
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
		for line := range strings.Lines(e.Diff) {
			cli.Cleanf(w, "    %s\n", strings.TrimSuffix(line, "\n"))
		}
		switch {
		case e.Hidden:
			fmt.Fprintln(w, "    the diff is left out: not every user of the machine may read the file")
		case e.Cut:
			fmt.Fprintln(w, "    the diff is cut: it exceeds the limits of a record")
		}
	}
	if len(r.Log) > 0 {
		fmt.Fprintln(w, "\nlog")
	}
	repeats := 0
	for _, l := range r.Log {
		if repeatsFailure(l, r.Resources) {
			repeats++
			continue
		}
		cli.Cleanf(w, "  %-7s %s\n", l.Level, strings.TrimSpace(l.Source+" "+l.Message))
	}
	if repeats > 0 {
		fmt.Fprintf(w, "  %s of the failures above: -o json shows all lines\n", cli.Count(repeats, "repetition"))
	}
}

// repeatsFailure reports whether an error of the log says what a failed resource says: Puppet writes each up to four times.
func repeatsFailure(l model.LogLine, resources []model.ResourceEvent) bool {
	said, _, _ := strings.Cut(l.Message, "\n")
	said, _, _ = strings.Cut(said, " (file: ")
	return l.Level == "err" && said != "" && slices.ContainsFunc(resources, func(r model.ResourceEvent) bool {
		return r.Status == "failed" && slices.ContainsFunc(r.Messages, func(m string) bool { return strings.Contains(m, said) || m != "" && strings.Contains(said, m) })
	})
}
