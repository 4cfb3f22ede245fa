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
		Use: "nodes -e ENVIRONMENT", Short: "list the hosts that should be alive", Args: arguments(0, 0, "takes no arguments, or the verb add, remove, run or unlock"),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.inFleet(c, fleet, o.nodes)
		},
	}
	fleet.AddFlag(cmd.PersistentFlags())
	o.out.AddFlags(cmd.Flags())
	cmd.AddCommand(newNodesAdd(o, &fleet), newNodesRemove(o, &fleet), newNodesRun(o, &fleet), newNodesUnlock(o, &fleet))
	return cmd
}

// listedNode is one node that is called for, registered, or both; or a machine that has no name yet, whose Node is "".
type listedNode struct {
	agent.Host
	Registered bool           `json:"registered"`
	CalledFor  bool           `json:"called_for"` // by the environment
	Joined     *shownJoin     `json:"joined,omitempty"`
	FirstBoot  *shownBoot     `json:"first_boot,omitempty"`
	Clone      *store.Clone   `json:"clone,omitempty"`
	Removed    *store.Removal `json:"removed,omitempty"`
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
	joins, err := o.readJoins(ctx, s, ref)
	if err != nil {
		return err
	}
	names, called := map[string]bool{}, map[string]string{} // to its role
	for n := range e.Nodes() {
		names[n.String()], called[n.String()] = true, n.Role
	}
	for _, r := range e.Roles {
		for _, n := range r.Members {
			names[n], called[n] = true, r.Name
		}
	}
	for n := range hosts {
		names[n] = true
	}
	for n := range joins.boots {
		names[n] = true
	}
	listed := make([]listedNode, 0, len(names))
	for _, name := range natural(names) {
		h, ok := hosts[name]
		if !ok {
			h = agent.Host{Node: name}
			h.Role = called[name]
			if n, err := environments.ParseNode(name); err == nil && (h.Role == "" || h.Role == n.Role) {
				h.Role, h.Hostname = n.Role, n.Hostname()
			}
		}
		listed = append(listed, joins.of(listedNode{Host: h, Registered: ok, CalledFor: called[name] != ""}))
	}
	listed = append(listed, joins.nameless...)
	return o.out.Print(o.env, listed, func(t *cli.Table) error {
		t.Row("NODE", "ROLE", "REGISTERED", "ADDRESSES", "MACHINE ID", "FIRST BOOT", "NOTE")
		for _, n := range listed {
			since := "not yet"
			if n.Registered {
				since = cli.Ago(o.env.Now(), n.At)
			}
			t.Row(n.Node, n.Role, since, strings.Join(n.Addresses, " "), fmt.Sprintf("%.8s", n.MachineID), n.FirstBoot.words(o.env.Now()), n.note(o.env.Now()))
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
				h, err := newHost(e, args[0], role)
				if err != nil {
					return err
				}
				h.At, h.By = o.env.Now().UTC(), o.env.User
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

// newHost is the entry of a node whose name says its role, or of a machine of any name with its role written down.
func newHost(e *environments.Environment, name, role string) (agent.Host, error) {
	n, err := environments.ParseNode(name)
	of, called := e.RoleOf(name)
	member := called && (err != nil || !e.Has(n))
	switch _, says := e.Role(n.Role); {
	case member && role != "" && role != of.Name:
		return agent.Host{}, fmt.Errorf("cannot add %s as %s: it is a member of role %s\ndo without --role, or change the environment: pulley env apply", name, quoted(role), of.Name)
	case member:
		return agent.Host{Node: name, Role: of.Name}, nil
	case role == "":
		if err := checkNode(e, nil, name); err != nil {
			return agent.Host{}, fmt.Errorf("%w\nfor a machine of another name, give its role: --role ROLE", err)
		}
		return agent.Host{Node: name, Role: n.Role, Hostname: n.Hostname()}, err
	case err == nil && role == n.Role: // also one more than the environment calls for
		return agent.Host{Node: name, Role: role, Hostname: n.Hostname()}, checkRole(e, role)
	case err == nil && says:
		return agent.Host{}, fmt.Errorf("cannot add %s as %s: its name says that it is a %s\ndo without --role, or rename the machine", name, quoted(role), n.Role)
	}
	if err := environments.CheckMember(name); err != nil {
		return agent.Host{}, err
	}
	return agent.Host{Node: name, Role: role}, checkRole(e, role)
}
