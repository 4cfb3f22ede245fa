package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/change"
	"pulley/internal/cli"
	"pulley/internal/fleet"
	"pulley/internal/publish"
	"pulley/internal/store"
)

// shownAgents is the output of `pulley agents show -o json`.
type shownAgents struct {
	Environment string        `json:"environment"`
	Wanted      []wantedAgent `json:"wanted"`
	By          string        `json:"by"`
	Why         string        `json:"why"`
	At          *time.Time    `json:"at"`
	Nodes       []agentOfNode `json:"nodes"`
}

type wantedAgent struct {
	Scope     string `json:"scope"` // default, roles/R or nodes/N
	Version   string `json:"version"`
	Downgrade bool   `json:"downgrade"`
}

type agentOfNode struct {
	Node    string             `json:"node"`
	Runs    string             `json:"runs"`   // version; "" before the first report
	Wanted  string             `json:"wanted"` // version; "" if none is wanted
	Phase   agent.UpgradePhase `json:"phase"`  // "" if it runs the wanted version
	Problem agent.Problem      `json:"problem,omitzero"`
}

func newAgentsShow(o *options) *cobra.Command {
	var fleet cli.EnvironmentFlag
	cmd := &cobra.Command{
		Use: "show -e ENVIRONMENT", Short: "Show the desired and the running agent of each node",
		Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error { return o.inFleet(c, fleet, o.showAgents) },
	}
	fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func (o *options) showAgents(ctx context.Context, s *store.Store, ref environments.Ref) error {
	if _, _, err := s.Environments.MustSpec(ctx, ref); err != nil {
		return err
	}
	w, _, err := s.Fleet.AgentWish(ctx, ref)
	if err != nil {
		return err
	}
	f, err := s.Fleet.State(ctx, ref)
	if err != nil {
		return err
	}
	v := shownAgents{Environment: ref.String(), By: w.By, Why: string(w.Why), Wanted: []wantedAgent{}, Nodes: []agentOfNode{}}
	if !w.At.IsZero() {
		v.At = &w.At
	}
	for _, c := range change.Choices(w) {
		own, _ := w.Choice(c.Scope)
		v.Wanted = append(v.Wanted, wantedAgent{scopePath(c.Scope), own.Version, own.Downgrade})
	}
	for _, name := range slices.SortedFunc(maps.Keys(f.Known()), fleet.CompareNatural) {
		v.Nodes = append(v.Nodes, agentOf(name, f, w))
	}
	return o.out.Print(o.env, v, func(t *cli.Table) error {
		if len(v.Wanted) == 0 {
			fmt.Fprintf(o.env.Stdout, "%s: every node keeps the agent that it has; `pulley agents promote VERSION` says otherwise\n", ref)
		}
		for _, wanted := range v.Wanted {
			fmt.Fprintf(o.env.Stdout, "%s is to run %s\n", wanted.Scope, wanted.Version)
		}
		if v.At != nil {
			cli.Cleanf(o.env.Stdout, "%s said so %s%s\n", v.By, cli.Ago(o.env.Now(), *v.At), because(v.Why))
		}
		counts := map[agent.UpgradePhase]int{}
		for _, n := range v.Nodes {
			counts[n.Phase]++
		}
		for _, phase := range slices.Sorted(maps.Keys(counts)) {
			if phase != "" {
				fmt.Fprintf(o.env.Stdout, "%s: %s\n", phase, cli.Count(counts[phase], "node"))
			}
		}
		t.Row("NODE", "RUNS", "WANTED", "PHASE", "PROBLEM")
		for _, n := range v.Nodes {
			t.Row(n.Node, n.Runs, n.Wanted, string(n.Phase), n.Problem.String())
		}
		return nil
	})
}

func scopePath(s store.Scope) string {
	switch {
	case s.Node != "":
		return "nodes/" + s.Node
	case s.Role != "":
		return "roles/" + s.Role
	}
	return "default"
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// agentOf returns the upgrade state of one node's agent, from its last report.
func agentOf(name string, f store.FleetState, w store.AgentWish) agentOfNode {
	st, spoke := f.Statuses[name]
	role := f.Hosts[name].Role
	if role == "" {
		role = st.Role
	}
	n := agentOfNode{Node: name, Runs: publish.PlainVersion(st.Version), Wanted: w.For(role, name).Version}
	switch {
	case n.Wanted == "" || !spoke:
	case st.Agent != nil && st.Agent.Wanted == n.Wanted:
		n.Phase, n.Problem = st.Agent.Phase, st.Agent.Problem
	case n.Runs != n.Wanted:
		n.Phase = agent.UpgradeWaiting
	}
	return n
}
