package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/firstboot/plans"
)

// byServe is who did what serve does to machines by itself.
const byServe = "pulley serve"

// readWatched reads the files of the environments whose machines are watched, before anything is started.
func (s serveOptions) readWatched(c *cobra.Command) (all []*environments.Environment, err error) {
	for _, name := range s.watched {
		file, flags := name, envFileFlags{cloud: s.watchCloud}
		if !namesFile(name) {
			ref, err := environments.ParseRef(name)
			if err != nil {
				return nil, cli.Usagef("cannot watch machines: %v", err)
			}
			file, flags = environmentFile(ref), flags.of(ref)
		}
		e, err := s.readEnvironment(c, file, flags)
		if err != nil {
			return nil, fmt.Errorf("cannot watch machines: %w", err)
		}
		all = append(all, e)
	}
	return all, s.watchFlags().check()
}

// watchFlags looks often enough for its patience.
func (s serveOptions) watchFlags() *watchFlags {
	interval := min(watchInterval, max(s.patience/4, time.Second))
	return &watchFlags{budget: s.budget, patience: s.patience, interval: interval}
}

// watchMachines makes machines again that died, until ctx ends. Several serves may do it: who takes the fleet first acts.
func (s serveOptions) watchMachines(ctx context.Context, v service) {
	filled := s.connection
	filled.Fill(s.env)
	var loops sync.WaitGroup
	for _, e := range s.watching {
		boot := &plans.Connection{Prefix: filled.Prefix, Endpoints: v.endpoints}
		if v.certs != nil {
			boot.Pins = v.certs.CA.Fingerprints()
		}
		w := s.watchman(v.st, e, boot, *s.watchFlags(), byServe)
		loops.Go(func() { w.run(ctx) })
	}
	loops.Wait()
}
