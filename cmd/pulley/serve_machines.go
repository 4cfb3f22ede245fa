package main

import (
	"context"
	"sync"
	"time"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/userdata"
)

// byServe is who did what serve does to machines by itself.
const byServe = "pulley serve"

// checkWatched refuses names of environments that can't be meant, before anything is started.
func (s serveOptions) checkWatched() error {
	for _, name := range s.watched {
		if _, err := environments.ParseRef(name); err != nil {
			return cli.Usagef("cannot watch machines: %v", err)
		}
	}
	return s.watchFlags().check()
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
	for _, name := range s.watched {
		ref, err := environments.ParseRef(name)
		if err != nil {
			continue // refused when serve began
		}
		boot := &bootDefaults{told: userdata.Options{Environment: ref.String(), Prefix: filled.Prefix}, endpoints: v.endpoints}
		if v.certs != nil {
			boot.pins = v.certs.CA.Fingerprints()
		}
		w := s.watchman(v.st, ref, boot, *s.watchFlags(), byServe)
		loops.Go(func() { w.run(ctx) })
	}
	loops.Wait()
}
