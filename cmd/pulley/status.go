package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/rollouts"
	"pulley/internal/specs"
)

// rowsOnTerminal is the default of --limit on a terminal.
const rowsOnTerminal = 50

// Times between two reads of --watch: the second is relative to the time that a read takes.
const (
	watchPoll  = 2 * time.Second
	watchPause = 5
)

// linesAround is the number of lines around the nodes of --watch.
const linesAround = 9

type statusOptions struct {
	*options
	selected         selectFlags
	summary, watches bool
	all              bool
	detailed         bool
}

func newStatus(o *options) *cobra.Command {
	v := statusOptions{options: o}
	cmd := &cobra.Command{
		Use: "status [-e ENVIRONMENT]", Short: "Show the state of every node of an environment, or of all environments", Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		Long: `status shows each node's state: ` + fleet.States() + `. Without an environment, or with --all, it
shows a line for each environment. It lists the nodes
that the environment calls for, the registered ones, and those that have reported. --role, --node, --state and --where select some of
them. On a terminal, status lists at most ` + strconv.Itoa(rowsOnTerminal) + ` nodes, those that are not converged first.

An environment is healthy when each of its nodes is registered and converged. The second line of a degraded environment
lists the missing nodes. With --role, --node or --where, both lines are about the selected nodes.

With --wait, status waits until the nodes of the environment are converged. It stops waiting when every other node failed at
its target, is held, silent or not on the host list.

EXIT STATUS
  0 done, or --watch was interrupted; 1 failed, 2 wrong usage, 3 etcd unreachable; 4 degraded, with --wait or
  --detailed-exitcodes; 5 the time of --wait passed`,
		Example: `  pulley status --all
  pulley status -e production --summary
  pulley status -e production --role compute --state failed,stuck
  pulley status -e production --wait 15m`,
		RunE: func(c *cobra.Command, _ []string) error {
			sel, err := v.selected.value()
			if err != nil {
				return err
			}
			if err := v.wait.check(c); err != nil {
				return err
			}
			if v.watches && (v.wait.limit > 0 || !v.out.ForPeople()) {
				return cli.Usagef("--watch excludes --wait and -o %s", v.out.Format)
			}
			if !c.Flags().Changed("limit") && v.env.Terminal && v.out.ForPeople() {
				v.selected.limit = rowsOnTerminal
				if v.watches && v.env.Height > 0 {
					v.selected.limit = max(v.env.Height-linesAround, 1)
				}
			}
			if v.all || v.fleet.None(v.env) && v.context.err == nil {
				return v.showAll(c)
			}
			return v.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error { return v.run(ctx, s, ref, sel) })
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	v.selected.add(cmd)
	v.selected.addState(cmd)
	v.selected.addLimit(cmd, 0, "number of nodes; 0 for all (default: "+strconv.Itoa(rowsOnTerminal)+" on a terminal, else all)")
	cmd.Flags().BoolVar(&v.all, "all", false, "show a line for each environment")
	cmd.Flags().BoolVar(&v.summary, "summary", false, "only count the nodes, by role and state")
	cmd.Flags().BoolVar(&v.watches, "watch", false, "show the state again whenever it changes, until interrupted")
	cmd.Flags().BoolVar(&v.detailed, "detailed-exitcodes", false, "exit with 4 if the environment, or one of all, is degraded")
	o.wait.add(cmd, "wait until the nodes are converged")
	o.out.AddFlags(cmd.Flags())
	return cmd
}

// showAll shows all environments. One that cannot be read hides no other.
func (v statusOptions) showAll(c *cobra.Command) error {
	for _, name := range []string{"environment", "role", "node", "state", "where", "limit", "summary", "watch", "wait"} {
		if c.Flags().Changed(name) {
			return cli.Usagef("--%s is for one environment: give -e NAME, and leave out --all\n`pulley env list` lists the environments", name)
		}
	}
	return v.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
		refs, err := specs.In(s).Named(ctx)
		if err != nil {
			return err
		}
		all, healthy := fleet.Overview{Environments: []fleet.Outline{}}, true
		for _, ref := range refs {
			tally, err := fleet.Count(ctx, s, ref, v.env.Now())
			if errors.Is(err, model.ErrUnreachable) {
				return err
			}
			if err != nil {
				v.warn([]string{err.Error()})
				healthy = false
				continue
			}
			one := tally.Outline(ref.String())
			if id := tally.Gate.Rollout; id != "" {
				if r, err := rollouts.LookAtRollout(ctx, s, ref, "", id, v.env.Now()); err == nil {
					one.Rollout = r.Sentence()
				} else {
					v.warn([]string{err.Error()})
				}
			}
			healthy = healthy && one.Healthy
			all.Environments = append(all.Environments, one)
		}
		err = v.out.Print(v.env, all, func(t *cli.Table) error {
			if len(all.Environments) == 0 {
				fmt.Fprintln(v.env.Stdout, "there is no environment: `pulley env apply FILE` stores one")
				return nil
			}
			t.Row("ENVIRONMENT", "HEALTH", "TARGET", "NODES", "OLDEST REPORT", "ROLLOUT", "WHY")
			t.Paint("HEALTH", func(health string) cli.Style {
				if health == "healthy" {
					return cli.Green
				}
				return cli.Red
			})
			t.Spare("ROLLOUT", "OLDEST REPORT")
			for _, one := range all.Environments {
				t.Row(one.Row(v.env.Now())...)
			}
			return nil
		})
		if i := slices.IndexFunc(all.Environments, func(o fleet.Outline) bool { return len(o.Troubles) > 0 }); err == nil && v.out.ForPeople() && i >= 0 {
			v.printNext("pulley status -e " + all.Environments[i].Environment)
		}
		if err == nil && v.detailed && !healthy {
			return &cli.SilentError{Code: cli.ExitDegraded}
		}
		return err
	})
}

func (v statusOptions) run(ctx context.Context, s *etcd.DB, ref model.Ref, sel fleet.Selection) error {
	if v.watches {
		return v.watch(ctx, s, ref, sel)
	}
	var late error
	if v.wait.limit > 0 {
		f, err := fleet.Find(ctx, s, ref, sel)
		if err != nil {
			return err
		}
		awaited, notes, err := fleet.Narrow(ctx, s, ref, f, sel, v.env.Now())
		if err != nil {
			return err
		}
		v.warn(notes)
		if awaited.Empty() { // else a wait for a mistyped value would succeed
			return fmt.Errorf("cannot wait for nodes of %s: the expression %s selects none\n`pulley facts --group PATH -e %[1]s` lists the values of a fact", ref, quoted(v.selected.where))
		}
		if _, late = v.awaitNodes(ctx, s, fleet.AwaitHealth(ref, awaited)); late != nil && !errors.As(late, new(*fleet.NotConvergedError)) {
			return late
		}
	}
	status, err := v.read(ctx, s, ref, sel)
	if err == nil {
		err = v.print(status)
	}
	if err == nil && late == nil && v.detailed && !status.Healthy {
		return &cli.SilentError{Code: cli.ExitDegraded}
	}
	return errors.Join(err, late)
}

// read reads the state of the selected nodes, and prints what disturbs the whole environment.
func (v statusOptions) read(ctx context.Context, s *etcd.DB, ref model.Ref, sel fleet.Selection) (fleet.Status, error) {
	f, err := fleet.Find(ctx, s, ref, sel)
	if err != nil {
		return fleet.Status{}, err
	}
	sel, notes, err := fleet.Narrow(ctx, s, ref, f, sel, v.env.Now())
	if err != nil {
		return fleet.Status{}, err
	}
	v.warn(slices.Concat(f.Damaged, notes))
	if alarms, err := cluster.In(s).Alarms(ctx); err == nil && slices.Contains(alarms, cluster.AlarmNoSpace) {
		v.warn([]string{"etcd is full: nodes cannot report, and no command can change anything\nrun `pulley doctor` for the cause"})
	}
	if disk, err := cluster.In(s).Disk(ctx); err == nil && disk != nil {
		v.warn([]string{disk.Sentence() + "\nmake room on that disk"})
	}
	status := fleet.Look(f, ref, sel, v.env.Now())
	boots, err := fleet.BootsOf(ctx, s, ref, status.Nodes, v.env.Now())
	switch {
	case errors.Is(err, model.ErrUnreachable):
		return status, err
	case err != nil:
		v.warn([]string{err.Error()})
	}
	status.AddBoots(boots)
	if id := f.Desires.Gate.Rollout; id != "" {
		switch r, err := rollouts.LookAtRollout(ctx, s, ref, "", id, v.env.Now()); {
		case errors.Is(err, model.ErrUnreachable):
			return status, err
		case err != nil:
			v.warn([]string{err.Error()})
		default:
			status.Rollout = r.Sentence()
		}
	}
	if !sel.All() {
		return status, nil
	}
	switch history, err := targets.In(s).HistoryOf(ctx, ref, f.Desires); {
	case errors.Is(err, model.ErrUnreachable):
		return status, err
	case err != nil: // one unreadable change must not hide the nodes
		v.warn([]string{err.Error()})
	default:
		status.Contradictions = fleet.Contradictions(f, history, v.env.Now())
	}
	return status, nil
}

func (v statusOptions) print(status fleet.Status) error {
	left, next := 0, status.Next()
	if v.summary {
		status.Nodes = []fleet.Node{}
	} else {
		left = status.Limit(v.selected.limit)
	}
	err := v.out.Print(v.env, status, func(t *cli.Table) error {
		v.printHead(status)
		if v.summary {
			t.Row("ROLE", "STATE", "NODES", "FIRST")
			t.Paint("STATE", fleet.StateStyle)
			for _, c := range status.ByRole {
				t.Row(c.Role, string(c.State), strconv.Itoa(c.Nodes), strings.Join(c.First, " "))
			}
			return nil
		}
		t.Row("NODE", "STATE", "RELEASE", "DATA", "OUTCOME", "LAST RUN", "LAST SEEN", "WHY")
		t.Paint("STATE", fleet.StateStyle)
		t.Spare("LAST RUN", "OUTCOME", "DATA")
		for _, n := range status.Nodes {
			t.Row(n.Node, n.StateCell(), n.ReleaseCell(), n.DataCell(), string(n.Outcome), n.LastRun, n.SeenCell(v.env.Now()), v.complete(n.Why(v.env.Now())))
		}
		return nil
	})
	if err == nil && v.out.ForPeople() {
		cli.More(v.env, left, "node", "nodes")
		v.printNext(next)
	}
	return err
}

// printNext prints the next command, unless it is longer than a line of the terminal: a part of a command is of no use.
func (v statusOptions) printNext(command string) {
	if line := "next: " + command; command != "" && (!v.env.Terminal || v.env.Width <= 0 || utf8.RuneCountInString(line) <= v.env.Width) {
		cli.Cleanf(v.env.Stderr, "%s\n", line)
	}
}

// printHead prints the lines on the whole environment.
func (v statusOptions) printHead(status fleet.Status) {
	first, health, _ := strings.Cut(strings.TrimRight(status.Summary(), "\n"), "\n")
	style := cli.Green
	switch {
	case !status.Healthy:
		style = cli.Red
	case status.Unclassified+status.NoopPending > 0:
		style = cli.Yellow
	}
	fmt.Fprintf(v.env.Stdout, "%s\n%s\n", first, v.env.Paint(style, health))
	if status.Rollout != "" {
		cli.Cleanf(v.env.Stdout, "%s\n", status.Rollout)
	}
	for _, line := range status.Divided() {
		cli.Cleanf(v.env.Stdout, "%s\n", line)
	}
	for _, c := range status.Contradictions {
		cli.Cleanf(v.env.Stdout, "contradiction: %s\n", v.complete(c.Sentence()))
	}
}

// watch shows the state until ctx ends: on a terminal the whole screen, elsewhere the two lines of the summary
// whenever they change.
func (v statusOptions) watch(ctx context.Context, s *etcd.DB, ref model.Ref, sel fleet.Selection) error {
	out, shown := v.env.Stdout, ""
	for {
		began := time.Now()
		var screen bytes.Buffer
		v.env.Stdout, v.env.Stderr = &screen, &screen // warnings, too
		status, err := v.read(ctx, s, ref, sel)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case v.env.Terminal:
			if err := v.print(status); err != nil {
				return err
			}
			fmt.Fprintf(&screen, "\n%s; Ctrl-C ends\n", v.env.Now().Format(time.TimeOnly))
			_, err = io.WriteString(out, "\x1b[H\x1b[2J"+screen.String())
		case screen.String()+status.Summary() != shown:
			shown = screen.String() + status.Summary()
			_, err = io.WriteString(out, shown)
		}
		if err != nil {
			return err
		}
		pause := time.NewTimer(max(watchPoll, watchPause*time.Since(began)))
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
	}
}

// awaitNodes waits for nodes, and shows how far they are.
func (o *options) awaitNodes(ctx context.Context, s *etcd.DB, a fleet.Awaited) (fleet.Progress, error) {
	line := o.newWaitLine()
	defer line.done()
	return a.Await(ctx, fleet.In(s), o.wait.limit, o.env.Now, func(p fleet.Progress) { line.show(p.Sentence()) })
}

// waitLine shows how far a wait is: on a terminal in one line, elsewhere in a line for each change, at most one in reportEvery.
type waitLine struct {
	env      cli.Env
	progress *cli.Progress
	shown    string
	at       time.Time
}

const reportEvery = 10 * time.Second

func (o *options) newWaitLine() *waitLine {
	return &waitLine{env: o.env, progress: cli.NewProgress(o.env)}
}

func (l *waitLine) done() { l.progress.Done() }

func (l *waitLine) show(text string) {
	l.progress.Show("… " + text)
	if now := time.Now(); !l.env.ErrTerminal && text != l.shown && now.Sub(l.at) >= reportEvery {
		fmt.Fprintf(l.env.Stderr, "%s: waiting: %s\n", program, cli.Clean(text))
		l.shown, l.at = text, now
	}
}

// await waits for the nodes that changes reach, with --wait.
func (o *options) await(ctx context.Context, s *etcd.DB, a fleet.Awaited) error {
	if o.wait.limit == 0 || o.dryRun {
		return nil
	}
	p, err := o.awaitNodes(ctx, s, a)
	switch {
	case err == nil:
		fmt.Fprintln(o.env.Stdout, p.Sentence())
	case ctx.Err() != nil:
		err = fmt.Errorf("cannot wait: %w\nthe change is in force: `pulley status -e %s --wait %s` waits again", ctx.Err(), a.Ref, cli.Duration(o.wait.limit))
	}
	return err
}

func newExplain(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain NODE -e ENVIRONMENT",
		Short: "Explain why a node is in its state, and what its next tick will do",
		Long: `explain runs the node's own decision on its last report and on its desired state in etcd, and shows each check with
its result.`,
		Args: arguments(1, 1, "takes one node"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				f, err := fleet.FindNode(ctx, s, ref, args[0])
				if err != nil {
					return err
				}
				o.warn(f.Damaged)
				x := fleet.Explain(f, ref, args[0], o.env.Now())
				if x.Status == nil {
					boots, err := fleet.BootsOf(ctx, s, ref, []fleet.Node{{Node: x.Node}}, o.env.Now())
					if err != nil {
						o.warn([]string{err.Error()})
					}
					x.FirstBoot = boots[x.Node]
				}
				if x.Rollout, err = rollouts.PlaceInRollout(ctx, s, ref, f.Desires.Gate, args[0], o.env.Now()); err != nil {
					o.warn([]string{err.Error()})
				}
				return o.out.Print(o.env, x, func(*cli.Table) error {
					_, err := fmt.Fprint(o.env.Stdout, o.complete(x.Words(o.env.Now())))
					return err
				})
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	return cmd
}
