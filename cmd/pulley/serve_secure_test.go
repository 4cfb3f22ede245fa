package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/notify"
	"pulley/internal/pki"
	"pulley/internal/specs"
)

// said collects a program's output while it runs.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// find waits for a matching line, and returns the first group of the pattern.
func (s *said) find(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if m := re.FindStringSubmatch(s.String()); m != nil {
			return m[1]
		}
		if time.Now().After(end) {
			t.Fatalf("nothing says %s in:\n%s", pattern, s)
		}
	}
}

// serving runs `pulley serve` in this process until the test ends.
func serving(t *testing.T, args ...string) *said {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out := &said{}
	env := cli.Env{Stdin: &bytes.Buffer{}, Stdout: out, Stderr: out, Getenv: func(string) string { return "" }, Now: time.Now}
	done := make(chan int, 1)
	go func() { done <- Main(ctx, env, append([]string{"serve"}, args...)) }()
	t.Cleanup(func() {
		cancel()
		if code := <-done; code != cli.ExitDone || !strings.Contains(out.String(), "stopping: signal received") {
			t.Errorf("serve ended with %d:\n%s", code, out)
		}
	})
	return out
}

// A machine that joins through the real serve must get a certificate that etcd accepts. Its operators must be notified
// once.
func TestServeJoinsMachineAndSendsNotices(t *testing.T) {
	var mu sync.Mutex
	var notices []string
	people := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		notices = append(notices, string(body))
	}))
	defer people.Close()
	out := serving(t, "--auth", "--data-dir", t.TempDir(), "--listen", "127.0.0.1:0", "--notify", "generic+"+people.URL+"/hook?disabletls=yes")
	server := out.find(t, `joins .* at (https://\S+) with`)
	pin := out.find(t, `fingerprints are (sha256:[0-9a-f]{64}) and`)
	bundle, admin := out.find(t, `PULLEY_CACERT=(\S+)`), out.find(t, `PULLEY_KEY=(\S+)`)
	endpoint := out.find(t, `PULLEY_ENDPOINTS=(\S+)`)
	st, err := etcd.Open(etcd.Config{Endpoints: []string{endpoint}, CACert: bundle, Cert: admin, Key: admin, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	dev := model.Ref{Environment: "dev"}
	e, err := environments.Parse("dev.yaml", []byte("roles:\n  compute: {cardinality: 2}\n"))
	if err == nil {
		err = specs.In(st).PutSpec(t.Context(), e, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	token, _, err := access.TokensIn(st).Create(t.Context(), access.Token{Environment: "dev", Role: "compute", Uses: 1, Created: time.Now(), Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	pinned, err := pki.Pinned([]string{pin})
	if err != nil {
		t.Fatal(err)
	}
	c, err := join.NewClient([]string{server}, pki.Named(pinned, "localhost"), 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	answer, err := c.Join(t.Context(), key, join.Request{Token: token, Machine: join.Machine{ID: "m1"}})
	if err != nil {
		t.Fatal(err)
	}
	if answer.Node != "compute1" || len(answer.Endpoints) != 1 || answer.Endpoints[0] != endpoint {
		t.Errorf("%+v", answer)
	}
	id, err := pki.NewIdentity(key, []byte(answer.Certificate))
	if err != nil {
		t.Fatal(err)
	}
	secure, err := id.TLS([]byte(answer.CA))
	if err != nil {
		t.Fatal(err)
	}
	as, err := join.NewClient([]string{server}, secure, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // a lost answer is requested again
		if err := as.Progress(t.Context(), "", join.Progress{Environment: "dev", Node: "compute1", Machine: "m1", Step: "unlock", State: "done", Finished: true}); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		all, _, err := notify.NoticesIn(st).List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == 1 && all[0].State == notify.NoticeSent {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("notices are %+v\n%s", all, out)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(notices) != 1 || !strings.Contains(notices[0], "compute1 in dev is ready") {
		t.Errorf("the notices are %q", notices)
	}
	hosts, err := fleet.In(st).Hosts(t.Context(), dev)
	if err != nil || hosts["compute1"].MachineID != "m1" {
		t.Errorf("hosts: %v, %v", hosts, err)
	}
}
