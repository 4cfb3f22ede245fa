package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/store"
)

func newEnv(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "env", Short: "store, show and compare environments", Args: arguments(0, 0, "takes a verb: plan, apply, show or list"),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(newEnvPlan(o), newEnvApply(o), newEnvShow(o), newEnvList(o))
	return cmd
}

func newEnvPlan(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "plan FILE", Short: "show what storing an environment file would change", Args: arguments(1, 1, "takes an environment file"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.withEnvFile(c, args[0], func(_ context.Context, _ *store.Store, e *environments.Environment, changes environments.Changes, _ int64) error {
				o.showChanges(e, changes)
				return nil
			})
		},
	}
}

func newEnvApply(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "apply FILE", Short: "store an environment; its name is the file's", Args: arguments(1, 1, "takes an environment file"),
		RunE: func(c *cobra.Command, args []string) error {
			return retryConflicts(func() error {
				return o.withEnvFile(c, args[0], func(ctx context.Context, s *store.Store, e *environments.Environment, changes environments.Changes, revision int64) error {
					if revision != 0 && changes.Empty() {
						fmt.Fprintf(o.env.Stdout, "%s is as in the file: %d nodes\n", e.Ref(), e.Count())
						return nil
					}
					if err := s.PutSpec(ctx, e, revision); err != nil {
						return err
					}
					o.showChanges(e, changes)
					fmt.Fprintf(o.env.Stdout, "stored %s: %d nodes\n", e.Ref(), e.Count())
					return nil
				})
			})
		},
	}
}

// maxEnvironmentFile bounds what is read of a file; environments.Parse says what is too large.
const maxEnvironmentFile = 8 << 20

// withEnvFile parses a file and compares it with what is stored. It is parsed before etcd is asked for anything.
func (o *options) withEnvFile(c *cobra.Command, file string, do func(context.Context, *store.Store, *environments.Environment, environments.Changes, int64) error) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("cannot read the environment: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxEnvironmentFile))
	if err != nil {
		return fmt.Errorf("cannot read the environment: %w", err)
	}
	e, err := environments.Parse(file, b)
	if err != nil {
		return err
	}
	return o.withStore(c, func(ctx context.Context, s *store.Store) error {
		old, revision, err := s.Spec(ctx, e.Ref())
		if err != nil {
			return err
		}
		return do(ctx, s, e, environments.Diff(old, e), revision)
	})
}

func (o *options) showChanges(e *environments.Environment, changes environments.Changes) {
	if changes.Empty() {
		fmt.Fprintf(o.env.Stdout, "%s: nothing changes\n", e.Ref())
		return
	}
	for _, line := range changes.Lines() {
		fmt.Fprintln(o.env.Stdout, line)
	}
}

func newEnvShow(o *options) *cobra.Command {
	var fleet cli.EnvironmentFlag
	cmd := &cobra.Command{
		Use: "show [ENVIRONMENT]", Short: "show an environment as it is stored", Args: arguments(0, 1, "takes one environment"),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				fleet.Name = args[0]
			}
			return o.inFleet(c, fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				e, _, err := s.MustSpec(ctx, ref)
				if err != nil {
					return err
				}
				return o.out.Print(o.env, shownEnvironment{ref.String(), e.Roles, e.Count()}, func(t *cli.Table) error {
					t.Row("ROLE", "CARDINALITY", "FLAVOR", "NODES")
					for _, r := range e.Roles {
						t.Row(r.Name, strconv.Itoa(r.Cardinality), r.Flavor, span(e, r))
					}
					return nil
				})
			})
		},
	}
	fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	return cmd
}

type shownEnvironment struct {
	Environment string              `json:"environment"`
	Roles       []environments.Role `json:"roles"`
	Nodes       int                 `json:"nodes"`
}

// span names a role's nodes: "compute1 … compute40".
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

func newEnvList(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "list the environments that are stored", Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.withStore(c, func(ctx context.Context, s *store.Store) error {
				names, err := s.Environments(ctx)
				if err != nil {
					return err
				}
				if names == nil {
					names = []string{}
				}
				return o.out.Print(o.env, names, func(*cli.Table) error {
					if len(names) > 0 {
						fmt.Fprintln(o.env.Stdout, strings.Join(names, "\n"))
					}
					return nil
				})
			})
		},
	}
	o.out.AddFlags(cmd.Flags())
	return cmd
}
