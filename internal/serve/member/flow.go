package member

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
)

// Bytes of answers, from before etcd reads them until gRPC wrote them, or dropped them because the caller gave up.
const (
	flowOfUser = 32 << 20
	flowInAll  = 128 << 20
)

// A connection that takes less than this within this time, while answers wait for it, is closed.
const (
	stallBytes = 64 << 10
	stallAfter = 30 * time.Second
)

// While others wait, the user that holds the most bytes for this long loses its connections, and has less for the pause.
const (
	slowAfter = 3 * time.Second
	slowPause = time.Minute
)

// flow is the bytes of answers in flight. Without it, clients that read slowly, or not at all, fill the memory of serve.
type flow struct {
	slow func(user string) // is called when connections of a user are closed

	mu     sync.Mutex
	total  int64
	users  map[string]int64
	conns  map[*outgoing]bool // those that hold bytes
	freed  chan struct{}      // closed when bytes were freed
	closed time.Time          // when a user last lost its connections
}

func newFlow(slow func(user string)) *flow {
	return &flow{slow: slow, users: map[string]int64{}, conns: map[*outgoing]bool{}, freed: make(chan struct{})}
}

// take reserves bytes of a user, and waits for them while ctx allows. A user, or all of them, may exceed the limit with one request.
// own tells after an error that the user itself holds the bytes.
func (f *flow) take(ctx context.Context, user string, n int64) (own bool, err error) {
	var slow *time.Ticker
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
		if slow == nil {
			slow = time.NewTicker(slowAfter)
			defer slow.Stop()
		}
		select {
		case <-freed:
		case <-slow.C:
			if !own {
				f.closeSlow(time.Now())
			}
		case <-ctx.Done():
			return own, errTooMany
		}
	}
}

// closeSlow closes the connections of the user that holds the most bytes: one user a second, because each makes room for many.
func (f *flow) closeSlow(now time.Time) {
	of, held := "", map[string]int64{}
	f.mu.Lock()
	if now.Sub(f.closed) < time.Second {
		f.mu.Unlock()
		return
	}
	for c := range f.conns {
		if now.Sub(c.since) >= slowAfter {
			if held[c.user] += c.held; held[c.user] > held[of] {
				of = c.user
			}
		}
	}
	if of == "" {
		f.mu.Unlock()
		return
	}
	f.closed = now
	for c := range f.conns {
		if c.user == of {
			c.free(c.held)
			c.closed = true
			go func() { _ = c.Close() }()
		}
	}
	f.users[of] += held[of]
	f.mu.Unlock()
	time.AfterFunc(slowPause, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.total += held[of]
		f.add(of, -held[of])
	})
	f.slow(of)
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
	f.mu.Lock()
	defer f.mu.Unlock()
	f.add(user, -n)
}

// answer replaces the reserved bytes of a call by those of its answer.
func (f *flow) answer(ctx context.Context, user string, reserved int64, resp any) any {
	m, is := resp.(proto.Message)
	c, n := connOf(ctx), int64(0)
	if is && c != nil {
		n = int64(proto.Size(m))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if n == 0 || mem.IsBelowBufferPoolingThreshold(int(n)) || c.closed { // gRPC does not tell when it frees few bytes
		f.add(user, -reserved)
		return resp
	}
	_ = grpc.SetSendCompressor(ctx, encoding.Identity) // the bytes would be those of a copy
	c.hold(n)
	f.add(user, n-reserved)
	return &answer{Message: m, of: c, n: n}
}

// answer is a message whose bytes its connection holds. It is the pool of them: gRPC puts them back.
type answer struct {
	proto.Message
	of      *outgoing
	n       int64
	encoded mem.Buffer
}

// Get completes the pool. gRPC does not call it.
func (a *answer) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put frees the bytes.
func (a *answer) Put(*[]byte) {
	a.encoded.Free()
	a.of.flow.mu.Lock()
	defer a.of.flow.mu.Unlock()
	a.of.free(a.n)
}

// outgoing is a connection that counts what it still has to write.
type outgoing struct {
	net.Conn
	flow    *flow
	user    string
	written atomic.Int64

	// With the lock of the flow.
	held   int64     // bytes of answers
	since  time.Time // of them
	watch  *time.Timer
	closed bool
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

// hold requires the lock, as do the next two.
func (c *outgoing) hold(n int64) {
	if c.held == 0 {
		c.since, c.flow.conns[c] = time.Now(), true
		c.watchFrom(c.since, c.written.Load())
	}
	c.held += n
}

// free returns bytes. A closed connection has none.
func (c *outgoing) free(n int64) {
	if c.closed || n == 0 {
		return
	}
	c.flow.add(c.user, -n)
	if c.held -= n; c.held == 0 {
		c.watch.Stop()
		delete(c.flow.conns, c)
	}
}

// watchFrom closes the connection unless it writes.
func (c *outgoing) watchFrom(since time.Time, written int64) {
	c.watch = time.AfterFunc(stallAfter, func() {
		c.flow.mu.Lock()
		holds, now := c.held > 0 && c.since.Equal(since), c.written.Load()
		stalled := holds && now-written < stallBytes
		if holds && !stalled {
			c.watchFrom(since, now)
		}
		c.flow.mu.Unlock()
		if stalled {
			_ = c.Close()
		}
	})
}

// Write writes to the connection.
func (c *outgoing) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

// Close closes the connection, and frees what it had to write.
func (c *outgoing) Close() error {
	c.flow.mu.Lock()
	c.free(c.held)
	c.closed = true
	c.flow.mu.Unlock()
	return c.Conn.Close()
}
