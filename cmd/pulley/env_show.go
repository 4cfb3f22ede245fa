package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/store"
)

func newEnvShow(o *options) *cobra.Command {
	var fleet cli.EnvironmentFlag
	cmd := &cobra.Command{
		Use: "show [ENVIRONMENT]", Short: "Show a stored environment", Args: arguments(0, 1, "takes one environment"),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				fleet.Name = args[0]
			}
			return o.inFleet(c, fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				e, _, err := s.Environments.MustSpec(ctx, ref)
				if err != nil {
					return err
				}
				err = o.out.Print(o.env, shownOf(ref, e), func(t *cli.Table) error {
					t.Row("ROLE", "CARDINALITY", "FLAVOR", "NODES")
					for _, r := range e.Roles {
						t.Row(r.Name, strconv.Itoa(r.Cardinality), r.Flavor, span(e, r))
					}
					return nil
				})
				if err == nil && o.out.ForPeople() {
					o.showSettings(e)
				}
				return err
			})
		},
	}
	fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	return cmd
}

type shownEnvironment struct {
	Environment string                `json:"environment"`
	Provider    environments.Provider `json:"provider,omitzero"`
	Flavors     map[string]string     `json:"flavors,omitempty"`
	Images      map[string]string     `json:"images,omitempty"`
	Networks    map[string]string     `json:"networks,omitempty"`
	Userdata    environments.Userdata `json:"userdata,omitzero"`
	Roles       []environments.Role   `json:"roles"`
	Nodes       int                   `json:"nodes"`
}

func shownOf(ref environments.Ref, e *environments.Environment) shownEnvironment {
	s := shownEnvironment{ref.String(), e.Provider, e.Flavors, e.Images, e.Networks, e.Userdata, e.Roles, e.Count()}
	if s.Roles == nil {
		s.Roles = []environments.Role{}
	}
	return s
}

// showSettings prints the settings without a column in the table: a line for each role that has more, and one for each
// common setting.
func (o *options) showSettings(e *environments.Environment) {
	var lines []string
	for _, r := range e.Roles {
		if settings := r.Settings(); len(settings) > 0 {
			lines = append(lines, r.Name+": "+strings.Join(settings, ", "))
		}
	}
	lines = append(lines, e.Settings()...)
	if len(lines) > 0 {
		fmt.Fprintln(o.env.Stdout)
	}
	for _, line := range lines {
		fmt.Fprintln(o.env.Stdout, cli.Clean(line))
	}
}

// span formats a role's nodes: "compute1 … compute40".
func span(e *environments.Environment, r environments.Role) string {
	node := func(n int) string { return environments.Node{Role: r.Name, Num: n, Stack: e.Stack}.String() }
	switch r.Cardinality {
	case 0:
		return "none"
	case 1:
		return node(1)
	case 2:
		return node(1) + " " + node(2)
	}
	return node(1) + " … " + node(r.Cardinality)
}
