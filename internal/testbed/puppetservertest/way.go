package puppetservertest

import (
	"io"
	"net"
	"testing"
)

// Way is an address of loopback whose connections end at a server. Its port is closed until Open, as that of a server that is stopped:
// a test in which a server is away for some time needs no second start, which costs 15 s of processor time.
type Way struct {
	Address string // without the port, which is the server's
	to      string
}

// NewWay returns a closed way to a server, HOST:PORT.
func NewWay(t testing.TB, to string) *Way {
	t.Helper()
	_, port, err := net.SplitHostPort(to)
	if err != nil {
		t.Fatal(err)
	}
	address, err := freeAddress(port)
	if err != nil {
		t.Fatal(err)
	}
	return &Way{address, to}
}

// Open opens the way for the rest of the test.
func (w *Way) Open(t testing.TB) {
	t.Helper()
	_, port, _ := net.SplitHostPort(w.to)
	l, err := net.Listen("tcp", net.JoinHostPort(w.Address, port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go w.pass(from)
		}
	}()
}

func (w *Way) pass(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer to.Close()
	go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
	_, _ = io.Copy(from, to)
}
