package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
	"pulley/internal/store"
)

// destroyOptions are what the command line of destroy says.
type destroyOptions struct {
	*options
	file     envFileFlags
	machines machineFlags
	belief   beliefFlags
	hosts    bool
	dry      bool
}

// lookAtDestroy is the command that shows what a destroy would do.
const lookAtDestroy = "`pulley env destroy --dry-run`"

func newEnvDestroy(o *options) *cobra.Command {
	d := destroyOptions{options: o}
	cmd := &cobra.Command{
		Use: "destroy FILE | ENVIRONMENT", Short: "Retire all machines of an environment or a stack, and delete it",
		Long: `destroy retires all machines that Pulley made for an environment, each drained and taken out of the fleet first, and then deletes
all that etcd has of it: nodes, data, targets, holds, runs, tokens, users. Other environments, and other stacks of this one, keep
every key. Protected roles stop it: take protected: out of the file first, and apply that.

Where it has machines the environment's file is needed for its provider, as what is run on this machine is never what etcd says: for a
name that is environments/NAME.yaml, seen from here. It needs the number of machines as its answer, or --yes with --max-retire
that is large enough.

EXIT STATUS
  0 done, 1 failed: the next destroy goes on, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(1, 1, "takes one environment, or its file"),
		RunE: func(c *cobra.Command, args []string) error { return d.run(c, args[0]) },
	}
	d.file.add(cmd)
	d.belief.add(cmd)
	f, m := cmd.Flags(), &d.machines
	f.BoolVarP(&m.yes, "yes", "y", false, "don't ask: for CI, after a look at the plan")
	f.IntVar(&m.maxRetire, "max-retire", defaultMaxRetire, "with --yes: refuse to destroy more machines, and to remove more nodes, than this")
	f.IntVar(&m.parallel, "parallel", apply.DefaultParallel, "how many machines are worked on at a time")
	f.DurationVar(&m.drainTimeout, "drain-timeout", apply.DefaultDrainTimeout, "how long a node's retire hooks may take until its machine is left as it is")
	f.BoolVar(&m.noDrain, "no-drain", false, "don't run the release's retire hooks on nodes before their machines are deleted")
	f.BoolVar(&d.dry, "dry-run", false, "show what would be done, and do nothing")
	f.BoolVar(&d.hosts, "forget-hosts", false, "also where machines are registered that Pulley did not make: they run on, and nothing knows them")
	return cmd
}

func (d *destroyOptions) run(c *cobra.Command, arg string) error {
	ref, provider, err := d.named(c, arg)
	if err != nil {
		return err
	}
	d.machines.wait = string(apply.WaitNone)
	if err := d.machines.check(); err != nil {
		return err
	}
	return d.withStore(c, func(ctx context.Context, s *store.Store) error {
		want, err := d.stored(ctx, c, s, ref, provider)
		if err == nil && !d.dry {
			err = s.Access.MayRemove(ctx)
		}
		if err != nil {
			return err
		}
		opts := plan.Options{Destroy: true, Moved: d.belief.moved, Lost: d.belief.lost, ForgetHosts: d.hosts}
		p, err := d.agreed(ctx, s, want, opts)
		if err != nil || d.dry {
			return err
		}
		t, err := d.open(ctx, s, want, nil, d.env.User)
		if err != nil {
			return err
		}
		return errors.Join(d.destroy(t.with(d.machines), p, opts), t.close())
	})
}

// named finds out which environment is meant; with its file, the provider comes from there.
func (d *destroyOptions) named(c *cobra.Command, arg string) (environments.Ref, *environments.Provider, error) {
	if namesFile(arg) {
		e, err := d.readEnvironment(c, arg, d.file)
		if err != nil {
			return environments.Ref{}, nil, err
		}
		return e.Ref(), &e.Provider, nil
	}
	ref, err := environments.ParseRef(arg)
	if err == nil && d.file.stack != "" {
		if ref.Stack != "" && ref.Stack != d.file.stack {
			return ref, nil, cli.Usagef("%s is of stack %s, and --stack says %s", ref, ref.Stack, d.file.stack)
		}
		ref, err = environments.ParseRef(ref.Environment + "@" + d.file.stack)
	}
	if err != nil {
		return ref, nil, cli.Usagef("%v", err)
	}
	return ref, nil, nil
}

// stored is the environment as etcd has it, with the provider that the file names. One that is not stored any more, as a destroy
// was cut off, is an empty one.
func (d *destroyOptions) stored(ctx context.Context, c *cobra.Command, s *store.Store, ref environments.Ref, provider *environments.Provider) (*environments.Environment, error) {
	want, _, err := s.Environments.Spec(ctx, ref)
	if err != nil {
		return nil, err
	}
	if provider == nil && (want == nil || want.Driver() != environments.DriverNone) && exists(environmentFile(ref)) {
		e, err := d.readEnvironment(c, environmentFile(ref), d.file.of(ref))
		if err != nil {
			return nil, err
		}
		provider = &e.Provider
	}
	if want == nil {
		any, err := s.Machines.AnythingOf(ctx, ref)
		if err != nil {
			return nil, err
		}
		if !any {
			return nil, fmt.Errorf("cannot destroy %s: %w: etcd has nothing of it\n`pulley env list` shows what there is", ref, store.ErrNotFound)
		}
		want = &environments.Environment{Name: ref.Environment, Stack: ref.Stack}
		if provider != nil {
			want.Provider = *provider
		}
		return want, nil
	}
	return want, d.trusted(want, provider)
}

// trusted puts the provider of a file into an environment that etcd had, which must have the same.
func (o *options) trusted(e *environments.Environment, provider *environments.Provider) error {
	switch {
	case e.Driver() == environments.DriverNone:
		return nil
	case provider == nil:
		return fmt.Errorf("cannot work on the machines of %s: its provider (%s) is named by etcd alone, and what is run on this machine is never what etcd says\ngive the environment's file, or go where it is %s", e.Ref(), e.Driver(), environmentFile(e.Ref()))
	case !e.Provider.Equal(*provider):
		return fmt.Errorf("cannot work on the machines of %s: its file names another provider than is stored\napply the file first, or give the one that was applied", e.Ref())
	}
	e.Provider = *provider
	return nil
}

// agreed shows what goes, and asks for it.
func (d *destroyOptions) agreed(ctx context.Context, s *store.Store, want *environments.Environment, opts plan.Options) (plan.Plan, error) {
	p, err := d.lookAhead(ctx, s, want, opts)
	if err != nil {
		return p, err
	}
	d.showPlan(p)
	if d.dry {
		return p, nil
	}
	if blocked := p.Blocked(); len(blocked) > 0 {
		return p, blockedError(p, blocked)
	}
	most := math.MaxInt
	if d.machines.yes {
		most = d.machines.maxRetire
	}
	if err := d.agree(ctx, s, p, d.machines.yes, most, lookAtDestroy); err != nil {
		return p, err
	}
	if d.machines.yes || len(victims(p))+len(departed(p)) > 0 {
		return p, nil
	}
	return p, d.ask(ctx, lookAtDestroy, fmt.Sprintf("No machine will be destroyed; all that etcd has of %s will be deleted. Type its name to go on: ", p.Fleet), p.Fleet.String())
}

// destroy retires what there is, and then forgets the environment.
func (d *destroyOptions) destroy(t *site, agreed plan.Plan, opts plan.Options) error {
	p, err := t.again(agreed, opts)
	if err != nil {
		return err
	}
	r, err := t.carryOut(p, agreed.Destroyed())
	for _, n := range r.Notes {
		cli.Cleanf(d.env.Stdout, "%s\n", n)
	}
	if err != nil {
		return goOn(r, err)
	}
	gone, err := t.applying.Destroy(t.ctx, d.hosts)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.env.Stdout, "destroyed %s: %s, %d keys and %d users of etcd\n", p.Fleet, cli.Count(len(p.Destroyed()), "machine"), gone.Keys, gone.Users)
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}
