package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/store"
)

func newNodesRemove(o *options, fleet *cli.EnvironmentFlag) *cobra.Command {
	var forget bool
	var why string
	cmd := &cobra.Command{
		Use: "remove NODE -e ENVIRONMENT", Short: "take a node out of the fleet: its certificate is dead at once, and it takes nothing new",
		Long: `remove shuts a node out: etcd refuses its certificate from the next request on, for good. Then its entry of the list of
hosts goes, with its holds, its own target, its assignment and its first boot. What it last said and its runs stay to be
seen until --forget, which also makes room where etcd is full: after a flood, one command shuts the node out and cleans up.

Where etcd checks its users this needs an admin. A node that was removed comes back with a token that was made for it
afterwards: pulley token create --node NODE.`,
		Args: arguments(1, 1, "takes one node"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.inFleet(c, *fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				return o.removeNode(ctx, s, ref, args[0], why, forget)
			})
		},
	}
	cmd.Flags().BoolVar(&forget, "forget", false, "delete what it last said and its runs too; for machines that are gone, floods, and names that never were")
	cmd.Flags().StringVarP(&why, "message", "m", "", "why, shown to the machine should it come back")
	return cmd
}

func (o *options) removeNode(ctx context.Context, s *store.Store, ref environments.Ref, node, why string, forget bool) error {
	identity, _, err := s.Identity(ctx, ref, node)
	if err != nil {
		return err
	}
	removal := store.Removal{At: o.env.Now().UTC(), By: o.env.User, Why: why}
	stays := "what it last said stays to be seen"
	if forget {
		f, err := s.ForgetNode(ctx, ref, node, removal)
		if err != nil {
			return err
		}
		stays = "what it said is forgotten"
		if f.Room {
			stays += fmt.Sprintf("; etcd was full, and has %s more room now", cli.Bytes(f.Bytes))
		}
	} else if err := s.RemoveNode(ctx, ref, node, removal); err != nil {
		if errors.Is(err, store.ErrFull) {
			err = fmt.Errorf("%w\nit is shut out already; to make room and finish: pulley nodes remove %s -e %s --forget", err, node, ref)
		}
		return err
	}
	if identity.Live() {
		stays = "its certificate is dead; " + stays
	}
	fmt.Fprintf(o.env.Stdout, "%s is off the list of %s; %s\n", node, ref, stays)
	r, err := s.Record(ctx, ref, node)
	if err != nil {
		return err
	}
	if r != nil {
		fmt.Fprintf(o.env.Stdout, "its machine %s is not ended by this: `pulley env plan` shows what becomes of it\n", cli.Clean(r.Name))
	}
	return nil
}
