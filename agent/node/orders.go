package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"pulley/internal/desired/control"
)

// The life of one watch: a connection keeps the certificate with which it was opened. watchPause is the wait after one that failed,
// at least half of it.
const (
	watchLife  = time.Hour
	watchPause = time.Minute
)

// Orders returns a channel that receives a value soon after etcd orders the node a run, until ctx ends. It is a hint: what the node does is
// decided in its next tick, and an order without a hint waits until the tick that is due.
func (s Setup) Orders(ctx context.Context) <-chan struct{} {
	ordered := make(chan struct{}, 1)
	go func() {
		refused := false
		for ctx.Err() == nil {
			err := s.watchOrders(ctx, func() {
				select {
				case ordered <- struct{}{}:
				default: // one is waiting already
				}
			})
			if err == nil {
				continue
			}
			pause := watchPause
			if errors.Is(err, control.ErrWatchRefused) { // more attempts would look like a flood
				pause = watchLife
				if !refused {
					s.Log.Warn("etcd refuses the watch for orders: the node sees them in its ticks; update pulley serve", "err", err)
				}
				refused = true
			} else {
				s.Log.Debug("cannot watch for orders; a later watch sees the next one", "err", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause/2 + rand.N(pause/2)):
			}
		}
	}()
	return ordered
}

func (s Setup) watchOrders(ctx context.Context, each func()) error {
	ctx, cancel := context.WithTimeout(ctx, watchLife/2+rand.N(watchLife/2))
	defer cancel()
	st, err := control.Open(s.Store)
	if err != nil {
		return err
	}
	defer st.Close()
	err = st.Node.WatchOrders(ctx, s.Identity, each)
	if ctx.Err() != nil {
		return nil
	}
	return err
}
