package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"pulley/internal/pki/connect"
)

// connecting watches the connections of one client until the first of them works. gRPC alone would repeat a call in silence until
// its deadline, whatever the cause is.
type connecting struct {
	targets   []connect.Target
	own       func() *x509.Certificate // of this client, as its file contains it now; nil without one
	timeout   time.Duration
	connected atomic.Bool // once, to any endpoint: then a lost connection may come back within a call's deadline

	probing sync.Mutex
	probed  time.Time
	found   connect.Failures
}

// Bounds of probes.
const (
	probeAgain  = 500 * time.Millisecond // calls that fail together share the result of one probe
	probeWithin = 500 * time.Millisecond // after the deadline of a call has passed
	collects    = 50 * time.Millisecond  // a probe ends this much before its call
)

// newConnecting returns nil where no probe can help: on sockets of this machine.
func newConnecting(c Config, config *tls.Config, own func() *x509.Certificate) *connecting {
	w := &connecting{own: own, timeout: c.Timeout}
	secure := strings.HasPrefix(c.Endpoints[0], "https:") // etcd's client takes the scheme of the first endpoint for all
	for _, endpoint := range c.Endpoints {
		if strings.HasPrefix(endpoint, "unix") {
			return nil
		}
		t := connect.Target{Server: connect.Etcd, URL: endpoint, CA: c.CACert, Timeout: c.Timeout}
		if secure {
			t.TLS = config
		}
		w.targets = append(w.targets, t)
	}
	return w
}

type endpointKey struct{}

// At marks the calls of a context as calls to one endpoint.
func At(ctx context.Context, endpoint string) context.Context {
	return context.WithValue(ctx, endpointKey{}, endpoint)
}

// intercept waits for a connection before gRPC sends a call. A call whose endpoints all refuse fails at once, with the causes; nothing
// was sent then.
func (w *connecting) intercept(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, send grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	endpoint, _ := ctx.Value(endpointKey{}).(string)
	if endpoint != "" || !w.connected.Load() {
		if err := w.wait(ctx, conn, endpoint); err != nil {
			return err
		}
	}
	err := send(ctx, method, req, reply, conn, opts...)
	if err != nil && ctx.Err() != nil && (strings.Contains(err.Error(), "while waiting for connections to become ready") || strings.Contains(err.Error(), "latest balancer error")) {
		return notSent{ctx.Err()} // etcd's client would drop gRPC's text, which alone shows it
	}
	return err
}

// notSent is the end of a call's context before the call was sent: a write is not in force.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

func (w *connecting) wait(ctx context.Context, conn *grpc.ClientConn, endpoint string) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(w.timeout)
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	// A host that swallows packets takes the whole time. The probe runs beside gRPC's attempt then, and costs no more.
	late := make(chan connect.Failures, 1)
	half := time.AfterFunc(time.Until(deadline)/2, func() {
		within, cancel := context.WithDeadline(ctx, deadline.Add(-collects))
		defer cancel()
		late <- w.probe(within, endpoint)
	})
	defer half.Stop()
	for {
		state := conn.GetState()
		switch state {
		case connectivity.Ready:
			if endpoint == "" {
				w.connected.Store(true)
			}
			return nil
		case connectivity.Shutdown:
			return nil // the call reports it
		case connectivity.Idle:
			conn.Connect()
		case connectivity.TransientFailure:
			if found := w.probe(ctx, endpoint); found != nil {
				return &unreachable{found}
			}
			conn.ResetConnectBackoff()
		}
		if conn.WaitForStateChange(ctx, state) {
			continue
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			return notSent{ctx.Err()}
		}
		if found := <-late; found != nil {
			return &unreachable{found}
		}
		return notSent{context.DeadlineExceeded}
	}
}

// probe tries the endpoints at the same time. It returns nil if one of them answers, or if ctx was canceled.
func (w *connecting) probe(ctx context.Context, endpoint string) connect.Failures {
	w.probing.Lock()
	defer w.probing.Unlock()
	if endpoint == "" && time.Since(w.probed) < probeAgain {
		return w.found
	}
	targets := w.targets
	if endpoint != "" {
		one := targets[0]
		one.URL = endpoint
		targets = []connect.Target{one}
	}
	failures := make(connect.Failures, len(targets))
	var all sync.WaitGroup
	for i, t := range targets {
		t.Own = w.own()
		all.Go(func() { failures[i] = t.Probe(ctx) })
	}
	all.Wait()
	if slices.Contains(failures, nil) || errors.Is(ctx.Err(), context.Canceled) {
		failures = nil
	}
	if endpoint == "" {
		w.probed, w.found = time.Now(), failures
	}
	return failures
}
