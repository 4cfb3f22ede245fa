package main

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/provision"
	"pulley/internal/store"
)

func newEnvDestroy(o *options) *cobra.Command {
	var stack string
	var hosts bool
	var m machineFlags
	cmd := &cobra.Command{
		Use: "destroy ENVIRONMENT", Short: "retire all machines of an environment or a stack, and forget it",
		Long: `destroy retires all machines that Pulley made for an environment, each drained and taken out of the fleet first, and then deletes
all that etcd has of it: nodes, data, targets, holds, runs, tokens, users. Other environments, and other stacks of this one, keep
every key. Protected roles stop it: take protected: out of the file first, and apply that.

It needs the number of machines as its answer, or --yes with --max-retire that is large enough.

EXIT STATUS
  0 done, 1 failed: the next destroy goes on, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(1, 1, "takes one environment"),
		RunE: func(c *cobra.Command, args []string) error {
			ref, err := environments.ParseRef(args[0])
			if err != nil {
				return cli.Usagef("%v", err)
			}
			if stack != "" {
				if ref.Stack != "" && ref.Stack != stack {
					return cli.Usagef("%s is of stack %s, and --stack says %s", ref, ref.Stack, stack)
				}
				if ref, err = environments.ParseRef(ref.Environment + "@" + stack); err != nil {
					return cli.Usagef("%v", err)
				}
			}
			m.wait = string(provision.WaitNone)
			if err := m.check(); err != nil {
				return err
			}
			most := math.MaxInt
			if m.yes {
				most = m.maxRetire
			}
			return o.withStore(c, func(ctx context.Context, s *store.Store) error { return o.destroy(ctx, s, ref, m, most, hosts) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&stack, "stack", "", "stack of the environment")
	f.BoolVarP(&m.yes, "yes", "y", false, "don't ask: for CI, after a look at the plan")
	f.IntVar(&m.maxRetire, "max-retire", defaultMaxRetire, "with --yes: refuse to destroy more machines than this")
	f.IntVar(&m.parallel, "parallel", provision.DefaultParallel, "how many machines are worked on at a time")
	f.DurationVar(&m.drainTimeout, "drain-timeout", provision.DefaultDrainTimeout, "how long a node's retire hooks may take until its machine is left as it is")
	f.BoolVar(&m.noDrain, "no-drain", false, "don't run the release's retire hooks on nodes before their machines are deleted")
	f.BoolVar(&hosts, "forget-hosts", false, "also where machines are registered that Pulley did not make: they run on, and nothing knows them")
	return cmd
}

func (o *options) destroy(ctx context.Context, s *store.Store, ref environments.Ref, m machineFlags, most int, hosts bool) error {
	want, _, err := s.Spec(ctx, ref)
	if err != nil {
		return err
	}
	if want == nil {
		want = &environments.Environment{Name: ref.Environment, Stack: ref.Stack} // a destroy that was cut off, or keys of nobody
		if any, err := s.AnythingOf(ctx, ref); err != nil || !any {
			return errors.Join(err, notStored(ref, err))
		}
	}
	if err := s.MayRemove(ctx); err != nil {
		return err
	}
	t, err := o.open(ctx, s, want, nil, o.env.User)
	if err != nil {
		return err
	}
	return errors.Join(o.destroyAt(s, t.with(m), m, most, hosts), t.close())
}

func notStored(ref environments.Ref, err error) error {
	if err != nil {
		return nil
	}
	return fmt.Errorf("cannot destroy %s: %w: etcd has nothing of it\n`pulley env list` shows what there is", ref, store.ErrNotFound)
}

// destroyAt retires what there is, and then forgets the environment.
func (o *options) destroyAt(s *store.Store, t *site, m machineFlags, most int, hosts bool) error {
	p, err := t.applier.Look(t.ctx, t.want, provision.Options{Destroy: true})
	if err != nil {
		return err
	}
	o.showPlan(p)
	if blocked := p.Blocked(); len(blocked) > 0 {
		return blockedError(p, blocked)
	}
	if err := t.agree(t.ctx, s, p, m, most); err != nil {
		return err
	}
	if len(p.Destroyed()) == 0 && !m.yes {
		err = o.ask(fmt.Sprintf("No machine will be destroyed; all that etcd has of %s will be deleted. Type its name to go on: ", p.Fleet), p.Fleet.String())
		if err != nil {
			return err
		}
	}
	r, err := t.carryOut(p)
	for _, n := range r.Notes {
		cli.Cleanf(o.env.Stdout, "%s\n", n)
	}
	if err != nil {
		return err
	}
	d, err := t.applying.Destroy(t.ctx, hosts)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.env.Stdout, "destroyed %s: %s, %d keys and %d users of etcd\n", p.Fleet, cli.Count(len(p.Destroyed()), "machine"), d.Keys, d.Users)
	return nil
}
