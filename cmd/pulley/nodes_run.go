package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/machines/nodes"
	"pulley/internal/model"
)

// manyRuns are the flags of `nodes run` for many nodes, and those of one that change its request.
type manyRuns struct {
	selected    selectFlags
	concurrency int
	deadline    time.Duration
	noop        bool
	rerun       string
}

func (m *manyRuns) add(cmd *cobra.Command) {
	m.selected.add(cmd)
	cmd.Flags().IntVar(&m.concurrency, "concurrency", 10, "without NODE: requests that are open at a time")
	cli.DurationVar(cmd.Flags(), &m.deadline, "deadline", 30*time.Minute, "without NODE: time for the answer of one node")
	cmd.Flags().BoolVar(&m.noop, "noop", false, "run Puppet without changes: the run counts as no enforcement")
	cmd.Flags().StringVar(&m.rerun, "rerun", "", "refused")
	_ = cmd.Flags().MarkHidden("rerun")
}

// check refuses flags that contradict each other.
func (m *manyRuns) check(c *cobra.Command, args []string) error {
	changed := func(names ...string) (set []string) {
		for _, name := range names {
			if c.Flags().Changed(name) {
				set = append(set, "--"+name)
			}
		}
		return set
	}
	selects, single := changed("role", "node", "where", "concurrency", "deadline"), changed("wait", "cancel-retirement")
	switch {
	case c.Flags().Changed("rerun"):
		return cli.Usagef("cannot repeat runs: the schedule of the nodes does that, also when this program has ended\nchange the schedule or `enforce_interval` of the agents instead")
	case len(args) == 1 && len(selects) > 0:
		return cli.Usagef("%s is for many nodes: omit NODE", strings.Join(selects, ", "))
	case len(args) == 0 && len(single) > 0:
		return cli.Usagef("%s is for one node: name it", strings.Join(single, ", "))
	case len(args) == 0 && len(selects) == 0:
		return cli.Usagef("%s needs a node, or a selection of many: --role, --node or --where; --concurrency alone selects all nodes", c.CommandPath())
	case m.concurrency < 1:
		return cli.Usagef("--concurrency is a number of nodes from 1, not %d", m.concurrency)
	case m.deadline < time.Minute:
		return cli.Usagef("--deadline is at least 1m, not %s", m.deadline)
	}
	return nil
}

func (m *manyRuns) kind() model.RequestKind {
	if m.noop {
		return model.RequestNoop
	}
	return model.RequestRun
}

// outcome is what a good run did, for people.
func (m *manyRuns) outcome(o model.Outcome) string {
	if m.noop {
		return "as noop"
	}
	return string(o)
}

func (o *options) runMany(c *cobra.Command, m manyRuns) error {
	sel, err := m.selected.value()
	if err != nil {
		return err
	}
	if err := o.mayConfirm(); err != nil {
		return err
	}
	return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
		names, notes, err := nodes.Select(ctx, s, ref, sel, o.env.Now())
		o.warn(notes)
		if err != nil {
			return err
		}
		how := ""
		if m.noop {
			how = " without changes"
		}
		if o.dryRun {
			fmt.Fprintf(o.env.Stdout, "would run Puppet%s on %s in %s, %d at a time: %s\n", how, cli.Count(len(names), "node"), ref, m.concurrency, some(names))
			return nil
		}
		if err := o.confirm(ctx, fmt.Sprintf("Run Puppet%s on %s in %s, %d at a time?", how, cli.Count(len(names), "node"), ref, m.concurrency)); err != nil {
			return err
		}
		began := o.env.Now()
		all, err := nodes.Many{
			Concurrency: m.concurrency, Deadline: m.deadline, Kind: m.kind(), By: o.env.User, Why: o.message, Now: o.env.Now,
			Tell: func(one nodes.RanNode) {
				text := string(one.End)
				switch {
				case one.End == nodes.Pending:
					return // the summary names it
				case one.End == nodes.Ran:
					text = "ran: " + m.outcome(one.Outcome)
				case one.Why != "":
					text += ": " + one.Why
				}
				cli.Cleanf(o.env.Stdout, "%s %s: %s\n", o.env.Now().UTC().Format(time.RFC3339), one.Node, text)
			},
			Away: func(err error) {
				cli.Cleanf(o.env.Stderr, "%s etcd does not answer: retrying for %s: %v\n", o.env.Now().UTC().Format(time.RFC3339), cli.Duration(m.deadline), err)
			},
		}.Run(ctx, s, ref, names)
		return o.concludeMany(ref, all, len(names), o.env.Now().Sub(began), err)
	})
}

// concludeMany prints the summary of many runs.
func (o *options) concludeMany(ref model.Ref, all []nodes.RanNode, of int, took time.Duration, err error) error {
	ends := map[nodes.RunEnd][]string{}
	for _, one := range all {
		ends[one.End] = append(ends[one.End], one.Node)
	}
	text := fmt.Sprintf("%d of %s ran", len(ends[nodes.Ran]), cli.Count(of, "node"))
	for _, end := range []nodes.RunEnd{nodes.Failed, nodes.Refused, nodes.Busy, nodes.Unfinished, nodes.Silent} {
		if names := ends[end]; len(names) > 0 {
			text += fmt.Sprintf("; %d %s: %s", len(names), end, some(names))
		}
	}
	left := of - len(all)
	if left > 0 {
		text += fmt.Sprintf("; %d got no request", left)
	}
	cli.Cleanf(o.env.Stdout, "%s, in %s\n", text, cli.Span(took))
	if names := ends[nodes.Pending]; len(names) > 0 {
		cli.Cleanf(o.env.Stdout, "%s with a request and without an answer, which stays: %s\n`pulley explain NODE -e %s` shows each\n", cli.Count(len(names), "node"), some(names), ref)
	}
	switch {
	case err != nil:
		return err
	case left > 0 || len(ends[nodes.Pending]) > 0:
		return &cli.SilentError{Code: cli.ExitFailed}
	case len(ends[nodes.Ran]) < of:
		return &cli.SilentError{Code: cli.ExitDegraded}
	}
	return nil
}

// some names the first of many nodes.
func some(names []string) string {
	if len(names) > shownMoves {
		return strings.Join(names[:shownMoves], ", ") + fmt.Sprintf(" and %d more", len(names)-shownMoves)
	}
	return strings.Join(names, ", ")
}
