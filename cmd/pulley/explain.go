package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/publish"
	"pulley/internal/store"
)

// explanation is what `pulley explain -o json` prints.
type explanation struct {
	Node    string          `json:"node"`
	State   agent.NodeState `json:"state"`
	Why     agent.Cause     `json:"why"`
	Desired agent.Target    `json:"desired"`
	Has     agent.Target    `json:"has"`
	Action  agent.Action    `json:"action"` // what its next tick will do
	agent.Cause
	Ladder []agent.Rung `json:"ladder"`
	Said   *saidStatus  `json:"said"`

	view agent.View
}

// saidStatus is a status printed whole; in etcd, targets that repeat each other are left out.
type saidStatus agent.Status

func newExplain(o *options) *cobra.Command {
	var fleet cli.EnvironmentFlag
	cmd := &cobra.Command{
		Use:   "explain NODE -e ENVIRONMENT",
		Short: "say why a node is where it is: each question that it asks itself, and what blocks it",
		Long: `explain puts what the node last said and what etcd wants of it now through the very function by which the node decides,
and shows each question with its answer.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(1, 1, "takes one node"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.inFleet(c, fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				return o.explain(ctx, s, ref, args[0])
			})
		},
	}
	fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func (o *options) explain(ctx context.Context, s *store.Store, ref environments.Ref, node string) error {
	e, _, err := s.MustSpec(ctx, ref)
	if err != nil {
		return err
	}
	f, err := s.Fleet(ctx, ref)
	if err != nil {
		return err
	}
	if err := checkNode(e, f.Known(), node); err != nil {
		return err
	}
	x := explanationOf(f, ref, node, o)
	return o.out.Print(o.env, x, func(*cli.Table) error { x.print(o); return nil })
}

func explanationOf(f store.Fleet, ref environments.Ref, node string, o *options) explanation {
	n := lookAt(f, node, o.env.Now())
	if parsed, err := environments.ParseNode(node); err == nil && n.Role == "" {
		n.Role = parsed.Role
	}
	said := agent.Status{Node: node, Settings: agent.DefaultSettings()}
	x := explanation{Node: node, State: n.State, Why: n.Cause, view: n.view}
	if st, ok := f.Statuses[node]; ok {
		said, x.Said = st, (*saidStatus)(&st)
	}
	id := agent.Identity{Node: node, Role: n.Role, Environment: ref.String(), PuppetEnvironment: ref.Environment}
	d := agent.Decide(said.Observed(id), f.Desired(n.Role, node), o.env.Now())
	x.Desired, x.Has, x.Action, x.Cause, x.Ladder = d.Wanted, said.LastGood, d.Action, d.Cause, d.Ladder
	return x
}

func (x explanation) print(o *options) {
	out := o.env.Stdout
	cli.Cleanf(out, "%s is %s: %s\n", x.Node, x.State, x.view.Sentence())
	cli.Cleanf(out, "  should be on  %s\n  is on         %s\n", x.Desired, x.Has)
	if x.Said == nil {
		fmt.Fprintln(out, "  it has not reported yet; what follows is what a machine of that name would decide")
	} else {
		cli.Cleanf(out, "  last heard    %s, last run %s %s\n", cli.Ago(o.env.Now(), x.Said.SeenAt), x.Said.LastRun, x.Said.Outcome)
	}
	if x.Said != nil && x.Said.Agent != nil {
		u := x.Said.Agent
		cli.Cleanf(out, "  its own agent %s, is to be %s: %s%s\n", publish.PlainVersion(x.Said.Version), u.Wanted, u.Phase, because(u.Problem.String()))
	}
	fmt.Fprintln(out)
	for _, r := range x.Ladder {
		mark := "yes"
		if !r.OK {
			mark = "NO "
		}
		cli.Cleanf(out, "  %s  %s: %s\n", mark, r.Question, r.Answer())
	}
	cli.Cleanf(out, "\nso at its next tick: %s, because %s\n", x.Action, x.Sentence())
	if x.Said != nil && x.Said.Outcome == agent.Failed {
		cli.Cleanf(out, "see pulley runs %s %s\n", x.Node, x.Said.LastRun)
	}
}
