package main

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/where"
)

// selectFlags are the flags --role, --node, --where and --state of every verb that lists nodes or what happened to them.
type selectFlags struct {
	roles, nodes, states []string
	where                string
	limit                int
}

func (f *selectFlags) add(c *cobra.Command) {
	c.Flags().StringSliceVar(&f.roles, "role", nil, "only these roles, with commas")
	c.Flags().StringSliceVar(&f.nodes, "node", nil, "only these nodes, with commas")
	c.Flags().StringVar(&f.where, "where", "", `only nodes for which this expression over facts is true: os.family == "Debian" && release != "1.5.0"`)
}

func (f *selectFlags) addState(c *cobra.Command) {
	c.Flags().StringSliceVar(&f.states, "state", nil, "only nodes in these states, with commas: "+fleet.States())
}

// addLimit adds the flag --limit. A default of 0 lists all.
func (f *selectFlags) addLimit(c *cobra.Command, most int, usage string) {
	c.Flags().IntVar(&f.limit, "limit", most, usage)
}

// value returns the selection.
func (f *selectFlags) value() (fleet.Selection, error) {
	sel := fleet.Selection{Roles: f.roles, Nodes: f.nodes}
	if len(f.roles) > 0 && len(f.nodes) > 0 {
		return sel, cli.Usagef("--role and --node exclude each other")
	}
	if f.limit < 0 {
		return sel, cli.Usagef("cannot list %d entries: give --limit a number, or 0 for all", f.limit)
	}
	for _, name := range slices.Concat(f.roles, f.nodes) {
		if name == "" {
			return sel, cli.Usagef("cannot use an empty name in --role or --node")
		}
	}
	if f.where != "" {
		var err error
		if sel.Where, err = where.Parse(f.where); err != nil {
			return sel, cli.Usagef("%v", err)
		}
	}
	for _, name := range f.states {
		state := model.NodeState(name)
		if !slices.Contains(model.NodeStates(), state) {
			problem := "cannot find state " + quoted(name)
			if near := model.SuggestName(name, strings.Split(fleet.States(), ", ")); near != "" {
				problem += "\ndid you mean " + near + "?"
			}
			return sel, cli.Usagef("%s\nthe states are %s", problem, fleet.States())
		}
		sel.States = append(sel.States, state)
	}
	return sel, nil
}

// waitFlag is the flag --wait of every verb that waits for nodes.
type waitFlag struct{ limit time.Duration }

func (f *waitFlag) add(c *cobra.Command, usage string) {
	cli.DurationVar(c.Flags(), &f.limit, "wait", 0, usage+", up to this long, as in 10m (default: do not wait)")
}

func (f *waitFlag) check(c *cobra.Command) error {
	if c.Flags().Changed("wait") && f.limit <= 0 {
		return cli.Usagef("cannot wait for %s: give a duration above 0, as in --wait 10m", f.limit)
	}
	return nil
}
