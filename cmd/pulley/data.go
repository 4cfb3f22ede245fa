package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"pulley/hieradata"
	"pulley/internal/bounded"
	"pulley/internal/cli"
	"pulley/internal/data"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/rollouts"
)

func newData(o *options) *cobra.Command {
	return group("data", "Get and set live Hiera data", `Live data overrides the data of the release, in layers: node, role, environment, common, and those of attributes
that the environment file declares. Each change is a new generation of the environment's data, and the target of its nodes
becomes the pair of release and generation. A change that breaks compilation leaves nodes on their last good pair; `+"`pulley rollback`"+` reverts it. Nodes with allowed signers accept only
generations that --sign-key signed.`, newDataSet(o), newDataUnset(o), newDataEdit(o), newDataGet(o), newDataLayers(o), newDataLookup(o), newDataHistory(o), newDataDiff(o), newDataRevert(o), newDataImport(o), newDataExport(o))
}

// dataOptions are the flags of the verbs for one layer.
type dataOptions struct {
	*options
	layer     etcd.Scope
	common    bool
	attribute string
	encrypted bool
}

func (d *dataOptions) command(cmd *cobra.Command, run func(context.Context, *etcd.DB, model.Ref, []string) error) *cobra.Command {
	d.fleet.AddFlag(cmd.Flags())
	d.scope.add(cmd, "the layer")
	d.addLayer(cmd)
	cmd.RunE = func(c *cobra.Command, args []string) (err error) {
		if err := d.readLayer(); err != nil {
			return err
		}
		if err := d.checkWait(c); err != nil {
			return err
		}
		if err := d.sign.check(d.env); err != nil && c.Flags().Lookup("sign-key") != nil {
			return err
		}
		return d.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error { return run(ctx, s, ref, args) })
	}
	return cmd
}

// addLayer adds the flags that select a layer, beside --role and --node.
func (d *dataOptions) addLayer(cmd *cobra.Command) {
	cmd.Flags().StringVar(&d.attribute, "attribute", "", "the layer of an attribute's value, like site=ams")
	cmd.Flags().BoolVar(&d.common, "common", false, "the common layer, the lowest unless the environment file has another order")
}

// readLayer checks the flags that select a layer.
func (d *dataOptions) readLayer() (err error) {
	if d.layer, err = d.scope.value(); err != nil {
		return err
	}
	if d.common && d.layer != (etcd.Scope{}) {
		return cli.Usagef("--common excludes --role and --node")
	}
	if d.attribute == "" {
		return nil
	}
	if d.common || d.layer != (etcd.Scope{}) {
		return cli.Usagef("--attribute excludes --role, --node and --common")
	}
	name, value, _ := strings.Cut(d.attribute, "=")
	if err := hieradata.CheckAttribute(name, value); err != nil {
		return cli.Usagef("cannot use --attribute %s: %v\nwrite it like --attribute site=ams", quoted(d.attribute), err)
	}
	return nil
}

// editing returns an edit of the layer that the flags name, without its changes.
func (d *dataOptions) editing() data.LayerEdit {
	e := data.LayerEdit{Scope: d.layer, Common: d.common, Encrypted: d.encrypted}
	if name, value, ok := strings.Cut(d.attribute, "="); ok {
		e.Attribute = hieradata.ForAttribute(name, value)
	}
	return e
}

// only returns the layer that the flags name; "" if they name none.
func (d *dataOptions) only() hieradata.Layer {
	if d.layer == (etcd.Scope{}) && !d.common && d.attribute == "" {
		return ""
	}
	return d.editing().Layer()
}

// addChange adds the flags of a verb that makes a generation.
func (d *dataOptions) addChange(cmd *cobra.Command) {
	d.sign.add(cmd)
	d.sign.addUnsigned(cmd)
	d.addDryRun(cmd)
	d.wait.add(cmd, "wait until the nodes that see the layer took the data")
	d.addMessage(cmd, "reason")
	d.addAbort(cmd)
	cmd.Flags().BoolVar(&d.rollout, "rollout", false, "bring the new generation to the nodes by a rollout, in batches")
}

// checkWait refuses flags that do not fit to a rollout.
func (d *dataOptions) checkWait(c *cobra.Command) error {
	switch {
	case d.rollout && d.aborts:
		return cli.Usagef("--rollout excludes --abort-campaign\nend the rollout in progress first: `pulley rollout revert -e ENVIRONMENT`")
	case d.rollout && d.wait.limit > 0:
		return cli.Usagef("--rollout excludes --wait: a rollout takes longer\n`pulley rollout watch -e ENVIRONMENT` waits for its end")
	}
	return d.wait.check(c)
}

func (d *dataOptions) addEncrypted(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&d.encrypted, "encrypted", false, "accept values that eyaml encrypted: the release's hiera.yaml decrypts live data (docs/eyaml.md)")
}

func newDataSet(o *options) *cobra.Command {
	d := &dataOptions{options: o}
	var file string
	cmd := &cobra.Command{
		Use: "set KEY VALUE… -e ENVIRONMENT", Short: "Set keys of one layer to YAML values",
		Long: `set reads each VALUE as YAML and keeps its type: 8080 is a number, '"8080"' a string, '[a, b]' a list. Several keys are one
generation. --from-file sets the keys of a YAML file and leaves the other keys of the layer. set prints the data of the release
that a value shadows, and how Hiera merges the two. Setting the same values again changes nothing, unless --sign-key has not signed
the generation: then set creates a new, signed one. If the stored environment has allowed signers, set needs --sign-key, or
--unsigned.

EXIT STATUS
  0 done, or it was set already; 1 failed, 2 wrong usage, 3 etcd unreachable; with --wait, 4 some nodes failed, are held or
  silent, 5 its time passed`,
		Args: func(_ *cobra.Command, args []string) error {
			if (file == "") == (len(args) == 0) || len(args)%2 != 0 {
				return cli.Usagef("data set takes keys, each with a YAML value, or --from-file")
			}
			return nil
		},
	}
	d.addChange(cmd)
	d.addEncrypted(cmd)
	cmd.Flags().StringVar(&file, "from-file", "", "set the keys of this YAML file; - for standard input")
	return d.command(cmd, func(ctx context.Context, s *etcd.DB, ref model.Ref, args []string) error {
		e := d.editing()
		var texts []string
		for i := 0; i+1 < len(args); i += 2 {
			e.Keys, texts = append(e.Keys, data.KeyEdit{Key: args[i], Value: &args[i+1]}), append(texts, args[i+1])
		}
		if file != "" {
			text, err := d.readData(file)
			if err != nil {
				return err
			}
			keys, err := data.KeysOf(text)
			if err != nil {
				return fmt.Errorf("cannot read %s: %w", cli.Clean(file), err)
			}
			e.Keys, texts = keys, []string{string(text)}
		}
		err := d.edit(ctx, s, ref, e)
		d.remark(texts...)
		return err
	})
}

// readData reads a file, or standard input, of at most the size of a layer as it is written.
func (d *dataOptions) readData(file string) ([]byte, error) {
	if file == "-" {
		text, err := bounded.Read(d.env.Stdin, hieradata.MaxInputBytes)
		if err != nil {
			return nil, fmt.Errorf("cannot read standard input: %w", err)
		}
		return text, nil
	}
	return bounded.ReadFile(file, hieradata.MaxInputBytes)
}

// remark prints what Pulley may read differently than the author of YAML meant.
func (d *dataOptions) remark(texts ...string) {
	for _, text := range texts {
		for _, remark := range hieradata.Remarks(text) {
			fmt.Fprintf(d.env.Stderr, "%s: note: %s\n", program, cli.Clean(remark))
		}
	}
}

func newDataUnset(o *options) *cobra.Command {
	d := &dataOptions{options: o}
	cmd := &cobra.Command{
		Use: "unset KEY… -e ENVIRONMENT", Short: "Remove keys from one layer",
		Long: `unset removes the keys from the layer: nodes get the values of lower layers or of the release.

EXIT STATUS
  0 done; 1 failed, or the layer has no such key; 2 wrong usage, 3 etcd unreachable; with --wait, 4 some nodes failed, are held
  or silent, 5 its time passed`,
		Args: arguments(1, 1000, "takes keys"),
	}
	d.addChange(cmd)
	return d.command(cmd, func(ctx context.Context, s *etcd.DB, ref model.Ref, args []string) error {
		e := d.editing()
		for _, key := range args {
			e.Keys = append(e.Keys, data.KeyEdit{Key: key})
		}
		return d.edit(ctx, s, ref, e)
	})
}

func (d *dataOptions) edit(ctx context.Context, s *etcd.DB, ref model.Ref, e data.LayerEdit) error {
	return d.change(ctx, s, ref, func() (data.Edited, error) { return data.EditLayer(ctx, s, ref, e, d.changing()) })
}

// change makes a change of live data, reports it, and waits for its nodes if the flags say so.
func (d *dataOptions) change(ctx context.Context, s *etcd.DB, ref model.Ref, edit func() (data.Edited, error)) error {
	done, err := rollouts.ChangeData(ctx, s, ref, d.starting(), edit)
	if err != nil {
		return err
	}
	return d.changed(ctx, s, ref, done)
}

// changed reports a change of live data, and waits for its nodes if the flags say so.
func (d *dataOptions) changed(ctx context.Context, s *etcd.DB, ref model.Ref, done rollouts.DataChange) error {
	announcePermit(d.env, done.Change)
	warnUnstated(d.env, ref, done.Unstated)
	d.announceData(ref, done)
	if done.Rollout != nil {
		d.warn(done.Rollout.Notes)
		return d.announceRollout(ref, *done.Rollout)
	}
	return d.await(ctx, s, data.Awaiting(ref, done.Edited))
}

func (d *dataOptions) announceData(ref model.Ref, done rollouts.DataChange) {
	same := fmt.Sprintf("%s of %s has this value already", data.LayerNames(done.Layers), ref)
	if len(done.Layers) == 0 {
		same = fmt.Sprintf("the data of %s is the same already", ref)
	}
	switch {
	case done.Same && done.Rollout != nil:
		fmt.Fprintf(d.env.Stdout, "%s; signed now, as data %d\n", same, done.Generation)
		return
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
	what, when := fmt.Sprintf("changed (epoch %d)", done.Epoch), "at the next tick"
	if done.Rollout != nil {
		what, when = "differs", "in the rollout"
	}
	served := fmt.Sprintf("through `pulley data export FOLDER -e %s --for-server` at the next catalog", ref)
	switch done.Served {
	case 0:
	case len(done.Concerns):
		when = served
	default:
		when += fmt.Sprintf("; %d of them %s", done.Served, served)
	}
	fmt.Fprintf(d.env.Stdout, "data %d of %s: %s %s; it concerns %s, %s\n", done.Generation, ref, data.LayerNames(done.Layers), what,
		cli.Count(len(done.Concerns), "registered node"), when)
	if d.dryRun {
		showDifferences(d.env.Stdout, done.Differences)
		for i, node := range done.Concerns {
			if i == shownMoves {
				fmt.Fprintf(d.env.Stdout, "  … and %d more\n", len(done.Concerns)-i)
				break
			}
			fmt.Fprintf(d.env.Stdout, "  %s\n", node)
		}
	}
	for _, one := range done.Shadows {
		d.warnOfShadows(done.Layers[0], one)
	}
}

// showDifferences prints what differs between layers.
func showDifferences(w io.Writer, diffs []data.Difference) {
	for i, one := range diffs {
		if i == 0 || diffs[i-1].Layer != one.Layer {
			fmt.Fprintf(w, "  layer %s\n", one.Layer)
		}
		for _, line := range one.Lines() {
			cli.Cleanf(w, "  %s\n", line)
		}
	}
}

func (d *dataOptions) warnOfShadows(layer hieradata.Layer, s data.Shadows) {
	warn := func(format string, args ...any) {
		fmt.Fprintf(d.env.Stderr, "%s: warning: %s in layer %s %s\n", program, s.Key, layer, fmt.Sprintf(format, args...))
	}
	if s.Unread != "" {
		warn("may have no effect: %s (release %s)", s.Unread, s.Release)
	}
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
	var secrets bool
	cmd := &cobra.Command{
		Use: "get [KEY] -e ENVIRONMENT", Short: "Show a key in every layer that has it, or all keys",
		Long: `get shows the live data that the environment's target names. With --role, --node, --attribute or --common it shows only that
layer. Of a secret it shows the recipient. With --show-secrets, ` + "`pulley serve`" + ` decrypts secrets for an administrator, and logs it.`,
		Args: arguments(0, 1, "takes at most one key"),
	}
	o.out.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&secrets, "show-secrets", false, "show the plaintexts of secrets; needs an administrator")
	return d.command(cmd, func(ctx context.Context, s *etcd.DB, ref model.Ref, args []string) error {
		values, err := data.Read(ctx, s, ref, d.only(), strings.Join(args, ""))
		if err != nil {
			return err
		}
		if secrets {
			sealer, err := d.sealer()
			if err == nil {
				err = data.RevealSecrets(ctx, s, ref, values, sealer)
			}
			if err != nil {
				return err
			}
		} else {
			data.HideSecrets(values)
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
