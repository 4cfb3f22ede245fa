package machines_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/drivers/conform"
	"pulley/internal/model"
	"pulley/internal/testbed/machinestest"
)

// Tests with the provider in memory would not hold for real ones if it were more tolerant.
func TestSimIsConformingProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(model.Ref{Environment: "dev"}, time.Now)
		s.Latency = 100 * time.Millisecond
		x := s.Open("ann", nil)
		config := conform.Config{
			New: func(m machines.Mark) (machines.Provider, error) { return x.marked(m), nil },
			Order: func(name string) machines.Order {
				return machines.Order{Name: name, Flavor: "small", Image: "debian"}
			},
			Userdata: func(_ context.Context, m machines.Machine) (text []byte, err error) {
				s.locked(func() {
					for _, b := range s.boxes {
						if b.ID == m.ID {
							text = slices.Clone(b.userdata)
						}
					}
				})
				return text, nil
			},
			Labels: func(_ context.Context, m machines.Machine) (labels map[string]string, err error) {
				s.locked(func() {
					for _, b := range s.boxes {
						if b.ID == m.ID {
							labels = b.labels
						}
					}
				})
				return labels, nil
			},
			Foreign: func(_ context.Context, name string) (func(context.Context) error, error) {
				planted := s.plant(name, machines.Mark{})
				return func(context.Context) error {
					for _, m := range s.machines() {
						if m.ID == planted.ID && m.State == planted.State {
							return nil
						}
					}
					return fmt.Errorf("machine %s is not as it was", name)
				}, nil
			},
		}
		err := conform.Run(t.Context(), config, func(r conform.Result) {
			switch {
			case r.Err != nil:
				t.Errorf("%s: %v", r.Check, r.Err)
			case r.Skipped != "":
				t.Errorf("%s: not checked: %s", r.Check, r.Skipped)
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// Tests with the fleet in memory would not hold for the one in etcd if the two differed.
func TestSimKeepsContract(t *testing.T) {
	machinestest.FleetContract(t, func(*testing.T) machinestest.Subject {
		s := newSim(model.Ref{Environment: "dev", Stack: "t42"}, time.Now)
		s.Demote()
		admits := func(token string) bool { return s.Tokens()[token] != "" }
		return machinestest.Subject{Fleet: s.Open("ann", nil), Ref: s.Ref, Join: s.Join, Report: s.Report, Admits: admits, LoseLock: func() { s.Open("bob", nil) }}
	})
}
