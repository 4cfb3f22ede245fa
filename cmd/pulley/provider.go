package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/machines"
	"pulley/internal/store"
)

func newProvider(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "provider", Short: "List a provider's machines, and test it", Args: arguments(0, 0, "takes a verb: list or test"),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(newProviderList(o), newProviderTest(o))
	return cmd
}

func newProviderList(o *options) *cobra.Command {
	var file envFileFlags
	var owner string
	cmd := &cobra.Command{
		Use: "list FILE", Short: "List the machines of an environment at its provider", Args: arguments(1, 1, "takes an environment file"),
		Long: `Lists all machines that bear the mark of the environment's fleet at its provider, also those that nothing else knows of.

The provider is asked as the file describes it, not as it was last stored.`,
		RunE: func(c *cobra.Command, args []string) error {
			e, err := o.readEnvironment(c, args[0], file)
			if err != nil {
				return err
			}
			if owner != "" {
				e.Provider.Owner = owner
			}
			list := func(ctx context.Context, owner string) error {
				p, _, err := o.openProvider(ctx, e, machines.Mark{Owner: owner, Fleet: e.Ref().String()})
				if err != nil {
					return err
				}
				all, err := p.List(ctx)
				if err != nil {
					return fmt.Errorf("cannot list machines of %s: %w", e.Ref(), err)
				}
				return o.showMachines(all)
			}
			if e.Provider.Owner != "" {
				return list(c.Context(), e.Provider.Owner)
			}
			return o.withStore(c, func(ctx context.Context, s *store.Store) error {
				installation, err := s.Cluster.Installation(ctx)
				if err != nil {
					return err
				}
				if installation == "" { // nothing was ever applied, so nothing was made
					return o.showMachines(nil)
				}
				return list(ctx, installation)
			})
		},
	}
	file.add(cmd)
	cmd.Flags().StringVar(&owner, "owner", "", "whose machines, in the place of this installation's")
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func (o *options) showMachines(all []machines.Machine) error {
	if all == nil {
		all = []machines.Machine{}
	}
	return o.out.Print(o.env, all, func(t *cli.Table) error {
		t.Row("NAME", "ID", "STATE", "FLAVOR", "IMAGE", "ADDRESSES", "AGE", "PROBLEM")
		for _, m := range all {
			age := ""
			if !m.Created.IsZero() {
				age = cli.Span(o.env.Now().Sub(m.Created).Truncate(time.Second))
			}
			t.Row(m.Name, m.ID, string(m.State), m.Flavor, m.Image, strings.Join(m.Addresses, " "), age, m.Problem)
		}
		return nil
	})
}
