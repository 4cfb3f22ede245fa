package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/cli"
	"pulley/internal/store"
)

func newDataGet(o *options) *cobra.Command {
	d := &dataOptions{options: o}
	cmd := &cobra.Command{
		Use: "get [KEY] -e ENVIRONMENT", Short: "Show a key in every layer that has it, or all keys",
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
	data, err := s.Targets.Data(ctx, ref, fleet.Desires)
	if err != nil {
		return err
	}
	values := []heldValue{}
	for _, layer := range data.SortedLayers() {
		if (scope != (store.Scope{}) || d.common) && layer != only {
			continue
		}
		b, err := s.Targets.Layer(ctx, ref.String(), data.Layers[layer])
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
