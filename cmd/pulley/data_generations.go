package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pulley/hieradata"
	"pulley/internal/cli"
	"pulley/internal/data"
	"pulley/internal/etcd"
	"pulley/internal/model"
)

func newDataHistory(o *options) *cobra.Command {
	d := &dataOptions{options: o}
	var limit int
	cmd := &cobra.Command{
		Use: "history -e ENVIRONMENT", Short: "List the generations of live data, newest first",
		Long: `history lists the generations that etcd keeps, with the layers that each changed. With --role, --node or --common it lists those that
changed this layer. ` + "`pulley data diff`" + ` shows the keys, and ` + "`pulley data revert`" + ` returns to a generation.`,
		Args: arguments(0, 0, "takes no arguments; -e names the environment"),
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "number of generations; 0 for all")
	o.out.AddFlags(cmd.Flags())
	return d.command(cmd, func(ctx context.Context, s *etcd.DB, ref model.Ref, _ []string) error {
		list, left, err := data.Generations(ctx, s, ref, d.only(), limit)
		if err != nil {
			return err
		}
		err = d.out.Print(d.env, list, func(t *cli.Table) error {
			if len(list) == 0 {
				fmt.Fprintln(d.env.Stdout, "no live data is set")
				return nil
			}
			t.Row("DATA", "WHEN", "LAYERS", "BY", "WHY")
			for _, g := range list {
				number := strconv.FormatInt(int64(g.Generation), 10)
				switch {
				case g.Current:
					number += " (in force)"
				case g.Rollout != "":
					number += " (rollout " + g.Rollout + ")"
				}
				t.Row(number, cli.Ago(d.env.Now(), g.At), listed(g.Layers), g.By, strings.TrimSpace(string(g.Why)))
			}
			return nil
		})
		if left > 0 && d.out.ForPeople() {
			cli.More(d.env, left, "generation", "generations")
		}
		return err
	})
}

// shownLayers limits the layers that a row lists.
const shownLayers = 4

func listed(layers []hieradata.Layer) string {
	if more := len(layers) - shownLayers; more > 0 {
		return joined(layers[:shownLayers]) + fmt.Sprintf(" and %d more", more)
	}
	return joined(layers)
}

func newDataDiff(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "diff GENERATION [GENERATION] -e ENVIRONMENT", Short: "Compare two generations of live data",
		Long: `diff shows the keys that differ, by layer: first the value of the first generation, then that of the second, which is by default the one in
force. 0 is the state before the first generation. Of a secret it shows the recipient, and that it changed.`,
		Args: arguments(1, 2, "takes one or two numbers of generations"),
	}
	o.fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	cmd.RunE = func(c *cobra.Command, args []string) error {
		from, err := parseGeneration(args[0])
		var to model.Generation
		if err == nil && len(args) == 2 {
			to, err = parseGeneration(args[1])
		}
		if err != nil {
			return err
		}
		return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
			diffs, second, err := data.Diff(ctx, s, ref, from, to)
			if err != nil {
				return err
			}
			return o.out.Print(o.env, diffs, func(*cli.Table) error {
				if len(diffs) == 0 {
					fmt.Fprintf(o.env.Stdout, "data %d and %d of %s are the same\n", from, second, ref)
					return nil
				}
				fmt.Fprintf(o.env.Stdout, "data %d to %d of %s: %s\n", from, second, ref, cli.Count(len(diffs), "key"))
				showDifferences(o.env.Stdout, diffs)
				return nil
			})
		})
	}
	return cmd
}

func parseGeneration(text string) (model.Generation, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, cli.Usagef("%q is not the number of a generation\nrun `pulley data history -e ENVIRONMENT` to list them", text)
	}
	return model.Generation(n), nil
}

func newDataRevert(o *options) *cobra.Command {
	d := &dataOptions{options: o}
	cmd := &cobra.Command{
		Use: "revert GENERATION -e ENVIRONMENT", Short: "Return all live data to an earlier generation",
		Long: `revert makes a new generation whose layers are those of an earlier one: later changes of all layers are taken back. 0 is the state
before the first generation. It keeps the release: ` + "`pulley rollback`" + ` takes back the pair of release and data.

EXIT STATUS
  0 done, or the data is the same already; 1 failed, 2 wrong usage, 3 etcd unreachable; with --wait, 4 some nodes failed, are
  held or silent, 5 its time passed`,
		Args: arguments(1, 1, "takes the number of a generation"),
	}
	d.addChange(cmd)
	return d.ofAll(cmd, func(ctx context.Context, s *etcd.DB, ref model.Ref, args []string) error {
		to, err := parseGeneration(args[0])
		if err != nil {
			return err
		}
		return d.change(ctx, s, ref, func() (data.Edited, error) { return data.Revert(ctx, s, ref, to, d.changing()) })
	})
}

// ofAll makes the command of a verb that changes all layers.
func (d *dataOptions) ofAll(cmd *cobra.Command, run func(context.Context, *etcd.DB, model.Ref, []string) error) *cobra.Command {
	d.fleet.AddFlag(cmd.Flags())
	cmd.RunE = func(c *cobra.Command, args []string) error {
		if err := d.checkWait(c); err != nil {
			return err
		}
		if err := d.sign.check(d.env); err != nil {
			return err
		}
		return d.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error { return run(ctx, s, ref, args) })
	}
	return cmd
}
