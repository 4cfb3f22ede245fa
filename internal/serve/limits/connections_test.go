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
	spoke.Established()
	if third, _ := admit("192.0.2.1:3"); !first.closed || third.closed {
		t.Fatal("the third connection of an address did not replace its silent one")
	}
	_, v6 := admit("[2001:db8::1]:1")
	v6.Established()
	_, other := admit("[2001:db8::2]:1") // of the same /64
	other.Established()
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
					c.Established()
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
