package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"pulley/internal/fleetca"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"pulley/internal/cli"
	"pulley/internal/join/server"
	"pulley/internal/mirror"
	"pulley/internal/serve"
	"pulley/internal/store"
)

// service is what every kind of serve has by the time that it serves.
type service struct {
	st        *store.Store
	certs     *fleetca.Certificates // nil: nobody joins here
	endpoints []string              // of etcd, as nodes are told
	https     *httpsServer          // nil: none
	failed    <-chan error          // of the embedded etcd; nil: it is elsewhere
	look      func(context.Context) // at an etcd that is elsewhere, now and then; nil: there is none
	ready     func()                // says so
}

// watchOver serves nodes and runs the loops until ctx ends or a part fails.
func (s serveOptions) watchOver(ctx context.Context, v service) error {
	log := slog.New(slog.NewTextHandler(s.env.Stderr, nil))
	metrics := prometheus.NewRegistry()
	programs, cleanUp, err := s.programs(v.st)
	if err != nil {
		return err
	}
	defer cleanUp()
	web := serve.Web{
		Agents: programs, Mirror: mirror.Handler(v.st.Releases, store.ErrNotFound),
		Metrics: promhttp.HandlerFor(prometheus.Gatherers{metrics, prometheus.DefaultGatherer}, // anybody may ask
			promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}),
	}
	keeper, err := serve.NewTasks(serve.TasksConfig{
		Store: v.st, Certificates: v.certs, Now: s.env.Now, Log: log, Metrics: metrics, Notify: s.notify,
	})
	if err != nil {
		return cli.Usagef("%v", err)
	}
	what := "mirror of published content serves"
	if v.certs != nil {
		what = "joins and the mirror of published content serve"
		web.Join = s.desk(v, keeper).Handler()
	}
	if err := v.https.serve(web, v.certs, what); err != nil {
		return err
	}
	for path, digest := range programs.Digests() {
		fmt.Fprintf(s.env.Stdout, "agent %s serves as /agent/%s\n", path, digest)
	}
	if v.ready != nil {
		v.ready()
	}
	ctx, cancel := context.WithCancel(ctx)
	var loops sync.WaitGroup
	loops.Go(func() { keeper.Run(ctx) })
	loops.Go(func() { s.watchMachines(ctx, v) })
	defer loops.Wait() // before etcd, which they ask, is closed
	defer cancel()
	defer v.https.close()
	return s.untilEnd(ctx, v)
}

// untilEnd waits for a signal or for a part that fails.
func (s serveOptions) untilEnd(ctx context.Context, v service) error {
	ticker := time.NewTicker(healthInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return s.endedBySignal()
		case err := <-v.failed:
			return fmt.Errorf("etcd ended by itself: %w", err)
		case err := <-v.https.ended():
			return err
		case <-ticker.C:
			if v.look != nil {
				v.look(ctx)
			}
		}
	}
}

// programs serves the agent's programs; cleanUp removes what it needed for that.
func (s serveOptions) programs(st *store.Store) (programs *serve.Agents, cleanUp func(), err error) {
	dir, cleanUp := filepath.Join(s.dataDir, "agents"), func() {}
	if _, err := os.Stat(s.dataDir); errors.Is(err, os.ErrNotExist) { // an etcd that is elsewhere, and no CA
		if dir, err = os.MkdirTemp("", "pulley-agents-"); err != nil {
			return nil, nil, fmt.Errorf("cannot make a folder for agents: %w", err)
		}
		cleanUp = func() { _ = os.RemoveAll(dir) }
	}
	if programs, err = serve.NewAgents(st.Releases, dir, s.agents); err != nil {
		cleanUp()
		return nil, nil, err
	}
	return programs, cleanUp, nil
}

// desk is where machines and operators join.
func (s serveOptions) desk(v service, keeper *serve.Tasks) *server.Server {
	filled := s.connection
	filled.Fill(s.env)
	return server.New(server.Config{
		Store: v.st, CA: v.certs.CA, Now: s.env.Now, Log: keeper.Log, Metrics: keeper.Metrics,
		Endpoints: v.endpoints, NodeLifetime: s.secure.nodeLifetime,
		OnFirstBoot: keeper.Notifier.FirstBoot, OnClone: keeper.DuplicateRefused,
	})
}
