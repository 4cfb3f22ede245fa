package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/cli"
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
		Use: "data", Short: "Get and set live Hiera data", Args: arguments(0, 0, "takes a verb: set, get or unset"),
		Long: `Live data stands above the data of the release, in four layers: node, role, environment, common. Each change is a new
generation of the environment's data, and the target of its nodes becomes the pair of release and generation: a change
that breaks compilation leaves nodes on their last good pair, and ` + "`pulley rollback`" + ` takes it back. Nodes that have allowed
signers take only generations that --sign-key signed.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage, 3 etcd unreachable`,
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
		if c.Flags().Lookup("sign-key") != nil {
			if err := d.sign.check(d.env); err != nil {
				return err
			}
		}
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
		Use: "set KEY VALUE -e ENVIRONMENT", Short: "Set a key of one layer to a YAML value",
		Long: `set reads VALUE as YAML and keeps its type: 8080 is a number, '"8080"' a string, '[a, b]' a list. It says what of the
release the value shadows, and how Hiera merges the two. What is set already changes nothing, but for a generation that
--sign-key did not sign: that becomes a new one that it did.

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
		Use: "unset KEY -e ENVIRONMENT", Short: "Remove a key from one layer",
		Long: `unset takes the key out of the layer: nodes get what a lower layer or the release has.

EXIT STATUS
  0 done; 1 failed, or the layer has no such key; 2 wrong usage, 3 etcd unreachable`,
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
	data, err := s.Targets.Data(ctx, ref, fleet.Desires)
	if err != nil {
		return err
	}
	var before []byte
	if digest, has := data.Layers[layer]; has {
		if before, err = s.Targets.Layer(ctx, ref.String(), digest); err != nil {
			return err
		}
	}
	after, err := edit(before)
	if err != nil {
		return err
	}
	if len(after) > 0 && string(before) == string(after) {
		return d.already(ctx, s, ref, fleet, data, layer)
	}
	c, err := s.Targets.ChangeData(ctx, ref, fleet.Desires, data, map[hieradata.Layer][]byte{layer: after}, d.author(d.message, d.sign))
	if err != nil {
		return err
	}
	if d.sign.key(d.env) == nil {
		fmt.Fprintf(d.env.Stderr, "%s: unsigned: nodes that have allowed signers will refuse it\n", program)
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

// already is change where the layer has it so: there is a signature to add at most, which takes a generation of its own, as
// one never changes.
func (d *dataOptions) already(ctx context.Context, s *store.Store, ref environments.Ref, fleet store.FleetState, data store.Data, layer hieradata.Layer) error {
	says := fmt.Sprintf("layer %s of %s says so already", layer, ref)
	if d.sign.key(d.env) == nil {
		fmt.Fprintln(d.env.Stdout, says)
		return nil
	}
	current, err := s.Targets.Generation(ctx, ref.String(), agent.Generation(data.Number))
	if err != nil {
		return err
	}
	if by := d.sign.key(d.env).Among(current.Signatures); by != "" {
		fmt.Fprintf(d.env.Stdout, "%s, and data %d has a signature by %s\n", says, data.Number, by)
		return nil
	}
	c, err := s.Targets.ChangeData(ctx, ref, fleet.Desires, data, nil, d.author(d.message, d.sign))
	if err != nil {
		return err
	}
	fmt.Fprintf(d.env.Stdout, "%s; signed now, as data %d (epoch %d)\n", says, c.After.Data, c.Epoch)
	return nil
}
