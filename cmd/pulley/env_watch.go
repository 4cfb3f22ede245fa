package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/cli"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/boots"
	"pulley/internal/machines/drivers"
	"pulley/internal/machines/records"
	"pulley/internal/machines/watch"
	"pulley/internal/serve"
	"pulley/internal/specs"
)

// watchFlags are the flags for machines that die.
type watchFlags struct {
	budget   int
	patience time.Duration
	interval time.Duration
}

func (w *watchFlags) check() error {
	switch {
	case w.budget < 1:
		return cli.Usagef("cannot use a budget of %d: give at least 1", w.budget)
	case w.patience <= 0:
		return cli.Usagef("cannot use a patience of %s: give a time above 0, as in 5m", w.patience)
	case w.interval < time.Second:
		return cli.Usagef("cannot use an interval of %s: give at least 1s", w.interval)
	}
	return nil
}

// The authors of a watch's changes.
const (
	byWatch = "pulley env watch"
	byServe = "pulley serve"
)

const watchInterval = 30 * time.Second

func newEnvWatch(o *options) *cobra.Command {
	var file envFileFlags
	var w watchFlags
	cmd := &cobra.Command{
		Use: "watch FILE | -e ENVIRONMENT", Short: "Recreate machines that died or never joined",
		Long: `Watches a stored environment until it is stopped, and recreates machines that died, were powered off or never joined. A
machine must be dead for --patience. watch recreates at most --budget machines in an hour. watch never changes protected roles
or nodes under a hold, and does nothing if most machines look dead at once. ` + "`pulley env history`" + ` shows each action with its reason. Several
watches may watch one environment. ` + "`pulley serve --watch-machines`" + ` does the same.

The file has the provider, which must be the stored one: Pulley runs no program that etcd names. All other settings come from
the stored environment. With -e the file is environments/ENVIRONMENT.yaml in the current folder.

EXIT STATUS
  0 stopped, 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 1, "takes an environment file, or -e and its name"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := w.check(); err != nil {
				return err
			}
			if len(args) == 0 {
				ref, err := o.fleet.Ref(o.env)
				if err != nil {
					return err
				}
				args = []string{ref.String()}
			}
			e, err := o.readEnvironment(args[0], file)
			if err != nil {
				return err
			}
			boot, err := o.connectionOnly()
			if err != nil {
				return err
			}
			return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
				want, err := fleet.FindEnvironment(ctx, specs.In(s), e.Ref())
				if err == nil {
					err = errors.Join(drivers.UseFile(want, &e.Provider, environmentFile(e.Ref())), access.In(s).MayRemove(ctx))
				}
				if err != nil {
					return err
				}
				newLoop(watched{o, s, e, boot, byWatch}, w, o.stderrLog()).Run(ctx)
				return nil
			})
		},
	}
	file.add(cmd)
	o.fleet.AddFlag(cmd.Flags())
	f := cmd.Flags()
	f.IntVar(&w.budget, "budget", watch.DefaultBudget, "limit of recreated machines in an hour")
	cli.DurationVar(f, &w.patience, "patience", watch.DefaultPatience, "how long a machine must be dead before it is recreated")
	cli.DurationVar(f, &w.interval, "interval", watchInterval, "time between two checks")
	return cmd
}

// watched is a watched environment, for a watch.Loop.
type watched struct {
	*options
	db   *etcd.DB
	file *environments.Environment // as read on this machine
	boot *boots.Connection
	by   string
}

func newLoop(s watched, w watchFlags, log *slog.Logger) *watch.Loop {
	return &watch.Loop{
		Site: s, Watcher: watch.Watcher{Budget: w.budget, Patience: w.patience}, Interval: w.interval, Now: s.env.Now,
		Log: log.With("env", s.file.Ref().String()),
	}
}

// Source reads the stored environment. Its provider must be that of the file.
func (s watched) Source(ctx context.Context) (apply.Source, error) {
	want, err := fleet.FindEnvironment(ctx, specs.In(s.db), s.file.Ref())
	if err != nil {
		return apply.Source{}, err
	}
	if want.Driver() == environments.DriverNone {
		return apply.Source{}, fmt.Errorf("cannot watch %s: it has no provider\nadd `provider:` to its file, and apply that", s.file.Ref())
	}
	rewound, err := targets.In(s.db).Rewound(ctx, s.file.Ref())
	if err == nil && rewound {
		err = fmt.Errorf("cannot watch %s: etcd went back in time or was restored, and its machines are those of that time\ncompare `pulley status -e %[1]s` with what you expect, then run `pulley recover -e %[1]s`", s.file.Ref())
	}
	if err != nil {
		return apply.Source{}, err
	}
	if err := drivers.UseFile(want, &s.file.Provider, environmentFile(s.file.Ref())); err != nil {
		return apply.Source{}, err
	}
	return sourceOf(ctx, s.options, s.db, want)
}

// Begin takes the lock.
func (s watched) Begin(ctx context.Context, want *environments.Environment) (*apply.Session, error) {
	if err := drivers.UseFile(want, &s.file.Provider, environmentFile(s.file.Ref())); err != nil {
		return nil, err
	}
	t, err := begin(ctx, s.options, s.db, want, s.boot, s.by)
	if errors.As(err, new(*records.BusyError)) {
		err = fmt.Errorf("%w: %w", watch.ErrBusy, err)
	}
	return t, err
}

// readWatched reads the files of the environments that serve watches, before serve starts.
func (s *serveOptions) readWatched() (all []*environments.Environment, err error) {
	for _, name := range s.watched {
		e, err := s.readEnvironment(name, envFileFlags{cloud: s.watchCloud})
		if err != nil {
			return nil, fmt.Errorf("cannot watch machines: %w", err)
		}
		all = append(all, e)
	}
	return all, s.watchFlags().check()
}

// watchFlags derives the polling interval from the patience.
func (s *serveOptions) watchFlags() *watchFlags {
	interval := min(watchInterval, max(s.patience/4, time.Second))
	return &watchFlags{budget: s.budget, patience: s.patience, interval: interval}
}

// watchMachines watches until ctx ends. Several serve processes may watch one environment.
func (s *serveOptions) watchMachines(ctx context.Context, v serve.Watching) {
	var loops sync.WaitGroup
	o := *s.options
	o.env.Now = v.Now
	for _, e := range s.watching {
		boot := &boots.Connection{Prefix: s.connection.Prefix, Endpoints: v.Endpoints, Pins: v.Pins}
		loops.Go(func() { newLoop(watched{&o, v.DB, e, boot, byServe}, *s.watchFlags(), s.config.Log).Run(ctx) })
	}
	loops.Wait()
}
