package limits

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// peer is one end of a connection that remembers whether it was closed.
type peer struct {
	net.Conn
	from   string
	closed bool
}

func (p *peer) RemoteAddr() net.Addr { a, _ := net.ResolveTCPAddr("tcp", p.from); return a }
func (p *peer) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 100), Port: 8443} }
func (p *peer) Close() error         { p.closed = true; return nil }

// A peer that opens connections and stays silent must keep nobody out, neither from other addresses nor from its own.
func TestSilentConnectionsGiveWay(t *testing.T) {
	t.Parallel()
	l := Connections{Total: 4, PerAddress: 2}
	admit := func(from string) (*peer, *Conn) {
		p := &peer{from: from}
		c, err := l.Admit(p)
		if (err != nil) != p.closed {
			t.Fatalf("%s: %v, and closed is %v", from, err, p.closed)
		}
		return p, c
	}
	first, _ := admit("192.0.2.1:1")
	second, spoke := admit("192.0.2.1:2")
	spoke.Established("")
	if third, _ := admit("192.0.2.1:3"); !first.closed || third.closed {
		t.Fatal("the third connection of an address did not replace its silent one")
	}
	_, v6 := admit("[2001:db8::1]:1")
	v6.Established("")
	_, other := admit("[2001:db8::2]:1") // of the same /64
	other.Established("")
	if p, _ := admit("[2001:db8::ffff]:1"); !p.closed {
		t.Fatal("a /64 got more connections than its limit, and all of them are in use")
	}
	if _, c := admit("[2001:db8:0:1::1]:1"); c == nil { // another /64; the listener is full, and has one silent connection
		t.Fatal("a new address was kept out by a silent connection")
	}
	if open, refused := l.Counts(); open != 4 || refused != 3 || second.closed {
		t.Errorf("%d open, %d refused, the established one closed: %v", open, refused, second.closed)
	}
	if err := spoke.Close(); err != nil {
		t.Fatal(err)
	}
	_ = spoke.Close()
	if open, _ := l.Counts(); open != 3 {
		t.Errorf("a connection that was closed twice counts %d", open)
	}
	l.Shut()
	if p, _ := admit("192.0.2.9:1"); !p.closed {
		t.Error("a connection was admitted after the end")
	}
	if open, _ := l.Counts(); open != 2 {
		t.Errorf("%d connections are open after the end: the two in use remain", open)
	}
}

// The report names the address with the most connections, once a minute.
func TestOverloadNamesTheHeaviestAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []Overload
		l := Connections{Listener: "https", Total: 3, PerAddress: 3, Overloaded: func(o Overload) { told = append(told, o) }}
		for range 10 {
			for _, from := range []string{"192.0.2.1:1", "192.0.2.1:2", "192.0.2.2:1"} {
				if c, err := l.Admit(&peer{from: from}); err == nil {
					c.Established("")
				}
			}
		}
		synctest.Wait()
		if len(told) != 1 || told[0].From != "192.0.2.1" || told[0].Open != 2 || told[0].Refused != 1 {
			t.Fatalf("%+v", told)
		}
		<-time.After(reportInterval) // the clock of the bubble
		_, _ = l.Admit(&peer{from: "192.0.2.3:1"})
		synctest.Wait()
		if len(told) != 2 || told[1].Refused != 27 {
			t.Fatalf("%+v", told)
		}
	})
}

// Peers that complete their handshakes and speak must not keep others out, and nobody the clients of this machine.
func TestConnectionsThatSpeakGiveWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := Connections{Total: 8, PerAddress: 4}
		admit := func(from string) *peer {
			<-time.After(time.Second) // the clock of the bubble
			p := &peer{from: from}
			if c, err := l.Admit(p); err == nil {
				c.Established("")
			}
			return p
		}
		own, same := admit("127.0.0.1:1"), admit("192.0.2.100:1") // the second reaches the listener at its own address
		other := admit("192.0.2.9:1")
		var heavy []*peer
		for n := range 100 {
			heavy = append(heavy, admit("192.0.2.1:1"), admit("192.0.2.2:1"))
			if newcomer := admit("192.0.2.3:1"); newcomer.closed {
				t.Fatalf("round %d: a new address was kept out", n)
			}
		}
		if admit("[::1]:1").closed {
			t.Error("a client of this machine was kept out")
		}
		if own.closed || same.closed || other.closed {
			t.Errorf("closed: of this machine %v and %v, the only one of its address %v", own.closed, same.closed, other.closed)
		}
		if !heavy[0].closed || !heavy[1].closed {
			t.Error("the least recently active connections of the heaviest addresses are open")
		}
		if open, _ := l.Counts(); open > 8 {
			t.Errorf("%d connections are open", open)
		}
	})
}

// One user of etcd must not hold the places of all: its least recently active connection gives way to its new one.
func TestConnectionsOfOneUserAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []Overload
		l := Connections{Listener: "etcd", Total: 8, PerAddress: 8, PerUser: 2, Overloaded: func(o Overload) { told = append(told, o) }}
		admit := func(from, user string) *peer {
			<-time.After(time.Second)
			p := &peer{from: from}
			c, err := l.Admit(p)
			if err != nil {
				t.Fatal(err)
			}
			c.Established(user)
			return p
		}
		other := admit("192.0.2.1:1", "pulley/nodes/dev/b/0")
		first := admit("192.0.2.1:1", "pulley/nodes/dev/a/0")
		admit("192.0.2.1:2", "pulley/nodes/dev/a/0")
		third := admit("192.0.2.2:1", "pulley/nodes/dev/a/0")
		synctest.Wait()
		if !first.closed || third.closed || other.closed {
			t.Errorf("closed: the oldest %v, the newest %v, another user's %v", first.closed, third.closed, other.closed)
		}
		if len(told) != 1 || told[0].User != "pulley/nodes/dev/a/0" || told[0].From != "" || told[0].Open != 2 {
			t.Errorf("%+v", told)
		}
	})
}
