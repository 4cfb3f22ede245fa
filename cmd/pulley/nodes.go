package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/store"
)

func newNodes(o *options) *cobra.Command {
	var fleet cli.EnvironmentFlag
	cmd := &cobra.Command{
		Use: "nodes -e ENVIRONMENT", Short: "list the hosts that should be alive", Args: arguments(0, 0, "takes no arguments, or the verb add or remove"),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.inFleet(c, fleet, o.nodes)
		},
	}
	fleet.AddFlag(cmd.PersistentFlags())
	o.out.AddFlags(cmd.Flags())
	cmd.AddCommand(newNodesAdd(o, &fleet), newNodesRemove(o, &fleet))
	return cmd
}

// listedNode is one node that is called for, registered, or both.
type listedNode struct {
	agent.Host
	Registered bool `json:"registered"`
	CalledFor  bool `json:"called_for"` // by the environment
}

func (o *options) nodes(ctx context.Context, s *store.Store, ref environments.Ref) error {
	e, _, err := s.MustSpec(ctx, ref)
	if err != nil {
		return err
	}
	hosts, err := s.Hosts(ctx, ref)
	if err != nil {
		return err
	}
	names, called := map[string]bool{}, map[string]bool{}
	for n := range e.Nodes() {
		names[n.String()], called[n.String()] = true, true
	}
	for n := range hosts {
		names[n] = true
	}
	listed := make([]listedNode, 0, len(names))
	for _, name := range natural(names) {
		h, ok := hosts[name]
		if !ok {
			h = agent.Host{Node: name}
			if n, err := environments.ParseNode(name); err == nil {
				h.Role, h.Hostname = n.Role, n.Hostname()
			}
		}
		listed = append(listed, listedNode{h, ok, called[name]})
	}
	return o.out.Print(o.env, listed, func(t *cli.Table) error {
		t.Row("NODE", "ROLE", "REGISTERED", "ADDRESSES", "MACHINE ID", "NOTE")
		for _, n := range listed {
			since, note := "not yet", ""
			if n.Registered {
				since = cli.Ago(o.env.Now(), n.At)
			}
			if !n.CalledFor {
				note = "not called for by the environment"
			}
			t.Row(n.Node, n.Role, since, strings.Join(n.Addresses, " "), fmt.Sprintf("%.8s", n.MachineID), note)
		}
		return nil
	})
}

func newNodesAdd(o *options, fleet *cli.EnvironmentFlag) *cobra.Command {
	var role string
	cmd := &cobra.Command{
		Use: "add NODE -e ENVIRONMENT", Short: "put a node on the list by hand, as its bootstrap would", Args: arguments(1, 1, "takes one node"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.inFleet(c, *fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				e, _, err := s.MustSpec(ctx, ref)
				if err != nil {
					return err
				}
				h := agent.Host{Node: args[0], Role: role, At: o.env.Now().UTC(), By: o.env.User}
				if role == "" {
					if err := checkNode(e, nil, args[0]); err != nil {
						return fmt.Errorf("%w\nfor a machine of another name, give its role: --role ROLE", err)
					}
					n, err := environments.ParseNode(args[0])
					if err != nil {
						return err
					}
					h.Role, h.Hostname = n.Role, n.Hostname()
				} else if err := checkRole(e, role); err != nil {
					return err
				}
				if err := s.Register(ctx, ref.String(), h); err != nil {
					return err
				}
				fmt.Fprintf(o.env.Stdout, "%s is on the list of %s as %s\n", h.Node, ref, h.Role)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&role, "role", "", "role of a machine whose name does not say it")
	return cmd
}

func newNodesRemove(o *options, fleet *cli.EnvironmentFlag) *cobra.Command {
	return &cobra.Command{
		Use: "remove NODE -e ENVIRONMENT", Short: "take a node off the list; it then takes nothing new", Args: arguments(1, 1, "takes one node"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.inFleet(c, *fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				if err := s.Unregister(ctx, ref, args[0]); err != nil {
					return err
				}
				fmt.Fprintf(o.env.Stdout, "%s is off the list of %s; what it last said stays to be seen\n", args[0], ref)
				return nil
			})
		},
	}
}
