package main

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/cli"
	"pulley/internal/content"
	"pulley/internal/store"
)

// dataOptions are the flags of the verbs that concern one layer.
type dataOptions struct {
	*options
	fleet   cli.EnvironmentFlag
	scope   scopeFlags
	sign    signFlag
	common  bool
	message string
}

func newData(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "data", Short: "get and set live Hiera data", Args: arguments(0, 0, "takes a verb: set, get or unset"),
		Long: `Live data stands above the data of the release, in four layers: node, role, environment, common. Each change is a new
generation of the environment's data, and the target of its nodes becomes the pair of release and generation: a change
that breaks compilation leaves nodes on their last good pair, and ` + "`pulley rollback`" + ` takes it back. Nodes that have allowed
signers take only generations that --sign-key signed.`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(newDataSet(o), newDataUnset(o), newDataGet(o))
	return cmd
}

func (d *dataOptions) command(cmd *cobra.Command, run func(context.Context, *store.Store, environments.Ref, []string) error) *cobra.Command {
	d.fleet.AddFlag(cmd.Flags())
	d.scope.add(cmd, "the layer")
	cmd.Flags().BoolVar(&d.common, "common", false, "the lowest layer, below the environment's")
	cmd.RunE = func(c *cobra.Command, args []string) error {
		return d.inFleet(c, d.fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error { return run(ctx, s, ref, args) })
	}
	return cmd
}

// layer is the layer that the flags name.
func (d *dataOptions) layer(scope store.Scope) (hieradata.Layer, error) {
	switch {
	case d.common && scope != (store.Scope{}):
		return "", cli.Usagef("--common excludes --role and --node")
	case d.common:
		return hieradata.Common, nil
	case scope.Node != "":
		return hieradata.ForNode(scope.Node), nil
	case scope.Role != "":
		return hieradata.ForRole(scope.Role), nil
	}
	return hieradata.Environment, nil
}

func newDataSet(o *options) *cobra.Command {
	d := &dataOptions{options: o}
	cmd := &cobra.Command{
		Use: "set KEY VALUE -e ENVIRONMENT", Short: "set a key of one layer to a YAML value",
		Long: `set reads VALUE as YAML and keeps its type: 8080 is a number, '"8080"' a string, '[a, b]' a list. It says what of the
release the value shadows, and how Hiera merges the two.

EXIT STATUS
  0 done, or it was set to that already; 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(2, 2, "takes a key and a YAML value"),
	}
	d.sign.add(cmd)
	cmd.Flags().StringVarP(&d.message, "message", "m", "", "why")
	return d.command(cmd, func(ctx context.Context, s *store.Store, ref environments.Ref, args []string) error {
		err := retryConflicts(func() error {
			return d.change(ctx, s, ref, args[0], func(layer []byte) ([]byte, error) { return hieradata.Set(layer, args[0], args[1]) })
		})
		for _, remark := range hieradata.Remarks(args[1]) {
			fmt.Fprintf(d.env.Stderr, "%s: note: %s\n", program, cli.Clean(remark))
		}
		return err
	})
}

func newDataUnset(o *options) *cobra.Command {
	d := &dataOptions{options: o}
	cmd := &cobra.Command{
		Use: "unset KEY -e ENVIRONMENT", Short: "remove a key from one layer",
		Args: arguments(1, 1, "takes a key"),
	}
	d.sign.add(cmd)
	cmd.Flags().StringVarP(&d.message, "message", "m", "", "why")
	return d.command(cmd, func(ctx context.Context, s *store.Store, ref environments.Ref, args []string) error {
		return retryConflicts(func() error {
			return d.change(ctx, s, ref, args[0], func(layer []byte) ([]byte, error) {
				rest, found, err := hieradata.Unset(layer, args[0])
				if err == nil && !found {
					err = fmt.Errorf("cannot unset %s: this layer has no such key\n`pulley data get %s -e %s` shows which layers have it", args[0], args[0], ref)
				}
				return rest, err
			})
		})
	})
}

// change makes the next generation with one layer edited.
func (d *dataOptions) change(ctx context.Context, s *store.Store, ref environments.Ref, key string, edit func([]byte) ([]byte, error)) error {
	fleet, scope, err := d.scope.find(ctx, s, ref)
	if err != nil {
		return err
	}
	layer, err := d.layer(scope)
	if err != nil {
		return err
	}
	data, err := s.Data(ctx, ref, fleet.Desires)
	if err != nil {
		return err
	}
	var before []byte
	if digest, has := data.Layers[layer]; has {
		if before, err = s.Layer(ctx, ref.String(), digest); err != nil {
			return err
		}
	}
	after, err := edit(before)
	if err != nil {
		return err
	}
	if len(after) > 0 && string(before) == string(after) {
		fmt.Fprintf(d.env.Stdout, "layer %s of %s says so already\n", layer, ref)
		return nil
	}
	c, err := s.ChangeData(ctx, ref, fleet.Desires, data, map[hieradata.Layer][]byte{layer: after}, d.author(d.message, d.sign))
	if err != nil {
		return err
	}
	affected := 0
	for _, h := range fleet.Hosts {
		if layer == hieradata.Common || layer == hieradata.Environment || scope.Role == h.Role && scope.Role != "" || scope.Node == h.Node && scope.Node != "" {
			affected++
		}
	}
	fmt.Fprintf(d.env.Stdout, "data %d of %s: layer %s changed (epoch %d); it concerns %s, at the next tick\n",
		c.After.Data, ref, layer, c.Epoch, cli.Count(affected, "registered node"))
	if _, has, err := hieradata.Get(after, key); err != nil || !has {
		return err // it was removed: it hides nothing any more
	}
	if err := d.warnOfLayers(ctx, s, ref, fleet, data, layer, key); err != nil {
		return err
	}
	return d.warn(ctx, s, ref, fleet, layer, key)
}

// mostLayersRead, of nodes, bounds what a warning may cost where thousands of nodes have layers of their own.
const mostLayersRead = 200

// warnOfLayers names the other live layers that have the key: those that the layer hides, and those that hide it.
func (d *dataOptions) warnOfLayers(ctx context.Context, s *store.Store, ref environments.Ref, fleet store.Fleet, data store.Data, layer hieradata.Layer, key string) error {
	var above, below []string
	ofNodes := 0
	for _, other := range data.SortedLayers() {
		if !related(fleet, layer, other) {
			continue
		}
		if kind, _, _ := strings.Cut(string(other), "/"); kind == "nodes" {
			if ofNodes++; ofNodes > mostLayersRead {
				continue
			}
		}
		b, err := s.Layer(ctx, ref.String(), data.Layers[other])
		if err != nil {
			return warnOnly(d.options, err)
		}
		if _, has, err := hieradata.Get(b, key); err != nil {
			return warnOnly(d.options, err)
		} else if has && other.Rank() > layer.Rank() {
			below = append(below, string(other))
		} else if has {
			above = append(above, string(other))
		}
	}
	if len(below) > 0 {
		fmt.Fprintf(d.env.Stderr, "%s: warning: %s in layer %s shadows layer %s\n", program, key, layer, strings.Join(below, ", "))
	}
	if len(above) > 0 {
		fmt.Fprintf(d.env.Stderr, "%s: warning: %s in layer %s is itself shadowed by layer %s, for its nodes\n", program, key, layer, strings.Join(above, ", "))
	}
	return nil
}

// related reports whether there may be a node that sees both layers.
func related(fleet store.Fleet, a, b hieradata.Layer) bool {
	kindA, nameA, _ := strings.Cut(string(a), "/")
	kindB, nameB, _ := strings.Cut(string(b), "/")
	switch {
	case kindA == kindB:
		return false // another node's or role's
	case kindA == "nodes" && kindB == "roles":
		return roleOf(fleet, nameA) == nameB
	case kindA == "roles" && kindB == "nodes":
		return roleOf(fleet, nameB) == nameA
	}
	return true
}

// roleOf is a node's role by the list of hosts, else by its name.
func roleOf(fleet store.Fleet, node string) string {
	if h, ok := fleet.Hosts[node]; ok {
		return h.Role
	}
	n, err := environments.ParseNode(node)
	if err != nil {
		return ""
	}
	return n.Role
}

// warn names what a key of one layer hides or is merged with: lower layers, and the release's own data.
func (d *dataOptions) warn(ctx context.Context, s *store.Store, ref environments.Ref, fleet store.Fleet, layer hieradata.Layer, key string) error {
	if fleet.Desires.Default.Release == "" {
		return nil
	}
	r, err := s.Release(ctx, fleet.Desires.Default.Release)
	if err != nil {
		return warnOnly(d.options, err)
	}
	files, err := content.ReadFiles(ctx, s, r.Content, hieradata.WantFile)
	if err != nil {
		return warnOnly(d.options, err)
	}
	places, merge, err := hieradata.Shadows(files, key)
	if err != nil {
		if err := warnOnly(d.options, err); err != nil {
			return err
		}
	}
	var names []string
	for _, p := range places {
		if concerns(fleet.Spec, layer, p.File) {
			names = append(names, p.String())
		}
	}
	if len(names) == 0 {
		return nil
	}
	verb := "shadows"
	if merge != "" && merge != "first" {
		verb = "is merged (" + merge + ") with"
	}
	fmt.Fprintf(d.env.Stderr, "%s: warning: %s in layer %s %s %s of release %s\n", program, key, layer, verb, strings.Join(names, ", "), r.Version)
	return nil
}

// concerns leaves out files of a hierarchy that are another role's than the layer's: a value for controllers hides nothing
// in roles/compute.yaml.
func concerns(e *environments.Environment, layer hieradata.Layer, file string) bool {
	kind, name, _ := strings.Cut(string(layer), "/")
	role := name
	if n, err := environments.ParseNode(name); kind == "nodes" && err == nil {
		role = n.Role
	}
	if kind != "roles" && kind != "nodes" {
		return true
	}
	base := strings.TrimSuffix(path.Base(file), path.Ext(file))
	_, ofRole := e.Role(base)
	return !ofRole || base == role
}

// warnOnly reports an error that must not undo what was done already.
func warnOnly(o *options, err error) error {
	cli.Complain(o.env, program, fmt.Errorf("warning: cannot tell what it shadows: %w", err))
	return nil
}

func newDataGet(o *options) *cobra.Command {
	d := &dataOptions{options: o}
	cmd := &cobra.Command{
		Use: "get [KEY] -e ENVIRONMENT", Short: "show a key in every layer that has it, or all keys",
		Long: `get shows the live data that the environment's target names. With --role, --node or --common only that layer's; with
--node and no such layer it is an error.

EXIT STATUS
  0 found, 1 failed or not found, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 1, "takes at most one key"),
	}
	o.out.AddFlags(cmd.Flags())
	return d.command(cmd, d.get)
}

// heldValue is one line of `data get -o json`.
type heldValue struct {
	Layer hieradata.Layer `json:"layer"`
	Key   string          `json:"key"`
	Value any             `json:"value"`
	text  string
}

func (d *dataOptions) get(ctx context.Context, s *store.Store, ref environments.Ref, args []string) error {
	fleet, scope, err := d.scope.find(ctx, s, ref)
	if err != nil {
		return err
	}
	only, err := d.layer(scope)
	if err != nil {
		return err
	}
	data, err := s.Data(ctx, ref, fleet.Desires)
	if err != nil {
		return err
	}
	values := []heldValue{}
	for _, layer := range data.SortedLayers() {
		if (scope != (store.Scope{}) || d.common) && layer != only {
			continue
		}
		b, err := s.Layer(ctx, ref.String(), data.Layers[layer])
		if err != nil {
			return err
		}
		held, err := valuesOf(layer, b, args)
		if err != nil {
			return err
		}
		values = append(values, held...)
	}
	if len(args) == 1 && len(values) == 0 {
		return fmt.Errorf("cannot find %s in the live data of %s: %w\nthe release's own data may have it: pulley-agent puppet -- lookup --explain %s", args[0], ref, store.ErrNotFound, args[0])
	}
	return d.out.Print(d.env, values, func(t *cli.Table) error {
		if len(values) == 0 {
			fmt.Fprintln(d.env.Stdout, "no live data is set")
			return nil
		}
		t.Row("LAYER", "KEY", "VALUE")
		for _, v := range values {
			t.Row(string(v.Layer), v.Key, v.text)
		}
		return nil
	})
}

func valuesOf(layer hieradata.Layer, b []byte, keys []string) ([]heldValue, error) {
	if len(keys) == 0 {
		var err error
		if keys, err = hieradata.Keys(b); err != nil {
			return nil, err
		}
	}
	var held []heldValue
	for _, key := range keys {
		v, found, err := hieradata.Get(b, key)
		if err != nil {
			return nil, err
		}
		if found {
			held = append(held, heldValue{layer, key, v.Any(), v.String()})
		}
	}
	return held, nil
}
