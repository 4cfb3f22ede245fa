package openstack_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/machines/drivers/openstack"
	"pulley/internal/testbed/novatest"
)

const gateway = "<html>Bad Gateway</html>"

// orders returns the number of orders that a cloud received.
func orders(cloud *novatest.Cloud) int {
	return len(slices.DeleteFunc(cloud.Asked(), func(s string) bool { return !strings.HasPrefix(s, "POST ") || !strings.HasSuffix(s, "/servers") }))
}

// Nova continues with a request where a gateway has given up. A second order would make two machines.
func TestCreateWaitsAfterGatewayTimeout(t *testing.T) {
	t.Parallel()
	for what, f := range map[string]novatest.Fault{
		"a timeout":        {Status: http.StatusGatewayTimeout, Body: gateway},
		"an empty 500":     {Status: http.StatusInternalServerError, Body: " "},
		"a connection cut": {Lost: true},
	} {
		cloud, file := cloud(t, novatest.Config{})
		f.Method, f.Path, f.Late = "POST", "/servers", 100*time.Millisecond
		cloud.Inject(f)
		m := create(t, open(t, file), order("compute1"))
		if servers := cloud.Servers(); len(servers) != 1 || servers[0].ID != m.ID || orders(cloud) != 1 {
			t.Errorf("%s: %d orders made %+v", what, orders(cloud), servers)
		}
	}
}

// A second call must wait for the order of the first one, too.
func TestSecondCreateWaitsForFirstOrder(t *testing.T) {
	t.Parallel()
	cloud, file := cloud(t, novatest.Config{})
	d := open(t, file)
	cloud.Inject(novatest.Fault{Method: "POST", Path: "/servers", Status: http.StatusGatewayTimeout, Body: gateway, Late: 300 * time.Millisecond})
	if m, err := d.Create(short(t, 100*time.Millisecond), order("compute1")); err == nil || kindOf(err) != "" {
		t.Fatalf("Create returned %+v, %v", m, err)
	}
	create(t, d, order("compute1"))
	if n := len(cloud.Servers()); n != 1 || orders(cloud) != 1 {
		t.Errorf("%d orders made %d servers", orders(cloud), n)
	}
}

// Nova continues with a request after its connection has closed.
func TestServerOfClosedConnectionIsFound(t *testing.T) {
	t.Parallel()
	cloud, file := cloud(t, novatest.Config{})
	d := open(t, file)
	cloud.Inject(novatest.Fault{Method: "POST", Path: "/servers", Delay: 300 * time.Millisecond})
	if m, err := d.Create(short(t, 100*time.Millisecond), order("compute1")); err == nil || kindOf(err) != "" {
		t.Fatalf("Create returned %+v, %v", m, err)
	}
	create(t, d, order("compute1"))
	if n := len(cloud.Servers()); n != 1 || orders(cloud) != 1 {
		t.Errorf("%d orders made %d servers", orders(cloud), n)
	}
}

// An order that a gateway did not pass on must be repeated, after the wait for its server.
func TestCreateAfterGatewayError(t *testing.T) {
	const late = 50 * time.Millisecond
	cloud, file := cloud(t, novatest.Config{})
	d := open(t, file, func(c *openstack.Config) { c.Late = late })
	cloud.Inject(novatest.Fault{Method: "POST", Path: "/servers", Status: http.StatusBadGateway, Body: gateway})
	start := time.Now()
	_, err := d.Create(t.Context(), order("compute1"))
	if err == nil || kindOf(err) != "" || !strings.Contains(err.Error(), "502: Bad Gateway") || len(cloud.Servers()) != 0 || time.Since(start) < late {
		t.Errorf("Create returned %v after %v", err, time.Since(start))
	}
	create(t, d, order("compute1"))
}

// An order that was not sent, or that Nova refused, needs no wait.
func TestCreateDoesNotWaitForRefusedOrder(t *testing.T) {
	ctx := short(t, 10*time.Second)
	for what, faults := range map[string][]novatest.Fault{
		"Nova's error":   {{Method: "POST", Path: "/servers", Status: 500}},
		"come again":     {{Method: "POST", Path: "/servers", Status: 503, Body: gateway, Header: map[string]string{"Retry-After": "5"}}},
		"locked out":     {{Method: "POST", Path: "/servers", Status: 401}, {Method: "POST", Path: "/auth/tokens", Status: 401}},
		"over the quota": {{Method: "POST", Path: "/servers", Status: 403, Body: `{"forbidden": {"code": 403, "message": "Quota exceeded for ram"}}`}},
	} {
		cloud, file := cloud(t, novatest.Config{})
		d := open(t, file)
		for _, f := range faults {
			cloud.Inject(f)
		}
		if _, err := d.Create(ctx, order("compute1")); err == nil || ctx.Err() != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if create(t, d, order("compute1")); ctx.Err() != nil {
			t.Fatalf("%s: the next Create waits", what)
		}
	}

	// The cloud closes just before the order.
	cloud := novatest.New(novatest.Config{})
	var down func()
	server, file := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down != nil && strings.HasSuffix(r.URL.Path, "/servers") { // the check whether all of the cloud answers
			down()
		}
		w.Header().Set("Connection", "close")
		cloud.ServeHTTP(w, r)
	}))
	d := open(t, file)
	create(t, d, order("compute1")) // it knows the names now, and that all of the cloud answers
	down = func() { _ = server.Listener.Close() }
	if _, err := d.Create(ctx, order("compute2")); err == nil || !strings.Contains(err.Error(), "connection refused") || ctx.Err() != nil {
		t.Errorf("without a cloud: %v", err)
	}
	listener, err := net.Listen("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	back := httptest.NewUnstartedServer(cloud)
	_ = back.Listener.Close()
	back.Listener = listener
	back.Start()
	t.Cleanup(back.Close)
	if _, err := d.Create(ctx, order("compute2")); err != nil {
		t.Errorf("with the cloud again: %v", err)
	}
}
