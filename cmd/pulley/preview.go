package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/rollouts/preview"
)

// previewLimit is the number of resources on a page, if the user gives none.
const previewLimit = 50

func newPreview(o *options) *cobra.Command {
	var selected selectFlags
	q := preview.Query{}
	var generation int64
	cmd := &cobra.Command{
		Use:   "preview VERSION -e ENVIRONMENT",
		Short: "Show what a release would change on nodes, without changing them",
		Long: `preview orders nodes to run a release as noop at their next tick, waits for their answers, and shows them on one page: failures
first, then the resources that would change, alike ones together, with diffs. The release need not be promoted. Nodes with
allowed signers run only a signed release.

A preview comes in addition to the runs of a node and changes neither the machine nor the status of the node. The code of the
release runs on the node: its facts, functions, and the commands of unless and onlyif.

Without a selection, ` + fmt.Sprint(preview.DefaultSample) + ` nodes of each role run the preview. --role, --node and --where select nodes, --sample takes some of each
role. Silent nodes are named, and not awaited. The orders end with the command.

EXIT STATUS
  0 each node answered and none failed; 1 failed, 2 wrong usage, 3 etcd unreachable, 4 some nodes failed or did not run it,
  5 some nodes did not answer in time`,
		Example: `  pulley preview 1.5.0 -e production
  pulley preview 1.5.0 -e production --where 'os.family == "Debian"' --sample 3
  pulley preview 1.5.0 -e production --node compute1 --data 12`,
		Args: arguments(1, 1, "takes one version"),
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			q.Release, q.Generation = args[0], model.Generation(generation)
			if q.Selection, err = selected.value(); err != nil {
				return err
			}
			if q.Selection.All() && !c.Flags().Changed("sample") {
				q.Sample = preview.DefaultSample
			}
			switch {
			case q.Sample < 0:
				return cli.Usagef("--sample is a number of nodes of each role, or 0 for all")
			case generation < 0:
				return cli.Usagef("--data is the number of a generation, from 1")
			case q.Wait < time.Second:
				return cli.Usagef("cannot wait for %s: give a duration of at least 1s, as in --wait 10m", q.Wait)
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				q.By = o.env.User // of the connection
				return o.preview(ctx, s, ref, q, selected.limit)
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	selected.add(cmd)
	selected.addLimit(cmd, previewLimit, "number of resources on the page; 0 for all")
	cmd.Flags().IntVar(&q.Sample, "sample", 0, fmt.Sprintf("number of nodes of each role; 0 for all selected nodes (default %d without a selection)", preview.DefaultSample))
	cmd.Flags().Int64Var(&generation, "data", 0, "generation of live data (default: each node's own)")
	cli.DurationVar(cmd.Flags(), &q.Wait, "wait", preview.DefaultWait, "wait for the answers, and let Puppet run, up to this long")
	o.out.AddFlags(cmd.Flags())
	return cmd
}

// look runs a preview, and shows which nodes answered.
func (o *options) look(ctx context.Context, s *etcd.DB, ref model.Ref, q preview.Query) (preview.Page, error) {
	progress := cli.NewProgress(o.env)
	defer progress.Done()
	page, notes, err := preview.Run(ctx, s, ref, q, o.env.Now, func(p preview.Progress) {
		progress.Show(fmt.Sprintf("… %d of %s answered", p.Answered, cli.Count(p.Ordered, "node")))
		if o.env.ErrTerminal {
			return
		}
		if p.Last.Node == "" {
			fmt.Fprintf(o.env.Stderr, "%s: ordered a preview of %s in %s; waiting up to %s\n", program, cli.Count(p.Ordered, "node"), ref, cli.Duration(q.Wait))
			return
		}
		fmt.Fprintf(o.env.Stderr, "%s: %d of %d: %s\n", program, p.Answered, p.Ordered, cli.Clean(p.Last.Sentence()))
	})
	progress.Done()
	o.warn(notes)
	return page, err
}

// lookFirst runs the preview that the policy of rollouts demands, and prints its page.
func (o *options) lookFirst(ctx context.Context, s *etcd.DB, ref model.Ref, q preview.Query) (preview.Page, time.Time, error) {
	q.Wait = cmp.Or(o.previewWait, preview.DefaultWait)
	page, err := o.look(ctx, s, ref, q)
	to := o.env.Stdout
	if !o.out.ForPeople() {
		to = o.env.Stderr
	}
	if err == nil {
		page.Print(to, previewLimit, q.Wait)
		fmt.Fprintln(to)
	}
	return page, o.env.Now(), err
}

func (o *options) preview(ctx context.Context, s *etcd.DB, ref model.Ref, q preview.Query, limit int) error {
	page, err := o.look(ctx, s, ref, q)
	if err != nil {
		return err
	}
	if err := o.out.Print(o.env, page, func(*cli.Table) error { page.Print(o.env.Stdout, limit, q.Wait); return nil }); err != nil {
		return err
	}
	switch looked, silent := page.Count(preview.Looked), page.Count(preview.NoReply); {
	case looked == len(page.Nodes):
		return nil
	case looked+silent == len(page.Nodes):
		return &cli.SilentError{Code: cli.ExitTimeout}
	}
	return &cli.SilentError{Code: cli.ExitDegraded}
}
