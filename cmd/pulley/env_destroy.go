package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/drivers"
	"pulley/internal/machines/plan"
	"pulley/internal/machines/records"
	"pulley/internal/machines/render"
	"pulley/internal/model"
	"pulley/internal/specs"
)

// destroyOptions are the flags of destroy.
type destroyOptions struct {
	*options
	file     envFileFlags
	machines machineFlags
	override overrideFlags
	hosts    bool
}

// previewDestroy is the command that previews a destroy.
const previewDestroy = "`pulley env destroy --dry-run`"

func newEnvDestroy(o *options) *cobra.Command {
	d := destroyOptions{options: o}
	cmd := &cobra.Command{
		Use: "destroy FILE | ENVIRONMENT", Short: "Retire all machines of an environment or a stack, and delete it",
		Long: `Drains, removes and deletes all machines that Pulley made for an environment, and then deletes all its keys in etcd: nodes, data,
targets, holds, runs, tokens and users. Other environments, and other stacks of this one, keep every key. A protected role stops
destroy: remove protected: from the file and apply that first.

If the environment has machines, destroy needs its file for the provider, because Pulley runs no program that etcd names. With a
name, the file is environments/NAME.yaml in the current folder. Without machine records in etcd, destroy needs no file. destroy asks for the number of machines as confirmation. In
scripts, use --yes with a --max-retire that is large enough.

Run destroy again to resume after an interrupt or a failure.`,
		Args: arguments(1, 1, "takes one environment, or its file"),
		RunE: func(c *cobra.Command, args []string) error { return d.run(c, args[0]) },
	}
	d.file.add(cmd)
	d.override.add(cmd)
	d.machines.add(cmd)
	d.machines.until = string(apply.WaitNone)
	o.addConfirmation(cmd)
	o.addDryRun(cmd)
	cmd.Flags().BoolVar(&d.hosts, "forget-hosts", false, "also remove nodes whose machines Pulley did not make: these machines run on, unmanaged")
	return cmd
}

func (d *destroyOptions) run(c *cobra.Command, arg string) error {
	ref, provider, err := d.named(arg)
	if err != nil {
		return err
	}
	if err := d.machines.check(); err != nil {
		return err
	}
	if err := d.mayConfirm(); err != nil {
		return err
	}
	return d.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
		want, err := d.stored(ctx, s, ref, provider)
		if err == nil && !d.dryRun {
			err = access.In(s).MayRemove(ctx)
		}
		if err != nil {
			return err
		}
		approved, err := d.approved(ctx, s, want)
		if err != nil || d.dryRun {
			return err
		}
		t, err := begin(ctx, d.options, s, want, nil, d.env.User)
		if err != nil {
			return err
		}
		return errors.Join(d.destroy(t, approved), t.Close())
	})
}

// named returns the environment that an argument names, and its provider if the argument is a file.
func (d *destroyOptions) named(arg string) (model.Ref, *environments.Provider, error) {
	if namesFile(arg) {
		e, err := d.readEnvironment(arg, d.file)
		if err != nil {
			return model.Ref{}, nil, err
		}
		return e.Ref(), &e.Provider, nil
	}
	ref, err := d.file.ref(arg)
	return ref, nil, err
}

// stored returns the stored environment with the provider of its file. If an earlier destroy deleted it already, it is
// empty.
func (d *destroyOptions) stored(ctx context.Context, s *etcd.DB, ref model.Ref, provider *environments.Provider) (*environments.Environment, error) {
	want, _, err := specs.In(s).Spec(ctx, ref)
	if err != nil {
		return nil, err
	}
	if _, missing := os.Stat(environmentFile(ref)); provider == nil && (want == nil || want.Driver() != environments.DriverNone) && missing == nil {
		e, err := d.readEnvironment(ref.String(), d.file)
		if err != nil {
			return nil, err
		}
		provider = &e.Provider
	}
	if want != nil && provider == nil && want.Driver() != environments.DriverNone {
		return d.withoutFile(ctx, s, want)
	}
	if want != nil {
		return want, drivers.UseFile(want, provider, environmentFile(ref))
	}
	parts, err := records.In(s).PartsOf(ctx, ref)
	if err != nil {
		return nil, err
	}
	if parts == (records.Destroyed{}) {
		return nil, fmt.Errorf("cannot destroy %s: %w: etcd has nothing of it\n`pulley env list` lists the environments", ref, etcd.ErrNotFound)
	}
	want = &environments.Environment{Name: ref.Environment, Stack: ref.Stack}
	if provider != nil {
		want.Provider = *provider
	}
	return want, nil
}

// withoutFile returns a stored environment whose file is gone. Only the file names its provider for Pulley. Without
// machine records there is nothing to delete there.
func (d *destroyOptions) withoutFile(ctx context.Context, s *etcd.DB, want *environments.Environment) (*environments.Environment, error) {
	ref := want.Ref()
	recorded, err := records.In(s).Recorded(ctx, ref)
	if err != nil {
		return nil, err
	}
	if recorded > 0 {
		return nil, fmt.Errorf("cannot destroy %s: %s must be deleted at the provider (%s), which only etcd names, and Pulley runs no program that etcd names\n"+
			"give the environment's file, from git or from a release: `pulley releases export VERSION --to DIR` writes DIR/%s", ref, cli.Count(int(recorded), "machine"), want.Driver(), environmentFile(ref))
	}
	cli.Cleanf(d.env.Stderr, "%s: note: %s is not in this folder: the provider (%s) is not asked for machines, of which etcd has no record\n", program, environmentFile(ref), want.Driver())
	want.Provider = environments.Provider{}
	return want, nil
}

// approved shows the machines and keys to delete, and asks for confirmation.
func (d *destroyOptions) approved(ctx context.Context, s *etcd.DB, want *environments.Environment) (apply.Draft, error) {
	opts := d.override.options()
	opts.Destroy, opts.ForgetHosts = true, d.hosts
	p, err := draftOf(ctx, d.options, s, want, opts)
	if err != nil {
		return p, err
	}
	showPlan(d.options, p.Plan)
	if d.dryRun {
		if err := d.preview(ctx, s, p.Plan); err != nil {
			return p, err
		}
	}
	if remain := p.Remaining(); len(remain) > 0 && !d.hosts {
		return p, fmt.Errorf("cannot destroy %s: %s would stay on its host list, because Pulley did not make the machines: %s\nremove them with `pulley nodes remove NODE -e %s`, or give --forget-hosts: the machines run on, unmanaged",
			p.Fleet, cli.Count(len(remain), "node"), strings.Join(remain, ", "), p.Fleet)
	}
	if err := render.Refused(p.Plan, p.Refused(p.Deleted())); err != nil {
		return p, err
	}
	if d.dryRun {
		return p, nil
	}
	most := math.MaxInt
	if d.yes {
		most = d.machines.maxRetire
	}
	if err := approve(ctx, d.options, s, p.Plan, most, previewDestroy); err != nil {
		return p, err
	}
	if d.yes || len(p.Deleted())+len(p.Removed()) > 0 {
		return p, nil
	}
	return p, cli.Confirm(ctx, d.env, previewDestroy, fmt.Sprintf("No machine will be deleted; all keys of %s in etcd will be. Type its name to continue: ", p.Fleet), p.Fleet.String())
}

// preview prints what destroy would delete.
func (d *destroyOptions) preview(ctx context.Context, s *etcd.DB, p plan.Plan) error {
	parts, err := records.In(s).PartsOf(ctx, p.Fleet)
	if err != nil {
		return err
	}
	if nodes := p.Remaining(); d.hosts && len(nodes) > 0 {
		cli.Cleanf(d.env.Stdout, "%s would leave %s, and their machines run on, unmanaged: %s\n", cli.Count(len(nodes), "node"), p.Fleet, strings.Join(nodes, ", "))
	}
	fmt.Fprintf(d.env.Stdout, "would destroy %s: %s, %d keys and %d users of etcd\n", p.Fleet, cli.Count(len(p.Deleted()), "machine"), parts.Keys, parts.Users)
	return nil
}

// destroy retires the machines, and then deletes the keys.
func (d *destroyOptions) destroy(t *apply.Session, approved apply.Draft) error {
	p, err := carryOut(d.options, t, approved, d.machines)
	if err != nil {
		return err
	}
	deleted, err := t.Fleet.(*records.Fleet).Destroy(t.Context, d.hosts)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.env.Stdout, "destroyed %s: %s, %d keys and %d users of etcd\n", p.Fleet, cli.Count(len(p.Deleted()), "machine"), deleted.Keys, deleted.Users)
	return nil
}
