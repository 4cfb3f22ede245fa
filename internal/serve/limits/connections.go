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
	"sync/atomic"
	"time"
)

// silentShare is the share of a listener's places that connections without a handshake may hold (1/silentShare) before
// they give way first. Below it, the address with the most connections gives way: a peer that speaks keeps nobody out,
// and the handshake of another peer has time.
const silentShare = 4

// reportInterval is the pause between two reports of one listener.
const reportInterval = time.Minute

// errTooMany is the cause of a refused connection. Its text stays inside the process.
var errTooMany = errors.New("too many connections")

// Overload means that a listener refused connections.
type Overload struct {
	Listener string
	From     string // the address with the most open connections; of IPv6 its /64
	User     string // instead of From: the user of etcd that is at its limit
	Open     int    // open connections of From or User
	Refused  int64  // connections of all addresses, since the last report
}

// Connections bounds the connections of one listener. A new connection at a limit closes another one: the oldest that has
// not completed its handshake, or, at the total, the least recently active of the address with the most. Those of this
// machine, such as serve's own client, never give way to other machines.
type Connections struct {
	Listener   string
	Total      int            // open connections
	PerAddress int            // open connections of one IPv4 address or one IPv6 /64
	PerUser    int            // open connections of one user from other machines; 0: any number
	Overloaded func(Overload) // called in a goroutine, at most once a minute; may be nil

	mu       sync.Mutex
	total    int
	open     map[string]int // by address
	users    map[string]int // established connections by user
	waiting  list.List      // of *Conn without a handshake, the oldest first
	active   list.List      // of *Conn with one
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
	own   bool          // of this machine
	user  string        // "" without one
	place *list.Element // in in
	in    *list.List    // of.waiting or of.active
	used  atomic.Int64  // the last read or write
	gone  bool
}

// Read reads from the connection.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.used.Store(time.Now().UnixNano())
	return n, err
}

// Write writes to the connection.
func (c *Conn) Write(b []byte) (int, error) {
	c.used.Store(time.Now().UnixNano())
	return c.Conn.Write(b)
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
		victim = l.givesWay()
		full = victim == nil
	}
	if victim != nil || full {
		l.refuse("")
	}
	if victim != nil {
		l.forget(victim)
	}
	admitted := &Conn{Conn: c, of: l, from: from, own: isOwn(c)}
	if !full {
		if l.open == nil {
			l.open = map[string]int{}
		}
		l.total++
		l.open[from]++
		admitted.move(&l.waiting)
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

// oldest returns the oldest connection without a handshake, of one address or of all other machines ("").
func (l *Connections) oldest(from string) *Conn {
	for e := l.waiting.Front(); e != nil; e = e.Next() {
		if c, _ := e.Value.(*Conn); c.from == from || from == "" && !c.own {
			return c
		}
	}
	return nil
}

// givesWay returns the connection that is closed at the total; nil if all are of this machine.
func (l *Connections) givesWay() *Conn {
	silent := l.oldest("")
	if silent != nil && l.waiting.Len()*silentShare >= l.Total {
		return silent
	}
	var found *Conn
	for e := l.active.Front(); e != nil; e = e.Next() {
		c, _ := e.Value.(*Conn)
		if c.own {
			continue
		}
		if found == nil || l.open[c.from] > l.open[found.from] || l.open[c.from] == l.open[found.from] && c.used.Load() < found.used.Load() {
			found = c
		}
	}
	if found == nil {
		return silent
	}
	return found
}

// idlest returns the least recently active connection of a user, other than one.
func (l *Connections) idlest(user string, other *Conn) (found *Conn) {
	for e := l.active.Front(); e != nil; e = e.Next() {
		if c, _ := e.Value.(*Conn); c.user == user && c != other && (found == nil || c.used.Load() < found.used.Load()) {
			found = c
		}
	}
	return found
}

// refuse counts a refused or closed connection, and reports the address with the most connections, or a user at its
// limit. It requires the lock.
func (l *Connections) refuse(user string) {
	l.refused++
	l.unsaid++
	if l.Overloaded == nil || l.closed || time.Since(l.reported) < reportInterval {
		return
	}
	o := Overload{Listener: l.Listener, User: user, Open: l.users[user], Refused: l.unsaid}
	for from, open := range l.open {
		if user != "" {
			break
		}
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
	c.move(nil)
	if c.user != "" {
		if l.users[c.user]--; l.users[c.user] == 0 {
			delete(l.users, c.user)
		}
	}
	l.total--
	if l.open[c.from]--; l.open[c.from] == 0 {
		delete(l.open, c.from)
	}
}

// move takes a connection out of its list and into another one, if any. It requires the lock.
func (c *Conn) move(to *list.List) {
	if c.in == to {
		return
	}
	if c.in != nil {
		c.in.Remove(c.place)
	}
	if c.in = to; to != nil {
		c.place = to.PushBack(c)
	}
}

// Established notes that the handshake is complete, and the user that it proved ("" for none). At the user's limit, it
// closes the user's least recently active connection.
func (c *Conn) Established(user string) {
	l := c.of
	l.mu.Lock()
	if c.gone {
		l.mu.Unlock()
		return
	}
	c.used.Store(time.Now().UnixNano())
	c.move(&l.active)
	var victim *Conn
	if l.PerUser > 0 && user != "" && c.user == "" && !c.own {
		if l.users == nil {
			l.users = map[string]int{}
		}
		c.user = user
		if l.users[user]++; l.users[user] > l.PerUser {
			victim = l.idlest(user, c)
			l.forget(victim)
			l.refuse(user)
		}
	}
	l.mu.Unlock()
	if victim != nil {
		_ = victim.Conn.Close()
	}
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

// isOwn reports whether a connection comes from this machine.
func isOwn(c net.Conn) bool {
	from, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return true // a socket
	}
	peer := from.Addr().Unmap()
	if peer == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || peer == netip.IPv6Loopback() {
		return true
	}
	to, err := netip.ParseAddrPort(c.LocalAddr().String())
	return err == nil && peer == to.Addr().Unmap()
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
