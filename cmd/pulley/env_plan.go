package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/machines"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
	"pulley/internal/store"
)

func newEnvPlan(o *options) *cobra.Command {
	boot := firstBootFlags{options: o}
	var file envFileFlags
	var out string
	var detailed bool
	var belief beliefFlags
	cmd := &cobra.Command{
		Use: "plan FILE | ENVIRONMENT", Short: "Show the changes that applying an environment file would make",
		Long: `plan compares the file with what is stored, with the list of hosts, with what nodes said, and with the machines that the
provider has, and says what apply would do: create, replace, retire, adopt, … and why. It changes nothing.
For a name the file is environments/NAME.yaml, seen from here.

With --out the plan is stored in a file; ` + "`pulley env apply --plan`" + ` applies exactly that, or nothing where the world changed since.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage, 3 etcd unreachable
  with --detailed-exitcodes: 0 nothing is to be done, 4 something is`,
		Args: arguments(1, 1, "takes an environment file"),
		RunE: func(c *cobra.Command, args []string) error {
			want, err := o.readEnvironment(c, args[0], file)
			if err == nil {
				_, err = boot.completed(c, want)
			}
			if err != nil {
				return err
			}
			return o.withStore(c, func(ctx context.Context, s *store.Store) error {
				p, err := o.lookAhead(ctx, s, want, plan.Options{Moved: belief.moved, Lost: belief.lost})
				if err != nil {
					return err
				}
				if err := o.out.Print(o.env, p, func(*cli.Table) error { o.showPlan(p); return nil }); err != nil {
					return err
				}
				if err := boot.checkBoots(ctx, s, p, false); err != nil {
					return err
				}
				if out != "" {
					if err := writePlan(out, p); err != nil {
						return err
					}
				}
				if detailed && (p.Changed || !p.Empty()) {
					return &cli.SilentError{Code: exitSomething}
				}
				return nil
			})
		},
	}
	file.add(cmd)
	belief.add(cmd)
	boot.add(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&out, "out", "", "file to store the plan in, for apply --plan")
	cmd.Flags().BoolVar(&detailed, "detailed-exitcodes", false, "exit with 4 when there is something to do")
	return cmd
}

// exitSomething is how plan says to a script that there is something to do: 2 and 3 mean something else in every verb.
const exitSomething = 4

// lookAhead plans without taking the fleet: others may change it at the same time.
func (o *options) lookAhead(ctx context.Context, s *store.Store, want *environments.Environment, opts plan.Options) (plan.Plan, error) {
	id, err := s.Cluster.Installation(ctx)
	if err != nil {
		return plan.Plan{}, err
	}
	m, err := o.maker(ctx, want, id)
	if err != nil {
		return plan.Plan{}, err
	}
	opts.Place = m.place
	p, _, err := o.ahead(ctx, s, want, m, opts)
	return p, err
}

// ahead plans with what makes the machines, and returns what it planned from.
func (o *options) ahead(ctx context.Context, s *store.Store, want *environments.Environment, m maker, opts plan.Options) (plan.Plan, machines.World, error) {
	w, err := s.Machines.World(ctx, want.Ref(), o.env.Now())
	if err != nil {
		return plan.Plan{}, w, err
	}
	if m.provider != nil {
		listing, cancel := context.WithTimeout(ctx, apply.DefaultCallTimeout)
		defer cancel()
		if w.Machines, err = m.provider.List(listing); err != nil {
			return plan.Plan{}, w, fmt.Errorf("cannot list the machines of %s: %w", want.Ref(), err)
		}
	}
	return plan.Make(want, w, opts), w, nil
}

// showPlan is a plan for people: what changes in the file, then what is done about each machine.
func (o *options) showPlan(p plan.Plan) {
	for _, line := range p.Changes.Lines() {
		cli.Cleanf(o.env.Stdout, "%s\n", line)
	}
	if !p.Changed && p.Empty() {
		fmt.Fprintf(o.env.Stdout, "%s: nothing changes\n", p.Fleet)
	}
	for _, line := range p.Lines() {
		cli.Cleanf(o.env.Stdout, "%s\n", line)
	}
}
