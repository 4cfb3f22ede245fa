package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/change"
	"pulley/internal/cli"
	"pulley/internal/store"
)

func newData(o *options) *cobra.Command {
	return group("data", "Get and set live Hiera data", `Live data overrides the data of the release, in four layers: node, role, environment, common. Each change is a new generation
of the environment's data, and the target of its nodes becomes the pair of release and generation. A change that breaks
compilation leaves nodes on their last good pair; `+"`pulley rollback`"+` reverts it. Nodes with allowed signers accept only
generations that --sign-key signed.`, newDataSet(o), newDataUnset(o), newDataGet(o), newDataLookup(o))
}

// dataOptions are the flags of the verbs for one layer.
type dataOptions struct {
	*options
	layer     store.Scope
	common    bool
	encrypted bool
}

func (d *dataOptions) command(cmd *cobra.Command, run func(context.Context, *store.Store, environments.Ref, []string) error) *cobra.Command {
	d.fleet.AddFlag(cmd.Flags())
	d.scope.add(cmd, "the layer")
	cmd.Flags().BoolVar(&d.common, "common", false, "the lowest layer, below the environment's")
	cmd.RunE = func(c *cobra.Command, args []string) (err error) {
		if d.layer, err = d.scope.value(); err != nil {
			return err
		}
		if err := d.wait.check(c); err != nil {
			return err
		}
		if d.common && d.layer != (store.Scope{}) {
			return cli.Usagef("--common excludes --role and --node")
		}
		if err := d.sign.check(d.env); err != nil && c.Flags().Lookup("sign-key") != nil {
			return err
		}
		return d.inFleet(c, func(ctx context.Context, s *store.Store, ref environments.Ref) error { return run(ctx, s, ref, args) })
	}
	return cmd
}

func newDataSet(o *options) *cobra.Command {
	d := &dataOptions{options: o}
	cmd := &cobra.Command{
		Use: "set KEY VALUE -e ENVIRONMENT", Short: "Set a key of one layer to a YAML value",
		Long: `set reads VALUE as YAML and keeps its type: 8080 is a number, '"8080"' a string, '[a, b]' a list. It prints the data of the
release that the value shadows, and how Hiera merges the two. Setting the same value again changes nothing, unless --sign-key
has not signed the generation: then set creates a new, signed one. If the stored environment has allowed signers, set needs
--sign-key, or --unsigned.

EXIT STATUS
  0 done, or it was set already; 1 failed, 2 wrong usage, 3 etcd unreachable; with --wait, 4 some nodes failed, are held or
  silent, 5 its time passed`,
		Args: arguments(2, 2, "takes a key and a YAML value"),
	}
	d.sign.add(cmd)
	d.sign.addUnsigned(cmd)
	d.addDryRun(cmd)
	d.wait.add(cmd, "wait until the nodes that see the layer took the data")
	d.addMessage(cmd, "reason")
	cmd.Flags().BoolVar(&d.encrypted, "encrypted", false, "accept a value that eyaml encrypted: the release's hiera.yaml decrypts live data (docs/eyaml.md)")
	return d.command(cmd, func(ctx context.Context, s *store.Store, ref environments.Ref, args []string) error {
		err := d.edit(ctx, s, ref, change.DataEdit{Scope: d.layer, Common: d.common, Key: args[0], Value: &args[1], Encrypted: d.encrypted})
		for _, remark := range hieradata.Remarks(args[1]) {
			fmt.Fprintf(d.env.Stderr, "%s: note: %s\n", program, cli.Clean(remark))
		}
		return err
	})
}

func newDataUnset(o *options) *cobra.Command {
	d := &dataOptions{options: o}
	cmd := &cobra.Command{
		Use: "unset KEY -e ENVIRONMENT", Short: "Remove a key from one layer",
		Long: `unset removes the key from the layer: nodes get the value of a lower layer or of the release.

EXIT STATUS
  0 done; 1 failed, or the layer has no such key; 2 wrong usage, 3 etcd unreachable; with --wait, 4 some nodes failed, are held
  or silent, 5 its time passed`,
		Args: arguments(1, 1, "takes a key"),
	}
	d.sign.add(cmd)
	d.sign.addUnsigned(cmd)
	d.addDryRun(cmd)
	d.wait.add(cmd, "wait until the nodes that see the layer took the data")
	d.addMessage(cmd, "reason")
	return d.command(cmd, func(ctx context.Context, s *store.Store, ref environments.Ref, args []string) error {
		return d.edit(ctx, s, ref, change.DataEdit{Scope: d.layer, Common: d.common, Key: args[0]})
	})
}

func (d *dataOptions) edit(ctx context.Context, s *store.Store, ref environments.Ref, e change.DataEdit) error {
	done, err := change.EditData(ctx, s, ref, e, d.changing())
	if err != nil {
		return err
	}
	announcePermit(d.env, done.Change)
	warnUnstated(d.env, ref, done.Unstated)
	d.announceData(ref, e.Key, done)
	return d.await(ctx, s, change.AwaitingData(ref, e.Scope, done))
}

func (d *dataOptions) announceData(ref environments.Ref, key string, done change.Data) {
	same := fmt.Sprintf("layer %s of %s has this value already", done.Layer, ref)
	switch {
	case done.Same && done.Made:
		fmt.Fprintf(d.env.Stdout, "%s; signed now, as data %d (epoch %d)\n", same, done.Generation, done.Epoch)
		return
	case done.SignedBy != "":
		fmt.Fprintf(d.env.Stdout, "%s, and data %d has a signature by %s\n", same, done.Generation, done.SignedBy)
		return
	case done.Same:
		fmt.Fprintln(d.env.Stdout, same)
		return
	case !done.Signed:
		fmt.Fprintf(d.env.Stderr, "%s: unsigned: nodes with allowed signers will refuse it\n", program)
	}
	fmt.Fprintf(d.env.Stdout, "data %d of %s: layer %s changed (epoch %d); it concerns %s, at the next tick\n",
		done.Generation, ref, done.Layer, done.Epoch, cli.Count(len(done.Concerns), "registered node"))
	if d.dryRun {
		cli.Cleanf(d.env.Stdout, "  %s\n", done.Edit)
		for i, node := range done.Concerns {
			if i == shownMoves {
				fmt.Fprintf(d.env.Stdout, "  … and %d more\n", len(done.Concerns)-i)
				break
			}
			fmt.Fprintf(d.env.Stdout, "  %s\n", node)
		}
	}
	d.warnOfShadows(key, done)
}

func (d *dataOptions) warnOfShadows(key string, done change.Data) {
	warn := func(format string, args ...any) {
		fmt.Fprintf(d.env.Stderr, "%s: warning: %s in layer %s %s\n", program, key, done.Layer, fmt.Sprintf(format, args...))
	}
	s := done.Shadows
	if len(s.Hides) > 0 {
		warn("shadows layer %s", joined(s.Hides))
	}
	if len(s.HiddenBy) > 0 {
		warn("is itself shadowed by layer %s, for its nodes", joined(s.HiddenBy))
	}
	if s.Err != nil { // the change is stored
		cli.Complain(d.env, program, fmt.Errorf("warning: cannot list the data that it shadows: %w", s.Err))
	}
	switch {
	case len(s.Places) == 0:
	case s.Merge != "" && s.Merge != "first":
		warn("is merged (%s) with %s of release %s", s.Merge, strings.Join(s.Places, ", "), s.Release)
	default:
		warn("shadows %s of release %s", strings.Join(s.Places, ", "), s.Release)
	}
}

func newDataGet(o *options) *cobra.Command {
	d := &dataOptions{options: o}
	cmd := &cobra.Command{
		Use: "get [KEY] -e ENVIRONMENT", Short: "Show a key in every layer that has it, or all keys",
		Long: `get shows the live data that the environment's target names. With --role, --node or --common it shows only that layer.`,
		Args: arguments(0, 1, "takes at most one key"),
	}
	o.out.AddFlags(cmd.Flags())
	return d.command(cmd, func(ctx context.Context, s *store.Store, ref environments.Ref, args []string) error {
		values, err := change.ReadData(ctx, s, ref, d.layer, d.common, strings.Join(args, ""))
		if err != nil {
			return err
		}
		return d.out.Print(d.env, values, func(t *cli.Table) error {
			if len(values) == 0 {
				fmt.Fprintln(d.env.Stdout, "no live data is set")
				return nil
			}
			t.Row("LAYER", "KEY", "VALUE")
			for _, v := range values {
				t.Row(string(v.Layer), v.Key, v.Text)
			}
			return nil
		})
	})
}
