// Package limits bounds the open connections of `pulley serve`: no peer can exhaust its file descriptors, which the
// embedded etcd needs for its data.
//
// It must never make a new connection wait for an old one. netutil.LimitListener of golang.org/x/net stops accepting at
// its limit and does not look at addresses: a peer that reaches the limit keeps all others out.
package limits

import (
	"container/list"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// reportInterval is the pause between two reports of one listener.
const reportInterval = time.Minute

// errTooMany is the cause of a refused connection. Its text stays inside the process.
var errTooMany = errors.New("too many connections")

// Overload means that a listener refused connections.
type Overload struct {
	Listener string
	From     string // the address with the most open connections; of IPv6 its /64
	Open     int    // its open connections
	Refused  int64  // connections of all addresses, since the last report
}

// Connections bounds the connections of one listener. A new connection at a limit closes the oldest one that has not
// completed its handshake, if there is one: peers that only open connections keep nobody out.
type Connections struct {
	Listener   string
	Total      int            // open connections
	PerAddress int            // open connections of one IPv4 address or one IPv6 /64
	Overloaded func(Overload) // called in a goroutine, at most once a minute; may be nil

	mu       sync.Mutex
	total    int
	open     map[string]int // by address
	waiting  list.List      // of *Conn without a handshake, the oldest first
	refused  int64
	reported time.Time
	unsaid   int64 // refused since the last report
	closed   bool
}

// Conn is a counted connection. Its limit counts it until it is closed.
type Conn struct {
	net.Conn
	of    *Connections
	from  string
	place *list.Element // in of.waiting; nil once it is established or closed
	gone  bool
}

// Admit counts a connection, or closes it and returns an error.
func (l *Connections) Admit(c net.Conn) (*Conn, error) {
	from := party(c.RemoteAddr())
	l.mu.Lock()
	var victim *Conn
	full := l.closed
	switch {
	case full:
	case l.open[from] >= l.PerAddress:
		victim = l.oldest(from)
		full = victim == nil
	case l.total >= l.Total:
		victim = l.oldest("")
		full = victim == nil
	}
	if victim != nil || full {
		l.refuse()
	}
	if victim != nil {
		l.forget(victim)
	}
	admitted := &Conn{Conn: c, of: l, from: from}
	if !full {
		if l.open == nil {
			l.open = map[string]int{}
		}
		l.total++
		l.open[from]++
		admitted.place = l.waiting.PushBack(admitted)
	}
	l.mu.Unlock()
	if victim != nil {
		_ = victim.Conn.Close()
	}
	if full {
		_ = c.Close()
		return nil, errTooMany
	}
	return admitted, nil
}

// oldest returns the oldest connection without a handshake, of one address or of all ("").
func (l *Connections) oldest(from string) *Conn {
	for e := l.waiting.Front(); e != nil; e = e.Next() {
		if c, _ := e.Value.(*Conn); from == "" || c.from == from {
			return c
		}
	}
	return nil
}

// refuse counts a refused or closed connection, and reports the address with the most connections. It requires the lock.
func (l *Connections) refuse() {
	l.refused++
	l.unsaid++
	if l.Overloaded == nil || l.closed || time.Since(l.reported) < reportInterval {
		return
	}
	o := Overload{Listener: l.Listener, Refused: l.unsaid}
	for from, open := range l.open {
		if open > o.Open || open == o.Open && from < o.From {
			o.From, o.Open = from, open
		}
	}
	l.reported, l.unsaid = time.Now(), 0
	go l.Overloaded(o)
}

// forget stops counting a connection. It requires the lock.
func (l *Connections) forget(c *Conn) {
	if c.gone {
		return
	}
	c.gone = true
	c.settle()
	l.total--
	if l.open[c.from]--; l.open[c.from] == 0 {
		delete(l.open, c.from)
	}
}

// settle requires the lock.
func (c *Conn) settle() {
	if c.place != nil {
		c.of.waiting.Remove(c.place)
		c.place = nil
	}
}

// Established notes that the handshake is complete: a new connection no longer closes this one.
func (c *Conn) Established() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.settle()
}

// Close closes the connection.
func (c *Conn) Close() error {
	c.of.mu.Lock()
	c.of.forget(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// Counts returns the open connections, and the number that was refused since the start.
func (l *Connections) Counts() (open int, refused int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total, l.refused
}

// Shut closes the connections without a handshake, and admits no more: the end of a server need not wait for them.
func (l *Connections) Shut() {
	l.mu.Lock()
	l.closed = true
	var all []*Conn
	for e := l.waiting.Front(); e != nil; e = e.Next() {
		if c, ok := e.Value.(*Conn); ok {
			all = append(all, c)
		}
	}
	l.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
	}
}

// Listen returns a listener that accepts only admitted connections, as *Conn.
func (l *Connections) Listen(inner net.Listener) net.Listener { return &listener{inner, l} }

type listener struct {
	net.Listener
	limit *Connections
}

// Accept returns the next admitted connection.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if admitted, err := l.limit.Admit(c); err == nil {
			return admitted, nil
		}
	}
}

// party returns the part of an address that identifies one peer: an IPv4 address, or an IPv6 /64.
func party(a net.Addr) string {
	port, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return a.String() // a socket
	}
	if from := port.Addr().Unmap(); from.Is4() {
		return from.String()
	}
	return netip.PrefixFrom(port.Addr().WithZone(""), 64).Masked().String()
}
