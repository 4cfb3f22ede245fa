package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments/applications"
	"pulley/internal/cli"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/internal/rollouts"
	"pulley/internal/rollouts/preview"
)

func newRollout(o *options) *cobra.Command {
	return group("rollout", "Roll out a release or live data in batches that stop by themselves",
		"rollout orders the nodes of an environment to take a release or live data batch by batch: canaries, then each role. It pauses by itself when\n"+
			"more nodes fail than the policy allows. `pulley serve` advances it. While it is in progress, nothing else changes the targets\n"+
			"of the environment.",
		newRolloutStart(o), newRolloutList(o), newRolloutShow(o), newRolloutWatch(o),
		o.newRolloutAct(rollouts.Pause, "Order no further node", "pause stops a rollout after the nodes in progress. Nodes that took the target keep it."),
		o.newRolloutAct(rollouts.Resume, "Continue a paused rollout, and accept the failures so far",
			"resume continues a paused rollout. The failures so far count no longer for the limits of its policy."),
		o.newRolloutAct(rollouts.Again, "Order the failed nodes again, before the others",
			"retry orders the failed nodes again, and continues the rollout when they have ended. It also continues an aborted rollout."),
		o.newRolloutAct(rollouts.Abort, "Order no further node, and refuse to resume",
			"abort ends the orders of a rollout. Nodes that took the target keep it, and the rollout owns the targets until `rollout revert`, or\n"+
				"until they are changed with --abort-campaign, for example by `pulley promote`."),
		o.newRolloutAct(rollouts.Approve, "Let a rollout continue that waits for an approval", "approve lets a rollout continue after its canaries (promote: manual), or with its next batch (promote: batches)."),
		newRolloutSkip(o), newRolloutRevert(o),
	)
}

func newRolloutStart(o *options) *cobra.Command {
	var data int64
	to := rollouts.RolloutTarget{}
	cmd := &cobra.Command{
		Use: "start [VERSION] -e ENVIRONMENT", Short: "Start a rollout of a release, of live data or of the agent",
		Long: `start begins a rollout of a release to all registered nodes of an environment, or of a role. Nodes with a release of their own or of
their role keep it. With --data, all nodes take a generation of live data, which ` + "`pulley data history`" + ` lists; with both, a release
and data. The target of the environment changes when the rollout completes; new machines take the old one until then. As promote, start
refuses a release of another repository than those that the environment has, unless --foreign is given.

With --agent, nodes upgrade pulley-agent to a published version, which becomes the desired one when the rollout completes.

If the policy demands a preview of a release or of data, start runs it first on ` + fmt.Sprint(preview.DefaultSample) + ` nodes of each role, and prints its page. It refuses a
target that fails on a node whose last run did not fail, or that changes more resources of a node than the policy allows.`,
		Args: func(c *cobra.Command, args []string) error {
			switch {
			case data < 0:
				return cli.Usagef("--data is the number of a generation, from 1")
			case to.Agent != "" && (len(args) > 0 || data != 0):
				return cli.Usagef("cannot roll out an agent together with a release or data: start one rollout after the other")
			case to.Agent != "":
				return nil
			case to.Downgrade:
				return cli.Usagef("--allow-downgrade is for --agent")
			}
			return arguments(1-int(min(data, 1)), 1, "takes one version, --data, or both; or --agent")(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			sc, err := o.scope.value()
			if err != nil {
				return err
			}
			if o.previewWait < time.Second {
				return cli.Usagef("cannot wait for %s: give a duration of at least 1s, as in --preview-wait 10m", o.previewWait)
			}
			to.Version, to.Data = strings.Join(args, ""), model.Generation(data)
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				r, err := rollouts.StartRollout(ctx, s, ref, sc, to, o.starting())
				if err != nil {
					return err
				}
				o.warn(r.Notes)
				return o.out.Print(o.env, r, func(*cli.Table) error { return o.announceRollout(ref, r) })
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&o.scope.role, "role", "", "only nodes of one role")
	cmd.Flags().StringVar(&to.Agent, "agent", "", "version of pulley-agent, instead of a release or data")
	cmd.Flags().BoolVar(&to.Downgrade, "allow-downgrade", false, "with --agent: permit nodes to replace a newer version")
	cli.DurationVar(cmd.Flags(), &o.previewWait, "preview-wait", preview.DefaultWait, "wait for the answers to the preview that the policy demands, up to this long")
	cmd.Flags().Int64Var(&data, "data", 0, "generation of live data (default: nodes keep theirs)")
	o.sign.add(cmd)
	o.sign.addUnsigned(cmd)
	o.addForeign(cmd)
	o.addDryRun(cmd)
	o.addMessage(cmd, "reason")
	return cmd
}

// announceRollout prints a rollout that starts.
func (o *options) announceRollout(ref model.Ref, r rollouts.Rollout) error {
	fmt.Fprintf(o.env.Stdout, "%s of %s in %s: %s, of which %d may fail\n", strings.TrimSpace("rollout "+r.ID), r.What(), ref, cli.Count(r.Nodes, "node"), r.MayFail)
	if err := o.showGroups(r); err != nil {
		return err
	}
	if err := o.showUnready(r); err != nil {
		return err
	}
	if len(r.Excluded) > 0 {
		fmt.Fprintf(o.env.Stdout, "not in it, because of a desired version of their own or of their role: %s\n", nodeNames(r.Excluded))
	}
	if len(r.Daemons) > 0 {
		fmt.Fprintf(o.env.Stdout, "not in it, because Puppet's own daemon runs there: %s\n", nodeNames(r.Daemons))
	}
	if !o.dryRun {
		fmt.Fprintf(o.env.Stdout, "`pulley serve` advances it; to see it: `pulley rollout show -e %s`\n", ref)
	}
	return nil
}

// showUnready prints the nodes that could not begin at the start of a rollout, and what its policy does with them.
func (o *options) showUnready(r rollouts.Rollout) error {
	if len(r.Unready) == 0 {
		return nil
	}
	fmt.Fprintln(o.env.Stdout, "these nodes could not begin now:")
	t := cli.NewTable(o.env)
	t.Row("CAUSE", "COUNT", "NODES", "WHEN THEIR TURN COMES")
	for _, u := range r.Unready {
		does := map[rollout.Unready]string{rollout.UnreadyWait: "waits up to their deadline", rollout.UnreadySkip: "left out", rollout.UnreadyFail: "failed"}[u.Does]
		if u.Does == rollout.UnreadyWait && u.Cause.Kept() {
			does = "waits until an operator ends the cause"
		}
		if u.Does == rollout.UnreadySkip && r.Policy != nil && r.Policy.Skip != "" {
			does += fmt.Sprintf(", up to %s of the rollout; then failed", r.Policy.Skip)
		}
		t.Row(string(u.Cause), strconv.Itoa(len(u.Nodes)), nodeNames(u.Nodes), does)
	}
	return t.Flush()
}

// nodeNames lists the first nodes, and the number of the others.
func nodeNames(nodes []string) string {
	some := nodes[:min(len(nodes), 10)]
	text := strings.Join(some, ", ")
	if more := len(nodes) - len(some); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func newRolloutList(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list -e ENVIRONMENT", Short: "List the rollouts of an environment, newest first", Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				all, damaged, err := rollouts.Rollouts(ctx, s, ref, rollout.Take)
				if err != nil {
					return err
				}
				o.warn(damaged)
				return o.out.Print(o.env, all, func(t *cli.Table) error {
					t.Row("ROLLOUT", "STATE", "SCOPE", "TARGET", "NODES", "DONE", "FAILED", "STARTED", "BY", "WHY")
					t.Spare("BY")
					for _, r := range all {
						t.Row(r.ID, string(r.State), etcd.Scope{Role: r.Role}.String(), r.What(), strconv.Itoa(r.Nodes), strconv.Itoa(r.Done),
							strconv.Itoa(r.Failed), cli.Ago(o.env.Now(), r.At), r.By, string(r.Why))
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

func newRolloutShow(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show [ROLLOUT] -e ENVIRONMENT", Short: "Show a rollout: its groups, its nodes, and what it waits for",
		Long: "show prints the rollout in progress, or else the newest one. With an argument, it prints that one.",
		Args: arguments(0, 1, "takes at most one rollout"),
		RunE: func(c *cobra.Command, args []string) error {
			id := ""
			if len(args) > 0 {
				id = args[0]
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				r, err := rollouts.LookAtRollout(ctx, s, ref, rollout.Take, id, o.env.Now())
				if err == nil {
					err = rollouts.ReadChanges(ctx, s, ref, &r)
				}
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

// shownMembers limits the nodes that `rollout show` lists.
const shownMembers = 20

func (o *options) showRollout(ref model.Ref, r rollouts.Rollout) error {
	cli.Cleanf(o.env.Stdout, "%s in %s: %s; %d of %s done, %d failed, %d skipped\n", r.Name(), ref, r.State, r.Done, cli.Count(r.Nodes, "node"), r.Failed, r.Skipped)
	cli.Cleanf(o.env.Stdout, "started by %s at %s", r.By, r.At.UTC().Format(time.RFC3339))
	if !r.Ended.IsZero() {
		cli.Cleanf(o.env.Stdout, ", ended after %s", cli.Span(r.Ended.Sub(r.At)))
	}
	if r.Why != "" {
		cli.Cleanf(o.env.Stdout, ": %s", r.Why)
	}
	fmt.Fprintln(o.env.Stdout)
	if r.EndedBy != "" {
		cli.Cleanf(o.env.Stdout, "aborted by %s", r.EndedBy)
		if r.EndedWhy != "" {
			cli.Cleanf(o.env.Stdout, ": %s", r.EndedWhy)
		}
		fmt.Fprintln(o.env.Stdout)
	}
	if r.Stop != nil {
		cli.Cleanf(o.env.Stdout, "it stopped by itself: %s\n", r.Stop.Sentence())
	}
	if r.Wait != nil {
		cli.Cleanf(o.env.Stdout, "%s\n", r.Wait.Sentence())
	}
	for _, out := range r.WaysOut(ref) {
		cli.Cleanf(o.env.Stdout, "  %s\n", out)
	}
	if err := o.showGroups(r); err != nil {
		return err
	}
	if err := o.showMembers(r); err != nil || r.Changes == nil {
		return err
	}
	return o.showChanges(ref, r)
}

// showMembers lists the nodes in progress, failed or skipped.
func (o *options) showMembers(r rollouts.Rollout) error {
	if len(r.Members) == 0 {
		return nil
	}
	t := cli.NewTable(o.env)
	head := []string{"NODE", "STATE", "SINCE", "WHY", "RUN"}
	if slices.ContainsFunc(r.Members, func(m rollouts.RolloutNode) bool { return len(m.Does) > 0 }) {
		head = append(head, "COMPONENTS")
		t.Spare("COMPONENTS")
	}
	t.Row(head...)
	for i, m := range r.Members {
		if i == shownMembers {
			t.Row(fmt.Sprintf("… and %d more", len(r.Members)-i))
			break
		}
		since := ""
		if !m.Since.IsZero() {
			since = cli.Ago(o.env.Now(), m.Since)
		}
		t.Row(slices.Concat([]string{m.Node, string(m.State), since, m.Words(), m.Run}, does(m.Does))...)
	}
	return t.Flush()
}

// does returns the cell of a node's components, if it has any.
func does(names []applications.Name) []string {
	var all []string
	for _, name := range names {
		all = append(all, name.String())
	}
	if all == nil {
		return nil
	}
	return []string{strings.Join(all, ", ")}
}

func (o *options) showGroups(r rollouts.Rollout) error {
	rows := [][]string{{"GROUP", "NODES", "AT A TIME", "BEGUN", "MAY FAIL", "TOOK", "SLOWEST BATCH"}}
	for _, g := range r.Groups {
		fails, took, slowest := "", "", ""
		if g.MayFail != nil {
			fails = strconv.Itoa(*g.MayFail) + " of a batch"
		}
		if !g.To.IsZero() {
			took = cli.Span(g.To.Sub(g.From))
		}
		if g.Slowest > 0 && g.Batches > 1 {
			slowest = fmt.Sprintf("%d of %d: %s", g.Slowest, g.Batches, cli.Span(time.Duration(g.Seconds)*time.Second))
		}
		rows = append(rows, []string{g.Name, strconv.Itoa(g.Nodes), strconv.Itoa(g.Batch), strconv.Itoa(g.Begun), fails, took, slowest})
	}
	t := cli.NewTable(o.env)
	for _, row := range rows {
		var cells []string
		for i, cell := range row {
			if slices.ContainsFunc(rows[1:], func(other []string) bool { return other[i] != "" }) {
				cells = append(cells, cell)
			}
		}
		t.Row(cells...)
	}
	return t.Flush()
}

// newRolloutAct returns the verb of an act on the rollout in progress.
func (o *options) newRolloutAct(act rollouts.Act, short, long string) *cobra.Command {
	cmd := &cobra.Command{
		Use: string(act) + " -e ENVIRONMENT", Short: short, Long: long, Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error { return o.actOnRollout(c, act, "") },
	}
	return o.addRolloutAct(cmd)
}

func newRolloutSkip(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "skip NODE -e ENVIRONMENT", Short: "Do not wait for a node",
		Long: "skip leaves out a node whose turn has not come, also one that waits to be ordered again. It gives up a node in progress: its order is\n" +
			"withdrawn if it did not begin. A node that began, and did not answer before its deadline, frees its place in the batch, although it\n" +
			"may still run. A node that settles counts as done at once. A skipped node keeps its target until the rollout ends.",
		Args: arguments(1, 1, "takes one node"),
		RunE: func(c *cobra.Command, args []string) error { return o.actOnRollout(c, rollouts.Skip, args[0]) },
	}
	return o.addRolloutAct(cmd)
}

func (o *options) addRolloutAct(cmd *cobra.Command) *cobra.Command {
	o.fleet.AddFlag(cmd.Flags())
	o.addDryRun(cmd)
	o.addMessage(cmd, "reason, shown with the rollout")
	return cmd
}

func (o *options) actOnRollout(c *cobra.Command, act rollouts.Act, node string) error {
	return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
		r, err := rollouts.ActOnRollout(ctx, s, ref, act, node, o.changing())
		if err != nil {
			return err
		}
		fmt.Fprintf(o.env.Stdout, "rollout %s of %s in %s: %s; %d of %s done, %d failed\n", r.ID, r.What(), ref, r.State, r.Done, cli.Count(r.Nodes, "node"), r.Failed)
		return nil
	})
}

// addAbort adds the flag of a change that may end a rollout in progress.
func (o *options) addAbort(c *cobra.Command) {
	c.Flags().BoolVar(&o.aborts, "abort-campaign", false, "end a rollout that is in progress, which else refuses the change")
}

// waysOut adds to the error of a change that a rollout in progress refused what its author can do.
func (o *options) waysOut(c *cobra.Command, err error) error {
	if !errors.Is(err, targets.ErrCampaign) {
		return err
	}
	env := cmp.Or(o.fleet.Used, "ENVIRONMENT")
	if owner := new(targets.CampaignError); errors.As(err, &owner) && model.Noun(owner.ID) == "job" {
		return fmt.Errorf("%w\nwait for its end: `pulley job watch -e %s`\nor end it: `pulley job abort -e %s`", err, env, env)
	}
	text := fmt.Sprintf("wait for its end: `pulley rollout show -e %s`", env)
	if c.Flags().Lookup("abort-campaign") != nil && !o.rollout {
		text += "\nor give --abort-campaign: the rollout ends, and its nodes take what is desired for them then"
	} else {
		text += fmt.Sprintf("\nor end it: `pulley rollout revert -e %s`", env)
	}
	return fmt.Errorf("%w\n%s", err, text)
}
