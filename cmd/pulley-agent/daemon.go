package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/schedule"
)

func newDaemon(o *options) *cobra.Command {
	var times string
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Run on its own schedule, for machines without cron",
		Long: `daemon ticks at once and then on its schedule: five fields as in crontab, or @every 5m. Two ticks never run at the
same time. When a job or a rollout orders the node a run, the daemon ticks within a second: it watches the node's own key in etcd, over
one connection. SIGTERM ends the daemon, and a running Puppet gets SIGTERM first.

EXIT STATUS
  0 ended by a signal, 1 failed, 2 wrong usage`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.daemon(c.Context(), times, inherited(c)) },
	}
	cmd.Flags().StringVar(&times, "schedule", schedule.Default, "when to tick")
	return cmd
}

func (o *options) daemon(ctx context.Context, spec string, flags []string) error {
	times, err := schedule.Parse(spec)
	if err != nil {
		return cli.Usagef("cannot use schedule %q: %v\ngive five fields as in crontab ('*/5 * * * *'), or '@every 5m'", spec, err)
	}
	c, err := o.load()
	if err != nil {
		return err
	}
	if o.env.Log != nil {
		o.env.Log.Info("the daemon started", "version", o.env.Version, "node", c.Identity.Node, "schedule", spec)
	}
	fmt.Fprintf(o.env.Stdout, "%s: ticks now, then by schedule %s\n", c.Identity.Node, spec)
	parent := ctx
	ctx, end := context.WithCancel(ctx)
	defer end()
	replaced := false
	loop(ctx, time.Now, times.Next, o.setup(c).Orders(ctx), func(ctx context.Context) {
		now, err := o.load()
		if err == nil {
			replaced, err = o.turn(ctx, now, runOptions{}, flags)
		}
		var silent *cli.SilentError
		if err != nil && !errors.As(err, &silent) {
			cli.Complain(o.env, program, err)
		}
		if replaced {
			end()
		}
	})
	if !replaced || parent.Err() != nil {
		return nil
	}
	// Exec keeps the process: the service manager that started the daemon sees no exit.
	if err := syscall.Exec(c.UpgradeFolder().Installed, os.Args, os.Environ()); err != nil {
		return fmt.Errorf("cannot start the new agent: %w\nstart `%s daemon` again", err, program)
	}
	return nil
}

// loop ticks immediately, then at each time that next returns, and when something is ordered, until ctx ends. Ticks never overlap: if a
// tick is still running at a due time, loop skips that time. The zero time ends the schedule.
func loop(ctx context.Context, now func() time.Time, next func(time.Time) time.Time, ordered <-chan struct{}, tick func(context.Context)) {
	for {
		tick(ctx)
		var due <-chan time.Time
		if at := next(now()); !at.IsZero() {
			due = time.After(max(at.Sub(now()), 0))
		}
		select {
		case <-ctx.Done():
			return
		case <-ordered:
		case <-due:
		}
	}
}
