package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pulley/agent"
	"pulley/agent/node"
	"pulley/agent/nodeconfig"
	"pulley/agent/upgrade"
	"pulley/internal/cli"
	"pulley/internal/model"
	"pulley/internal/puppet"
)

// defaultSplay fits into cron's */5.
const defaultSplay = 4 * time.Minute

type runOptions struct {
	agent.Options
	release    string // to look at; "" means the node's own
	splay      time.Duration
	detailed   bool
	supervised int // descriptor of the pipe to the agent that watches this one; 0: none
}

func newRun(o *options) *cobra.Command {
	var r runOptions
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Read this machine's desired state once, and apply it",
		Long: `run compares the desired state in etcd with the machine. It fetches, applies and verifies a new target, or enforces the target in
place when that is due, and reports. With nothing to do it reads etcd once and starts no Puppet.

With --tags or --skip-tags it applies only the selected resources of the release in place, now. Such a run never completes a target:
it takes no new release, counts as no attempt, and does not delay the next complete run. With --noop, --release shows the changes of
a release that is not promoted.

EXIT STATUS
  0 done, or nothing to do, or another run is in progress
  1 failed, or its target is refused; 2 wrong usage
  3 etcd is unreachable (the target in place stays enforced)
  With --detailed-exitcodes, after a run of Puppet: 0 nothing changed, 2 changed, 4 failed, 6 changed and failed.`,
		Args: func(c *cobra.Command, args []string) error {
			if f := c.Flags().Lookup("splay"); len(args) == 1 && f.Changed {
				return cli.Usagef("%s takes no arguments, and was given %q\nwrite the time of --splay as one word: --splay=%s", c.CommandPath(), args, args[0])
			}
			return errors.Join(noArgs(c, args), r.check())
		},
		RunE: func(c *cobra.Command, _ []string) error {
			if r.supervised != 0 {
				return o.watched(c.Context(), r)
			}
			return o.run(c.Context(), r, inherited(c))
		},
	}
	f := cmd.Flags()
	f.BoolVar(&r.Force, "force", false, "run now: skip waits, forget failed attempts (holds and gates still count)")
	f.BoolVar(&r.Noop, "noop", false, "show what a run would change, and change nothing")
	f.StringVar(&r.release, "release", "", "with --noop: show the changes of this release, promoted or not")
	f.StringSliceVar(&r.Tags, "tags", nil, "apply only resources with one of these tags of Puppet; the result never counts for a target")
	f.StringSliceVar(&r.SkipTags, "skip-tags", nil, "apply no resource with one of these tags; the result never counts for a target")
	f.DurationVar(&r.splay, "splay", 0, "wait first, up to this long (as in --splay=1m), always the same time on one node")
	f.Lookup("splay").NoOptDefVal = defaultSplay.String()
	f.BoolVar(&r.detailed, "detailed-exitcodes", false, "exit with Puppet's detailed exit codes")
	f.IntVar(&r.supervised, "supervised-by", 0, "descriptor of the pipe to the agent that watches this one")
	_ = f.MarkHidden("supervised-by") // for agents only
	return cmd
}

func (o *options) run(ctx context.Context, r runOptions, flags []string) error {
	c, err := o.load()
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return errors.New("cannot run: the agent was stopped during its splay")
	case <-time.After(model.Splay(c.Identity.Node, r.splay)):
	}
	if c, err = o.load(); err != nil { // the machine may have left meanwhile: without its settings, the run makes no state
		return err
	}
	if r.release != "" {
		return o.lookAt(ctx, c, r)
	}
	_, err = o.turn(ctx, c, r, flags)
	return err
}

// check refuses options that contradict each other.
func (r runOptions) check() error {
	if r.release != "" && !r.Noop {
		return cli.Usagef("--release needs --noop: only `pulley promote -e ENVIRONMENT` changes the release of nodes")
	}
	if err := puppet.CheckTags(r.Part); err != nil {
		return cli.Usagef("%v", err)
	}
	return nil
}

// lookAt shows the changes of a release, promoted or not.
func (o *options) lookAt(ctx context.Context, c nodeconfig.Config, r runOptions) error {
	report, err := o.setup(c).Look(ctx, r.release, r.Options)
	if errors.Is(err, agent.ErrLocked) {
		o.busy(c)
		return nil
	}
	if err != nil {
		return err
	}
	return o.conclude(c, r, report)
}

func (o *options) busy(c nodeconfig.Config) {
	fmt.Fprintf(o.env.Stdout, "%s: another run is in progress\n", c.Identity.Node)
}

// conclude prints the result in one line and turns it into an exit code.
func (o *options) conclude(c nodeconfig.Config, r runOptions, report agent.Report) error {
	if report.Err != nil && report.Run == nil {
		return report.Err
	}
	d := report.Decision
	line := c.Identity.Node + ": "
	switch run := report.Run; {
	case run == nil && report.Note != "":
		line += report.Note
	case run == nil:
		line += "nothing to do: " + d.Sentence()
		if d.Reason == model.ReasonRefused && !d.Next.IsZero() {
			line += fmt.Sprintf("; checked again after %s, or at once with --force", d.Next.UTC().Format(time.RFC3339))
		}
	case run.Noop && run.Outcome == model.Failed:
		line += "the noop run" + of(r) + " failed" + part(*run)
	case run.Noop:
		line += "a run" + of(r) + " would change " + cli.Count(run.Counts.OutOfSync, "resource") + part(*run) + classes(*run)
	default:
		line += fmt.Sprintf("%s on %s%s%s%s: %s", run.Outcome, run.Target, part(*run), classes(*run), pending(*run), d.Sentence())
	}
	if o.env.Log != nil {
		o.env.Log.Info("the tick ended", "node", c.Identity.Node, "result", strings.TrimPrefix(line, c.Identity.Node+": "))
	}
	fmt.Fprintln(o.env.Stdout, cli.Clean(line))
	if report.Run != nil && report.Run.Problem != (model.Problem{}) {
		cli.Complain(o.env, program, errors.New(report.Run.Problem.String()))
	}
	if report.Run != nil && report.Run.Unclassified {
		cli.Complain(o.env, program, errors.New("warning: "+model.UnclassifiedWords))
	}
	if run := report.Run; run != nil && len(run.Tags) > 0 && run.Outcome != model.Failed && run.Counts.Skipped == run.Counts.Total {
		cli.Complain(o.env, program, errors.New("warning: no resource has one of the tags "+strings.Join(run.Tags, ", ")))
	}
	if report.Err != nil {
		return report.Err
	}
	if code := exitCode(r, report); code != cli.ExitDone {
		switch {
		case code == cli.ExitUnreachable && report.Desired.Unreachable != "":
			o.unreachable(d, report.Desired)
		case code == cli.ExitUnreachable:
			cli.Complain(o.env, program, errors.New("etcd is unreachable; the next tick sends what is unsent"))
		case failing(d.Blocked.Reason) && d.Reason != d.Blocked.Reason:
			cli.Complain(o.env, program, errors.New(d.Blocked.Sentence()))
		}
		return &cli.SilentError{Code: code}
	}
	return nil
}

func of(r runOptions) string {
	if r.release == "" {
		return ""
	}
	return " of " + r.release
}

// part names the selection of a partial run.
func part(run model.Run) string {
	var s string
	if len(run.Tags) > 0 {
		s = ", only with tags " + strings.Join(run.Tags, ", ")
	}
	if len(run.SkipTags) > 0 {
		s += ", without tags " + strings.Join(run.SkipTags, ", ")
	}
	return s
}

// classes names what a run without classes lacks.
func classes(run model.Run) string {
	if run.Unclassified {
		return ", 0 classes"
	}
	return ""
}

// pending counts the resources that a run would change without noop in their code.
func pending(run model.Run) string {
	if run.Counts.Pending == 0 {
		return ""
	}
	return ", " + cli.Count(run.Counts.Pending, "resource") + " pending under noop"
}

// unreachable prints why etcd did not answer, unless the result names it, and the remedy.
func (o *options) unreachable(d model.Decision, desired model.Desired) {
	problem := string(desired.Unreachable) + "; the next tick sends what is unsent"
	switch d.Reason {
	case model.ReasonUnreachable:
		problem = model.ErrUnreachable.Error()
	case model.ReasonClock:
		problem = model.ErrClock.Error()
	}
	cli.Complain(o.env, program, errors.New(problem+"\n"+string(desired.Remedy)))
}

func exitCode(r runOptions, report agent.Report) int {
	run := report.Run
	if r.detailed && run != nil && !run.Noop {
		switch {
		case run.Outcome == model.Failed && run.Counts.Changed > 0:
			return 6
		case run.Outcome == model.Failed:
			return 4
		case run.Outcome == model.Changed:
			return 2
		}
		return 0
	}
	switch {
	case run != nil && run.Outcome == model.Failed:
		return cli.ExitFailed
	case report.Unreachable:
		return cli.ExitUnreachable
	case failing(report.Decision.Blocked.Reason):
		return cli.ExitFailed
	}
	return cli.ExitDone
}

// failing reports whether the reason that keeps a node from its target is a failure, which cron's mail or a monitor
// must show.
func failing(blocked model.Reason) bool {
	return blocked == model.ReasonUnreadable || blocked == model.ReasonRemoved || blocked == model.ReasonRefused || blocked == model.ReasonStale ||
		blocked == model.ReasonClock || blocked == model.ReasonOtherMachine
}

// turn runs one turn of the node and prints it. replaced reports that another program was installed.
func (o *options) turn(ctx context.Context, c nodeconfig.Config, r runOptions, flags []string) (replaced bool, err error) {
	opts := node.TurnOptions{Options: r.Options, Flags: flags}
	if r.detailed {
		opts.Run = []string{"--detailed-exitcodes"}
	}
	t, err := o.setup(c).Turn(ctx, opts)
	switch {
	case err != nil:
		return t.Replaced, err
	case t.Locked:
		o.busy(c)
	case t.Report != nil:
		return t.Replaced, o.conclude(c, r, *t.Report)
	case t.Code != cli.ExitDone:
		return t.Replaced, &cli.SilentError{Code: t.Code}
	}
	return t.Replaced, nil
}

// watched runs a tick of a new agent. The agent that watches it receives each step and the result of the tick.
func (o *options) watched(ctx context.Context, r runOptions) error {
	teller, err := upgrade.OpenTeller(r.supervised)
	if err != nil {
		return err
	}
	o.step, r.Keep = teller.Step, true
	end, err := o.watchedTick(ctx, r)
	end.Code = cli.Code(err)
	teller.End(end)
	return err
}

func (o *options) watchedTick(ctx context.Context, r runOptions) (upgrade.Ending, error) {
	c, err := o.load()
	if err != nil {
		return upgrade.Ending{Problem: model.Prose(err.Error())}, err
	}
	report, err := o.setup(c).Tick(ctx, r.Options)
	if errors.Is(err, agent.ErrLocked) {
		o.busy(c)
		return upgrade.Ending{Locked: true}, nil
	}
	if err != nil {
		return upgrade.Ending{Problem: model.Prose(err.Error()), Unreachable: errors.Is(err, model.ErrUnreachable)}, err
	}
	return node.EndingOf(report), o.conclude(c, r, report)
}

// inherited returns the flags of every verb as given, for another agent.
func inherited(c *cobra.Command) []string {
	var args []string
	c.InheritedFlags().VisitAll(func(f *pflag.Flag) {
		if !f.Changed {
			return
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				args = append(args, "--"+f.Name+"="+v)
			}
			return
		}
		args = append(args, "--"+f.Name+"="+f.Value.String())
	})
	return args
}
