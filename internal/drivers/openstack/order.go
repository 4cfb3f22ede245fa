package openstack

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptrace"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"pulley/internal/machines"
)

// defaultLate is how long a server is waited for after the answer to its order was lost: a gateway gives up on a request, and
// Nova goes on with it. What it makes even later is a second machine of the name, which List has and a plan shows.
const defaultLate = time.Minute

// The pauses between two looks for it.
const (
	firstPause   = 500 * time.Millisecond
	longestPause = 8 * time.Second
)

// order is a request of which nobody knows yet what came of it.
type order struct {
	id    string    // keyOrder of its server
	until time.Time // when no server is expected from it any more
}

// send sends an order. It stays open until its server is seen or its time is over, also when ctx ends before; one that can't
// come to anything is not open.
func (d *Driver) send(ctx context.Context, body *request) error {
	name := body.Server.Name
	var sent atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	_, err := d.compute.Post(traced, d.compute.ServiceURL("servers"), body, nil, &gophercloud.RequestOpts{OkCodes: []int{200, 202}})
	if err == nil || sent.Load() && lost(err) {
		d.mu.Lock()
		d.orders[name] = order{id: body.Server.Metadata[keyOrder], until: time.Now().Add(d.config.Late)}
		d.mu.Unlock()
	}
	return err
}

// lost reports whether a server may be made although a request that was sent failed: there was no answer, or a gateway's.
func lost(err error) bool {
	var again *gophercloud.ErrUnableToReauthenticate
	if errors.As(err, &again) {
		return false // it was refused for the old token
	}
	var answer gophercloud.ErrUnexpectedResponseCode
	if !errors.As(err, &answer) {
		return true
	}
	return answer.Actual >= 500 && !ofNova(answer) && !errors.Is(kind(answer), machines.ErrThrottle)
}

// open reports whether a server may yet come of an order of a name.
func (d *Driver) open(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	o, ok := d.orders[name]
	if ok && !time.Now().Before(o.until) {
		delete(d.orders, name)
		return false
	}
	return ok
}

// arrived closes the order of a name when its server is among those of that name.
func (d *Driver) arrived(name string, servers []server) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o, ok := d.orders[name]
	if ok && slices.ContainsFunc(servers, func(s server) bool { return s.Metadata[keyOrder] == o.id }) {
		delete(d.orders, name)
	}
}

// settled returns the machine of a name, and nil when there is none and none is to come: while an order is open it looks again
// and again.
func (d *Driver) settled(ctx context.Context, name string) (*machines.Machine, error) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		open := d.open(name) // before the look, so that the last one is after its time
		m, err := d.have(ctx, name)
		if err != nil || m != nil || !open {
			return m, err
		}
		timer := time.NewTimer(min(pause, d.config.Late))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("cannot learn whether server %s is still made: %w", name, ctx.Err())
		}
	}
}
