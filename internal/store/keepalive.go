package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// How a mark's lease is kept alive, of a lease that lasts a minute.
const (
	renewEvery = 5 * time.Second
	lookEvery  = time.Second // at the clock
	spareShare = 4           // of the lease's time, the last so manieth part is for calls in flight to end
)

// What ends a mark.
var (
	errClosed  = errors.New("it was closed")
	errRevoked = errors.New("its lease was taken away")
	errSilent  = errors.New("etcd gave no sign of life for too long")
)

// A provider's command that is told to end has some seconds until it is killed: what is spared, less one look at the clock,
// has to be longer than that (inFlight in the test). Else a machine could be asked for when somebody else applies already.

// live keeps the lease until the mark is closed, and ends the mark before etcd can have ended the lease: a renewal counts
// from when it was sent, not from when the answer came.
func (m *mark) live(asked time.Time, lasts time.Duration) {
	ticker := time.NewTicker(min(lookEvery, lasts/10))
	defer ticker.Stop()
	kept := newDeadline(asked, lasts)
	next := asked.Add(min(renewEvery, lasts/4))
	for {
		select {
		case <-m.stands.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		if kept.passed(now) {
			m.end(errSilent)
			return
		}
		if now.Before(next) {
			continue
		}
		left, err := m.renew(kept.at)
		switch {
		case errors.Is(err, errRevoked):
			m.end(err)
			return
		case err == nil:
			kept = newDeadline(now, left)
			next = now.Add(min(renewEvery, left/4))
		} // else again at the next tick
	}
}

// renew asks etcd for the lease's whole time again, and returns it. It reads the key first: a lease that another one has
// revoked is known by that, and the client would ask for a renewal in a tight loop as long as etcd is away.
func (m *mark) renew(until time.Time) (time.Duration, error) {
	ctx, cancel := context.WithDeadline(m.stands, until)
	defer cancel()
	resp, err := m.store.get(ctx, m.key, clientv3.WithKeysOnly())
	if err != nil {
		return 0, err
	}
	if len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != m.revision {
		return 0, errRevoked
	}
	ctx, cancel = context.WithTimeout(ctx, m.store.timeout)
	defer cancel()
	alive, err := m.store.client.KeepAliveOnce(ctx, m.lease)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return 0, errRevoked
	}
	if err != nil {
		return 0, fmt.Errorf("cannot renew a lease: %w", m.store.explain(err))
	}
	return time.Duration(alive.TTL) * time.Second, nil
}

// deadline is when a lease may have ended, less some time to spare, by both of the machine's clocks: a machine that slept
// knows it by the one on the wall only.
type deadline struct{ at, wall time.Time }

func newDeadline(asked time.Time, lasts time.Duration) deadline {
	at := asked.Add(lasts - lasts/spareShare)
	return deadline{at, at.Round(0)}
}

func (d deadline) passed(now time.Time) bool {
	return !now.Before(d.at) || !now.Round(0).Before(d.wall)
}
