package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/facts"
	"pulley/internal/fleet"
	"pulley/internal/model"
)

// factLines limits the lines of a table of facts. JSON has all.
const factLines = 2000

type factsOptions struct {
	*options
	selected selectFlags
	group    string
}

func newFacts(o *options) *cobra.Command {
	f := factsOptions{options: o}
	cmd := &cobra.Command{
		Use: "facts NODE [PATH] -e ENVIRONMENT", Short: "Show the facts that a node published",
		Long: `facts shows the facts of a node's machine, as the node published them after a Puppet run, or one of them: PATH is a name with
dots, such as os.release.full. Volatile facts, such as the uptime, are not published. With --group and without NODE, facts
counts the nodes by the value of one fact; --role, --node and --where select nodes.

Text in facts comes from the machine: do not use it in a shell without quotes.`,
		Example: `  pulley facts controller1 -e production
  pulley facts controller1 os.release.full -e production
  pulley facts --group os.release.full -e production`,
		Args: arguments(0, 2, "takes a node, and at most one path of a fact"),
		RunE: func(c *cobra.Command, args []string) error {
			sel, err := f.selected.value()
			switch {
			case err != nil:
				return err
			case f.group == "" && len(args) == 0:
				return cli.Usagef("cannot show facts without a node: give NODE, or --group PATH to count the values of all nodes")
			case f.group != "" && len(args) > 0:
				return cli.Usagef("--group excludes NODE: select nodes with --role, --node or --where")
			case f.group == "" && (len(sel.Roles)+len(sel.Nodes) > 0 || sel.Where != nil || c.Flags().Changed("limit")):
				return cli.Usagef("--role, --node, --where and --limit are for --group PATH")
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				if f.group != "" {
					return f.groups(ctx, s, ref, sel)
				}
				return f.show(ctx, s, ref, args)
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	cmd.Flags().StringVar(&f.group, "group", "", "count the nodes by the value of this fact")
	f.selected.add(cmd)
	f.selected.addLimit(cmd, 50, "number of values; 0 for all")
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func (f factsOptions) show(ctx context.Context, s *etcd.DB, ref model.Ref, args []string) error {
	n, err := fleet.FactsOf(ctx, s, ref, args[0])
	if err != nil {
		return err
	}
	if len(args) == 1 {
		raw, err := json.Marshal(n.Facts)
		if err != nil {
			return err
		}
		return f.out.Print(f.env, n, func(*cli.Table) error {
			f.lines("", raw)
			if len(n.Cut) > 0 {
				f.warn([]string{fmt.Sprintf("the node left out %s, which are too large: %s", cli.Count(len(n.Cut)+n.More, "fact"), strings.Join(n.Cut, ", "))})
			}
			return nil
		})
	}
	part, err := n.Part(args[1])
	if err != nil {
		return err
	}
	return f.out.Print(f.env, factPart{n.Node, args[1], part}, func(*cli.Table) error {
		f.lines(args[1], part)
		return nil
	})
}

// factPart is one fact of a node, or a part of one.
type factPart struct {
	Node  string          `json:"node"`
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value"`
}

// lines prints the values below a path, one a line. A single value stands without its path.
func (f factsOptions) lines(path string, raw json.RawMessage) {
	lines, more := facts.Lines(path, raw, factLines)
	for _, l := range lines {
		if len(lines) == 1 && l.Path == path {
			cli.Cleanf(f.env.Stdout, "%s\n", l.Value)
			break
		}
		cli.Cleanf(f.env.Stdout, "%s: %s\n", l.Path, l.Value)
	}
	if more {
		f.warn([]string{fmt.Sprintf("there are more than %d values; -o json has all", factLines)})
	}
}

func (f factsOptions) groups(ctx context.Context, s *etcd.DB, ref model.Ref, sel fleet.Selection) error {
	g, notes, err := fleet.GroupFacts(ctx, s, ref, sel, f.group, f.env.Now())
	if err != nil {
		return err
	}
	f.warn(notes)
	var left int
	g.Groups, left = limited(g.Groups, f.selected.limit)
	err = f.out.Print(f.env, g, func(t *cli.Table) error {
		t.Row("VALUE", "NODES", "FIRST")
		for _, one := range g.Groups {
			value := "-"
			if string(one.Value) != "null" {
				value = facts.Text(one.Value)
			}
			t.Row(value, strconv.Itoa(one.Nodes), strings.Join(one.First, " "))
		}
		return nil
	})
	if f.out.ForPeople() {
		cli.More(f.env, left, "value", "values")
	}
	return err
}
