package machines_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/plan"
)

// hangs is a provider whose create ends only with its context, and signals its start.
type hangs struct {
	machines.Provider
	ended chan time.Duration
}

func (h hangs) Create(ctx context.Context, _ machines.Order) (machines.Machine, error) {
	began := time.Now()
	<-ctx.Done()
	h.ended <- time.Since(began)
	return machines.Machine{}, ctx.Err()
}

// After Ctrl-C, a call may continue for a while. If the lock is lost meanwhile, the call must end: otherwise it could
// make a machine beside those of the apply with the lock.
func TestLostLockEndsCallsAfterInterrupt(t *testing.T) {
	for _, c := range []struct {
		say  string
		lose time.Duration // after the start of the create; 0: never
		ends time.Duration
	}{
		{"the lock stands", 0, 40 * time.Second},
		{"it is lost after the interrupt", 13 * time.Second, 13 * time.Second},
		{"it is lost before", 5 * time.Second, 5 * time.Second},
	} {
		t.Run(c.say, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOperator(t)
				o.site.Latency = 0
				x := o.start()
				defer x.end()
				h := hangs{x.applier.Provider, make(chan time.Duration, 9)}
				lock, lose := context.WithCancel(context.Background())
				defer lose()
				x.applier.Provider, x.applier.Lock = h, lock
				p, err := x.applier.Look(x.ctx, fleetOf(role("web", 1)), plan.Options{})
				if err != nil {
					t.Fatal(err)
				}
				ctx, interrupt := context.WithCancel(x.ctx)
				defer interrupt()
				time.AfterFunc(10*time.Second, interrupt)
				if c.lose > 0 {
					time.AfterFunc(c.lose, lose)
				}
				_, err = x.applier.Apply(ctx, p, nil)
				if took := <-h.ended; took < c.ends-3*time.Second || took > c.ends+time.Second {
					t.Errorf("the call took %s, not %s", took, c.ends)
				}
				if err == nil || errors.Is(err, machines.ErrLost) != (c.lose > 0 && c.lose < 10*time.Second) {
					t.Error(err)
				}
			})
		})
	}
}
