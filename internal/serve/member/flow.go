package member

import (
	"context"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"pulley/internal/pki"
)

// Bytes of answers, from before etcd reads them until gRPC wrote them, or dropped them because the caller gave up.
const (
	flowOfUser = 32 << 20
	flowInAll  = 128 << 20 // of nodes, and of all others: nodes never keep operators waiting
)

// A connection that takes less than this within this time, while answers wait for it, is closed.
const (
	stallBytes = 64 << 10
	stallAfter = 30 * time.Second
)

// When a read has waited for slowWait, the slow user that holds the most bytes loses its connections, and has less for the pause.
// Clients wait for 5 seconds.
const (
	slowWait  = time.Second
	slowCheck = 250 * time.Millisecond  // from then on
	slowAfter = 1500 * time.Millisecond // of measurement
	slowPause = time.Minute

	slowNetwork = 30 * time.Second // in which the network of serve brings all that is in flight
)

// flow is the bytes of answers in flight. Without it, clients that read slowly, or not at all, fill the memory of serve.
type flow struct {
	slow func(user string) // is called once for each MiB of answers that are dropped

	mu    sync.Mutex
	total map[bool]int64 // by isNode
	users map[string]int64
	conns map[*outgoing]bool // those that hold bytes
	freed chan struct{}      // closed when bytes were freed
}

func isNode(user string) bool {
	name, err := pki.ParseName(user)
	return err == nil && name.Kind == pki.KindNode
}

func newFlow(slow func(user string)) *flow {
	return &flow{slow: slow, total: map[bool]int64{}, users: map[string]int64{}, conns: map[*outgoing]bool{}, freed: make(chan struct{})}
}

// take reserves bytes of a user, and waits for them while ctx allows. A user may exceed its limit with one request. What a user holds
// must be free once more: many users that take all they can leave room for others.
// own tells after an error that the user itself holds the bytes.
func (f *flow) take(ctx context.Context, user string, n int64) (own bool, err error) {
	node := isNode(user)
	var check *time.Ticker
	for late := false; ; {
		f.mu.Lock()
		of := f.users[user]
		own = of > 0 && of+n > flowOfUser
		fits := func() bool { return f.total[node]+f.users[user]+n <= flowInAll }
		closed := map[string]int64{}
		for late && !own && !fits() {
			slow, held := f.closeSlow(node)
			if slow == "" {
				break
			}
			closed[slow] += held
		}
		took := !own && fits()
		if took {
			f.add(user, n)
		}
		freed := f.freed
		f.mu.Unlock()
		for slow, held := range closed {
			for range held>>20 + 1 {
				f.slow(slow)
			}
		}
		if took {
			return false, nil
		}
		if check == nil {
			check = time.NewTicker(slowWait)
			defer check.Stop()
		}
		select {
		case <-freed:
			late = false
		case <-check.C:
			late = true
			check.Reset(slowCheck)
		case <-ctx.Done():
			return own, errTooMany
		}
	}
}

// closeSlow closes the connections of the slow user that holds the most bytes. If all together take what they hold soon, the network of serve is
// slow, and none of them. It requires the lock.
func (f *flow) closeSlow(node bool) (of string, n int64) {
	held, now := map[string]int64{}, time.Now()
	var all, soon float64
	for c := range f.conns {
		took, written := now.Sub(c.measured), float64(c.written.Load()-c.before)
		if c.node != node || took < slowAfter {
			continue
		}
		all, soon = all+float64(c.held), soon+written/took.Seconds()*slowNetwork.Seconds()
		if c.slow(now) {
			if held[c.user] += c.held; held[c.user] > held[of] {
				of = c.user
			}
		}
	}
	if of == "" || all <= soon {
		return "", 0
	}
	for c := range f.conns {
		if c.user == of {
			n += c.held
			c.free(c.held)
			c.closed = true
			go func() { _ = c.Close() }()
		}
	}
	debt := 2 * n // with half of its share dropped it gets nothing: many users would hold the other half next
	f.users[of] += debt
	time.AfterFunc(slowPause, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.total[node] += debt
		f.add(of, -debt)
	})
	return of, n
}

// add requires the lock.
func (f *flow) add(user string, n int64) {
	f.total[isNode(user)] += n
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
	runtime.SetFinalizer(a, nil)
	a.free()
}

// watch frees the bytes when nothing refers to them any more: gRPC drops what it is to write for a stream that has ended, and does not put it back.
func (a *answer) watch() { runtime.SetFinalizer(a, (*answer).free) }

func (a *answer) free() {
	if a.encoded != nil {
		a.encoded.Free()
	}
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
	node   bool
	held   int64     // bytes of answers
	since  time.Time // of them
	watch  *time.Timer
	closed bool

	measured time.Time // when it had written this much
	before   int64
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

// hold requires the lock, as does free.
func (c *outgoing) hold(n int64) {
	if c.held == 0 {
		c.since, c.flow.conns[c] = time.Now(), true
		c.node, c.measured, c.before = isNode(c.user), c.since, c.written.Load()
		c.watchFrom(c.since, c.before)
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

// slow reports whether the connection needs longer for what it holds than anybody waits. It requires the lock.
func (c *outgoing) slow(now time.Time) bool {
	took, written := now.Sub(c.measured), c.written.Load()
	if took < slowAfter {
		return false
	}
	slow := float64(c.held)*took.Seconds() > float64(written-c.before)*waitAtMost.Seconds()
	if !slow {
		c.measured, c.before = now, written
	}
	return slow
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
