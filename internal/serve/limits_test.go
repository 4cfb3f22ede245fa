package serve

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/serve/limits"
	"pulley/internal/testbed/observe"
)

// A client must not be able to block the agent for new machines. It could hold every transfer, or request unknown
// programs, each of which makes etcd read the published list.
func TestClientCannotBlockAgentDownloads(t *testing.T) {
	t.Parallel()
	program := make([]byte, 16<<20)
	random := rand.NewChaCha8([32]byte{1})
	if _, err := random.Read(program); err != nil {
		t.Fatal(err)
	}
	src := pack(t, program)
	agents, err := newAgents(src, t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	agents.beginsSlow, agents.minRate = time.Second, 1<<40
	server := httptest.NewServer(Web{Agents: agents})
	defer server.Close()
	if code, b := fetchAgent(t, server.URL, src.program.SHA256); code != http.StatusOK || len(b) != len(program) {
		t.Fatalf("%d, %d bytes", code, len(b))
	}
	reads := src.reads.Load()
	for i := range 200 {
		if code, _ := fetchAgent(t, server.URL, fmt.Sprintf("%064x", i)); code != http.StatusNotFound {
			t.Errorf("one that was not published: %d", code)
		}
	}
	if more := src.reads.Load() - reads; more > 100 {
		t.Errorf("200 unknown digests had etcd asked %d times", more)
	}

	// Clients that never read their answer.
	for range maxOfOne {
		c, err := net.Dial("tcp", server.Listener.Addr().String()) //nolint:noctx // of this process
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprintf(c, "GET %s%s HTTP/1.1\r\nHost: x\r\n\r\n", agentPath, src.program.SHA256); err != nil {
			t.Fatal(err)
		}
	}
	observe.Eventually(t, "this address has all its places", func() bool {
		agents.mu.Lock()
		defer agents.mu.Unlock()
		return agents.of["127.0.0.1"] == maxOfOne
	})
	ask := func(from string) int {
		r := httptest.NewRequest(http.MethodGet, agentPath+src.program.SHA256, nil)
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		agents.ServeHTTP(w, r)
		return w.Code
	}
	if code := ask("127.0.0.1:1"); code != http.StatusServiceUnavailable {
		t.Errorf("one more for the same address: %d", code)
	}
	if code := ask("10.0.0.1:1"); code != http.StatusOK {
		t.Errorf("another address: %d", code)
	}
	observe.Eventually(t, "those that do not read are cut off", func() bool { return ask("127.0.0.1:1") == http.StatusOK })
}

// serve writes a node's boot ID into keys: the node must not choose its length.
func TestInvalidBootIDsAreDropped(t *testing.T) {
	t.Parallel()
	w := newWatcher(time.Now, slog.New(slog.DiscardHandler))
	says := func(boot, machine string) {
		w.saw(fleet.NodeWrite{Ref: dev, Node: "compute1", Status: &model.Status{Boot: boot, Machine: machine}})
	}
	long := strings.Repeat("x", 1000)
	for range 3 {
		says(long, "m")
		says("a\nb", "m")
	}
	if _, duplicates := w.take(); len(duplicates) > 0 {
		t.Errorf("%+v", duplicates)
	}
	for _, boot := range []string{"a", "b", "a"} {
		says(boot, long)
	}
	_, duplicates := w.take()
	if one := duplicates[nodeKey{dev, "compute1"}]; one.boot != "a" || one.other != "b" || one.machine != "" {
		t.Errorf("%+v", one)
	}
}

// Clients without a certificate that send requests over TLS must not hold all places of the web listener.
func TestClientsThatSpeakKeepNobodyOut(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // of this process
	if err != nil {
		t.Fatal(err)
	}
	bounds := &limits.Connections{Total: 8, PerAddress: 2}
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	_ = server.Listener.Close()
	server.Listener, server.Config.ConnState = bounds.Listen(inner), established
	server.StartTLS()
	defer server.Close()
	ask := func(from ...byte) {
		t.Helper()
		for _, last := range from {
			transport, _ := server.Client().Transport.(*http.Transport)
			transport = transport.Clone()
			t.Cleanup(transport.CloseIdleConnections)
			transport.DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, last)}}).DialContext
			resp, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Get(server.URL) //nolint:noctx // it has a deadline
			if err != nil {
				t.Fatalf("address %d: %v", last, err)
			}
			_, _ = io.Copy(io.Discard, resp.Body) // else the client closes the connection
			_ = resp.Body.Close()
		}
	}
	ask(1, 1, 2, 2, 3, 3, 4, 4) // four addresses hold a quarter each
	if open, _ := bounds.Counts(); open != 8 {
		t.Fatalf("%d connections are open", open)
	}
	ask(5, 6, 1, 7)
	if open, _ := bounds.Counts(); open != 8 {
		t.Errorf("%d connections are open after four more", open)
	}
}
