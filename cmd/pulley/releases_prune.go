package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/store"
)

type pruneOptions struct {
	*options
	keep        int
	history     time.Duration
	changes     int
	dryRun, yes bool
}

// pruned is what -o json has.
type pruned struct {
	store.PrunePlan
	Removed bool  `json:"removed"` // false: this is only what would be
	Freed   int64 `json:"freed"`   // bytes of values that are gone
}

func newReleasesPrune(o *options) *cobra.Command {
	p := pruneOptions{options: o}
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "remove releases and live data from etcd that nobody needs any more",
		Long: `prune removes releases that no target names, no node runs, tries or was last brought to, no rollback leads to, and that
are not among the newest; then the deltas and objects, and the live data, that only they needed. What can't be read ends
it before anything is removed. It shows what goes and asks first.

Then it has etcd compact: etcd can use the room again at once. Etcd's file itself shrinks at the next defragmentation
(etcdctl defrag), which stops a member for a moment.

EXIT STATUS
  0 done, or nothing to do; 1 failed, or not confirmed; 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := p.check(); err != nil {
				return err
			}
			return p.withStore(c, p.prune)
		},
	}
	p.out.AddFlags(cmd.Flags())
	f := cmd.Flags()
	f.IntVar(&p.keep, "keep", store.DefaultPruneKeep, "how many of the highest versions stay, and how many of those that were published last")
	f.DurationVar(&p.history, "history", store.DefaultPruneHistory, "changes that are younger can still be taken back")
	f.IntVar(&p.changes, "changes", store.DefaultPruneChanges, "so many changes of each environment can still be taken back, however old")
	f.BoolVar(&p.dryRun, "dry-run", false, "only show what would go")
	f.BoolVar(&p.yes, "yes", false, "don't ask")
	return cmd
}

func (p pruneOptions) check() error {
	switch {
	case p.keep < 0 || p.history <= 0 || p.changes <= 0:
		return cli.Usagef("--keep can't be below 0, and --history and --changes have to be above it")
	case p.dryRun || p.yes:
		return nil
	case !p.env.Terminal || !p.env.ErrTerminal || !p.out.ForPeople():
		return cli.Usagef("prune asks before it removes anything, and nobody can answer here\ngive --yes, or --dry-run to see what would go")
	}
	return nil
}

func (p pruneOptions) prune(ctx context.Context, s *store.Store) error {
	plan, err := s.MakePrunePlan(ctx, store.PruneOptions{By: p.env.User, Keep: p.keep, History: p.history, Changes: p.changes}, p.env.Now())
	if err != nil {
		return err
	}
	if p.out.ForPeople() {
		if err := p.show(plan); err != nil {
			return err
		}
	}
	result := pruned{PrunePlan: listsOf(plan)}
	if !p.dryRun && !plan.Empty() {
		if !p.yes && !p.confirmed() {
			return fmt.Errorf("cannot prune: it was not confirmed")
		}
		if result.Freed, err = s.ApplyPrune(ctx, plan); err != nil {
			if result.Freed > 0 {
				err = fmt.Errorf("%w\n%s are gone already", err, cli.Bytes(result.Freed))
			}
			return err
		}
		result.Removed = true
	}
	return p.out.Print(p.env, result, func(*cli.Table) error {
		if result.Removed {
			fmt.Fprintf(p.env.Stdout, "%s of values are gone, and etcd was compacted; its file shrinks at the next defragmentation (etcdctl defrag)\n", cli.Bytes(result.Freed))
		}
		return nil
	})
}

// listsOf has no list that is null.
func listsOf(p store.PrunePlan) store.PrunePlan {
	p.Releases, p.Objects, p.Deltas = list(p.Releases), list(p.Objects), list(p.Deltas)
	p.Generations, p.Layers, p.Kept = list(p.Generations), list(p.Layers), list(p.Kept)
	return p
}

func list[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

func (p pruneOptions) show(plan store.PrunePlan) error {
	t := cli.NewTable(p.env)
	t.Row("RELEASE", "", "WHY")
	for _, v := range plan.Releases {
		t.Row(v, "goes", "nobody needs it")
	}
	for _, k := range plan.Kept {
		t.Row(k.Version, "stays", k.Why)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if plan.Empty() {
		fmt.Fprintln(p.env.Stdout, "nothing is to be removed")
		return nil
	}
	goes := "goes"
	if p.dryRun {
		goes = "would go"
	}
	fmt.Fprintf(p.env.Stdout, "%s: %s, %s, %s; %s and %s of live data; together %s\n", goes,
		cli.Count(len(plan.Releases), "release"), cli.Count(len(plan.Deltas), "delta"), cli.Count(len(plan.Objects), "object"),
		cli.Count(len(plan.Generations), "generation"), cli.Count(len(plan.Layers), "layer"), cli.Bytes(plan.Bytes))
	return nil
}

// confirmed asks on the terminal. Whatever is not yes is no.
func (p pruneOptions) confirmed() bool {
	fmt.Fprint(p.env.Stderr, "remove all this for good? [y/N] ")
	answer, err := bufio.NewReader(io.LimitReader(p.env.Stdin, 100)).ReadString('\n')
	if err != nil && answer == "" {
		return false
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}
