package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/firstboot/plans"
	"pulley/internal/machines"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
	"pulley/internal/machines/watch"
	"pulley/internal/store"
)

// watchFlags say what is done about machines that die.
type watchFlags struct {
	budget   int
	patience time.Duration
	interval time.Duration
}

func (w *watchFlags) check() error {
	switch {
	case w.budget < 1:
		return cli.Usagef("cannot make %d machines an hour again: give --budget at least 1", w.budget)
	case w.patience <= 0:
		return cli.Usagef("cannot wait for %s: give --patience a time above 0, as in 5m", w.patience)
	case w.interval < time.Second:
		return cli.Usagef("cannot look every %s: give --interval at least 1s", w.interval)
	}
	return nil
}

// byWatch is who did what a watch does to machines by itself.
const byWatch = "pulley env watch"

const watchInterval = 30 * time.Second

func newEnvWatch(o *options) *cobra.Command {
	var fleet cli.EnvironmentFlag
	var file envFileFlags
	var w watchFlags
	cmd := &cobra.Command{
		Use: "watch FILE | -e ENVIRONMENT", Short: "Recreate machines that died or never joined, until stopped",
		Long: `watch looks at an environment as it is stored, and makes machines again that died, were powered off or never joined: those that
it has seen dead for --patience, at most --budget in an hour. It never touches protected roles or nodes under a hold, makes none
that the environment does not call for, and does nothing when most machines look dead at once. Each act is told, and kept with
its reason: ` + "`pulley env history`" + `. Several may watch one environment. ` + "`pulley serve --watch-machines`" + ` does the same.

The file says who makes the machines, which must be what is stored: programs, folders and accounts are never taken out of etcd. All
else is taken as it is stored. With -e the file is environments/ENVIRONMENT.yaml, seen from here.

EXIT STATUS
  0 it was stopped, 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 1, "takes an environment file, or -e and its name"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := w.check(); err != nil {
				return err
			}
			if len(args) == 0 {
				ref, err := fleet.Ref(o.env)
				if err != nil {
					return err
				}
				args, file = []string{environmentFile(ref)}, file.of(ref)
			}
			e, err := o.readEnvironment(c, args[0], file)
			if err != nil {
				return err
			}
			boot, err := (&firstBootFlags{options: o}).connectionOnly()
			if err != nil {
				return err
			}
			return o.withStore(c, func(ctx context.Context, s *store.Store) error {
				want, _, err := s.Environments.MustSpec(ctx, e.Ref())
				if err == nil {
					err = errors.Join(o.trusted(want, &e.Provider), s.Access.MayRemove(ctx))
				}
				if err != nil {
					return err
				}
				o.watchman(s, e, boot, w, byWatch).run(ctx)
				return nil
			})
		},
	}
	file.add(cmd)
	fleet.AddFlag(cmd.Flags())
	f := cmd.Flags()
	f.IntVar(&w.budget, "budget", watch.DefaultBudget, "how many machines are made again in an hour, at most")
	f.DurationVar(&w.patience, "patience", watch.DefaultPatience, "how long a machine has to be seen dead")
	f.DurationVar(&w.interval, "interval", watchInterval, "between two looks")
	return cmd
}

// watchman watches one environment. Nobody else uses it at the same time.
type watchman struct {
	*options
	store    *store.Store
	ref      environments.Ref
	provider environments.Provider // of a file of this machine
	boot     *plans.Connection
	by       string
	interval time.Duration
	watcher  watch.Watcher
	log      *slog.Logger
	said     string    // what was told last, so that it is told once
	busy     time.Time // since when somebody else applies; zero when nobody does
}

// watchman watches the environment of a file that was read on this machine.
func (o *options) watchman(s *store.Store, file *environments.Environment, boot *plans.Connection, w watchFlags, by string) *watchman {
	return &watchman{
		options: o, store: s, ref: file.Ref(), provider: file.Provider, boot: boot, by: by, interval: w.interval,
		watcher: watch.Watcher{Budget: w.budget, Patience: w.patience},
		log:     slog.New(slog.NewTextHandler(o.env.Stderr, nil)).With("env", file.Ref().String()),
	}
}

// longBusy is how long somebody may apply until a watch says that it waits for that.
const longBusy = 10 * time.Minute

// run looks again and again until ctx ends.
func (w *watchman) run(ctx context.Context) {
	ticker := time.NewTicker(w.interval)
	defer ticker.Stop()
	for {
		if err := w.look(ctx); err != nil && ctx.Err() == nil && w.isNew(err.Error()) {
			w.log.Warn("cannot watch machines", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// look looks once. Only when something is dead for long enough the fleet is taken: operators who apply meanwhile come first.
func (w *watchman) look(ctx context.Context) error {
	want, revision, err := w.spec(ctx)
	if err != nil {
		return err
	}
	p, world, err := w.seen(ctx, want)
	if err != nil {
		return err
	}
	acts, _, err := w.store.Machines.Acts(ctx, w.ref, w.env.Now().Add(-time.Hour))
	if err != nil {
		return err
	}
	if ripe, notes := w.watcher.See(p, world, acts); !ripe {
		w.notes(notes)
		return nil
	}
	t, err := w.open(ctx, w.store, want, w.boot, w.by)
	if busy, is := errors.AsType[*store.BusyError](err); is {
		return w.waitsFor(busy)
	}
	if err != nil {
		return err
	}
	w.busy = time.Time{}
	if _, now, err := w.spec(t.ctx); err != nil || now != revision {
		return errors.Join(err, t.close()) // the next look goes by what is stored then
	}
	// The fleet is free again as soon as the machine is asked for. One that then does not join is found dead by a later look.
	t.applier.Log, t.applier.Progress, t.applier.Wait = w.log, w.event, apply.WaitNone
	d, err := w.watcher.Once(t.ctx, t.applier)
	w.notes(d.Notes)
	return errors.Join(err, t.close())
}

// waitsFor says when somebody applies for so long that dead machines stay dead.
func (w *watchman) waitsFor(busy *store.BusyError) error {
	now := w.env.Now()
	if w.busy.IsZero() {
		w.busy = now
	}
	if now.Sub(w.busy) < longBusy {
		return nil
	}
	return busy
}

// spec is the environment as it is stored, with the provider of the file, which must be the same.
func (w *watchman) spec(ctx context.Context) (*environments.Environment, int64, error) {
	want, revision, err := w.store.Environments.MustSpec(ctx, w.ref)
	if err != nil {
		return nil, 0, err
	}
	if want.Driver() == environments.DriverNone {
		return nil, 0, fmt.Errorf("cannot watch %s: nobody makes its machines\nname a provider in its file, and apply that", w.ref)
	}
	return want, revision, w.trusted(want, &w.provider)
}

func (w *watchman) seen(ctx context.Context, want *environments.Environment) (plan.Plan, machines.World, error) {
	id, err := w.store.Cluster.Installation(ctx)
	if err != nil {
		return plan.Plan{}, machines.World{}, err
	}
	m, err := w.maker(ctx, want, id)
	if err != nil {
		return plan.Plan{}, machines.World{}, err
	}
	return w.ahead(ctx, w.store, want, m, plan.Options{Place: m.place})
}

// notes tells why nothing, or not more, is done; once, as long as it stays the same.
func (w *watchman) notes(notes []string) {
	why := strings.Join(notes, "; ")
	if w.isNew(why) && why != "" {
		w.log.Info("machines wait", "why", why)
	}
}

// isNew reports whether a text is another one than was told last.
func (w *watchman) isNew(text string) bool {
	was := w.said
	w.said = text
	return text != was
}

func (w *watchman) event(e apply.Event) {
	switch e.State {
	case apply.Begins, apply.Ends:
	case apply.Done:
		w.log.Info("machine is made again", "node", e.Node)
	case apply.Fails:
		w.log.Warn("machine failed", "node", e.Node, "step", e.Step, "err", e.Text)
	default:
		w.log.Info("machine is being made again", "node", e.Node, "step", e.Step, "reason", e.Text)
	}
}
