package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/machines"
	"pulley/internal/store"
)

// fleetStatus is what `pulley status -o json` prints; docs/json.md describes it.
type fleetStatus struct {
	Environment string                `json:"environment"`
	Revision    int64                 `json:"revision"`
	Whole       bool                  `json:"whole"`
	Roles       []machines.RoleHealth `json:"roles"`
	Nodes       []nodeStatus          `json:"nodes"`

	health machines.Health
}

type nodeStatus struct {
	Node        string           `json:"node"`
	Role        string           `json:"role"`
	Desired     string           `json:"desired"` // release
	Release     string           `json:"release"` // last good
	Data        agent.Generation `json:"data"`    // of the last good target
	State       agent.NodeState  `json:"state"`
	agent.Cause                  // why
	Outcome     agent.Outcome    `json:"outcome"`
	LastRun     string           `json:"last_run"`
	LastSeen    *time.Time       `json:"last_seen"`
	Hold        *agent.Hold      `json:"hold"`
	Rollout     string           `json:"rollout"`

	view agent.View
}

func newStatus(o *options) *cobra.Command {
	var fleet cli.EnvironmentFlag
	cmd := &cobra.Command{
		Use: "status -e ENVIRONMENT", Short: "show where every node of an environment stands", Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		Long: `status shows each node's state: ` + states() + `.

A fleet is whole when every node that its environment calls for is registered and converged. Where it is not, the second line
says what is lacking.

EXIT STATUS
  0 done (whatever the nodes' states), 1 failed, 2 wrong usage, 3 etcd unreachable`,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.inFleet(c, fleet, o.status)
		},
	}
	fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func states() string {
	var names []string
	for _, s := range agent.NodeStates() {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

func (o *options) status(ctx context.Context, s *store.Store, ref environments.Ref) error {
	if _, _, err := s.MustSpec(ctx, ref); err != nil {
		return err
	}
	f, err := s.Fleet(ctx, ref)
	if err != nil {
		return err
	}
	view := look(f, ref, o.env.Now())
	for _, d := range f.Damaged {
		cli.Complain(o.env, program, fmt.Errorf("warning: %s", d))
	}
	return o.out.Print(o.env, view, func(t *cli.Table) error {
		o.summary(f, view)
		t.Row("NODE", "STATE", "RELEASE", "DATA", "OUTCOME", "LAST RUN", "WHY")
		for _, n := range view.Nodes {
			why := n.view.Sentence()
			if n.State == agent.Converged {
				why = ""
			}
			t.Row(n.Node, string(n.State), release(n), generation(n), string(n.Outcome), n.LastRun, shorten(why, o.env.Width))
		}
		return nil
	})
}

// look judges every node that is registered or that spoke, in the natural order of names.
func look(f store.Fleet, ref environments.Ref, now time.Time) fleetStatus {
	out := fleetStatus{Environment: ref.String(), Revision: f.Revision, Nodes: []nodeStatus{}}
	views := map[string]agent.View{}
	for _, name := range natural(f.Known()) {
		n := lookAt(f, name, now)
		views[name] = n.view
		out.Nodes = append(out.Nodes, n)
	}
	wanted := f.Spec
	if wanted == nil { // it was removed just now
		wanted = &environments.Environment{Name: ref.Environment, Stack: ref.Stack}
	}
	out.health = machines.Judge(wanted, f.Hosts, views)
	out.Whole, out.Roles = out.health.Whole, out.health.Roles
	return out
}

func lookAt(f store.Fleet, name string, now time.Time) nodeStatus {
	role := f.Hosts[name].Role
	n := nodeStatus{Node: name, Role: role}
	var said *agent.Status
	if st, ok := f.Statuses[name]; ok {
		said = &st
		if role == "" {
			role, n.Role = st.Role, st.Role
		}
		seen := st.SeenAt
		n.Release, n.Data, n.Outcome, n.LastRun, n.LastSeen = st.LastGood.Release, st.LastGood.Data, st.Outcome, st.LastRun, &seen
	}
	d := f.Desired(role, name)
	n.view = agent.Look(said, d, now)
	n.Desired, n.State, n.Cause = n.view.Wanted.Release, n.view.State, n.view.Cause
	if len(d.Holds) > 0 {
		n.Hold = &d.Holds[0]
	}
	if a := d.Assigned; a != nil && a.Epoch == d.Gate.Epoch {
		n.Rollout = a.Rollout
	}
	return n
}

// summary is the line above the table: who is missing counts as much as who is there.
func (o *options) summary(f store.Fleet, view fleetStatus) {
	counts := map[agent.NodeState]int{}
	for _, n := range view.Nodes {
		counts[n.State]++
	}
	var parts []string
	for _, s := range agent.NodeStates() {
		if counts[s] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[s], s))
		}
	}
	if f.Spec != nil {
		missing := 0
		for n := range f.Spec.Nodes() {
			if _, ok := f.Hosts[n.String()]; !ok {
				missing++
			}
		}
		if missing > 0 {
			parts = append(parts, fmt.Sprintf("%d of %d not registered yet", missing, f.Spec.Count()))
		}
	}
	if len(parts) == 0 {
		parts = []string{"no nodes"}
	}
	gate := f.Desires.Gate
	fmt.Fprintf(o.env.Stdout, "%s: target %s, epoch %d; %s\n", view.Environment, f.Desires.Default, gate.Epoch, strings.Join(parts, ", "))
	cli.Cleanf(o.env.Stdout, "%s\n", view.health.String())
}

func release(n nodeStatus) string {
	have := n.Release
	if have == "" {
		have = "-"
	}
	if n.Desired != n.Release && n.Desired != "" {
		return have + " → " + n.Desired
	}
	return have
}

func generation(n nodeStatus) string {
	if want := n.view.Wanted.Data; want != n.Data && n.LastSeen != nil {
		return fmt.Sprintf("%d → %d", n.Data, want)
	}
	return fmt.Sprint(n.Data)
}

// shorten cuts a sentence so that a table stays readable on a terminal; without one nothing is cut.
func shorten(s string, width int) string {
	limit := width - 70
	if width == 0 || len(s) <= max(limit, 30) {
		return s
	}
	r := []rune(s)
	return string(r[:min(len(r), max(limit, 30))]) + "…"
}

// natural sorts names so that compute2 stands before compute10.
func natural(names map[string]bool) []string {
	var all []string
	for n := range names {
		all = append(all, n)
	}
	slices.SortFunc(all, compareNatural)
	return all
}

func compareNatural(a, b string) int {
	na, errA := environments.ParseNode(a)
	nb, errB := environments.ParseNode(b)
	if errA != nil || errB != nil || na.Role != nb.Role || na.Stack != nb.Stack {
		return strings.Compare(a, b)
	}
	return na.Num - nb.Num
}
