package member

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/peer"
)

// Bytes of answers, from before etcd reads them until the client's connection took them.
const (
	flowOfUser = 32 << 20
	flowInAll  = 128 << 20
)

// A connection that takes less than this within this time, while answers wait for it, is closed.
const (
	stallBytes = 64 << 10
	stallAfter = 30 * time.Second
)

// flow is the bytes of answers in flight. Without it, clients that read slowly, or not at all, fill the memory of serve.
type flow struct {
	mu    sync.Mutex
	total int64
	users map[string]int64
	freed chan struct{} // closed when bytes were freed
}

func newFlow() *flow { return &flow{users: map[string]int64{}, freed: make(chan struct{})} }

// take reserves bytes of a user, and waits for them while ctx allows. A user, or all of them, may exceed the limit with one request.
// own tells after an error that the user itself holds the bytes.
func (f *flow) take(ctx context.Context, user string, n int64) (own bool, err error) {
	for {
		f.mu.Lock()
		of := f.users[user]
		own = of > 0 && of+n > flowOfUser
		if !own && (f.total == 0 || f.total+n <= flowInAll) {
			f.add(user, n)
			f.mu.Unlock()
			return false, nil
		}
		freed := f.freed
		f.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return own, errTooMany
		}
	}
}

// add requires the lock.
func (f *flow) add(user string, n int64) {
	f.total += n
	if f.users[user] += n; f.users[user] == 0 {
		delete(f.users, user)
	}
	if n < 0 {
		close(f.freed)
		f.freed = make(chan struct{})
	}
}

func (f *flow) give(user string, n int64) {
	if n == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.add(user, -n)
}

// answered replaces the reserved bytes by those of the answer, which its connection holds until it has written them.
func (f *flow) answered(c *outgoing, user string, reserved, sent int64) {
	held := int64(0)
	if c != nil {
		held = c.hold(min(sent, reserved))
	}
	f.give(user, reserved-held)
}

// outgoing is a connection that counts what it still has to write.
type outgoing struct {
	net.Conn
	flow *flow
	user string

	mu      sync.Mutex
	held    int64 // bytes of answers
	written int64
	closed  bool
	watch   *time.Timer // while bytes are held
}

// address carries a connection to the calls that it transports.
type address struct {
	net.Addr
	of *outgoing
}

// RemoteAddr returns the address of the client.
func (c *outgoing) RemoteAddr() net.Addr { return address{c.Conn.RemoteAddr(), c} }

func connOf(ctx context.Context) *outgoing {
	if p, ok := peer.FromContext(ctx); ok {
		if a, is := p.Addr.(address); is {
			return a.of
		}
	}
	return nil
}

// hold counts an answer, and returns the bytes that the connection frees later.
func (c *outgoing) hold(n int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || n == 0 {
		return 0
	}
	if c.held += n; c.watch == nil {
		c.watchFrom(c.written)
	}
	return n
}

// watchFrom closes the connection unless it writes. It requires the lock.
func (c *outgoing) watchFrom(written int64) {
	c.watch = time.AfterFunc(stallAfter, func() {
		c.mu.Lock()
		c.watch = nil
		stalled := c.held > 0 && c.written-written < stallBytes
		if c.held > 0 && !stalled && !c.closed {
			c.watchFrom(c.written)
		}
		c.mu.Unlock()
		if stalled {
			_ = c.Close()
		}
	})
}

// Write writes to the connection.
func (c *outgoing) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.mu.Lock()
	c.written += int64(n)
	freed := min(c.held, int64(n))
	c.held -= freed
	if c.held == 0 && c.watch != nil {
		c.watch.Stop()
		c.watch = nil
	}
	c.mu.Unlock()
	c.flow.give(c.user, freed)
	return n, err
}

// Close closes the connection, and frees what it had to write.
func (c *outgoing) Close() error {
	c.mu.Lock()
	freed := c.held
	c.held, c.closed = 0, true
	if c.watch != nil {
		c.watch.Stop()
		c.watch = nil
	}
	c.mu.Unlock()
	c.flow.give(c.user, freed)
	return c.Conn.Close()
}
