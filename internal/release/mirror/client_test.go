package mirror

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pulley/internal/release/content"
)

const soon = 10 * time.Second

// Bytes must pass unchanged from server to client, over TLS and HTTP/2.
func TestClientReadsFromHandler(t *testing.T) {
	src := newStored(hello)
	for i := range 40 {
		src.deltas[fmt.Sprintf("1.0.0-rc.1/%d", i)] = fmt.Appendf(nil, "delta %d", i)
	}
	s, config := serve(t, Handler(src, errAbsent))
	c := client(t, config, soon, s.URL+"/")
	if b, err := c.Object(t.Context(), content.HashOf([]byte(hello))); err != nil || string(b) != hello {
		t.Errorf("%q, %v", b, err)
	}
	deltas, err := c.Deltas(t.Context(), "1.0.0-rc.1", 3, 39)
	if err != nil || len(deltas) != 37 || string(deltas[0]) != "delta 3" || string(deltas[36]) != "delta 39" {
		t.Errorf("%q, %v", deltas, err)
	}
	if deltas, err := c.Deltas(t.Context(), "1.0.0-rc.1", 3, 40); !errors.Is(err, ErrAbsent) || deltas != nil {
		t.Errorf("with one missing: %q, %v", deltas, err)
	}
	if _, err := c.Object(t.Context(), content.HashOf([]byte("other"))); !errors.Is(err, ErrAbsent) {
		t.Errorf("what is absent: %v", err)
	}
	resp, err := s.Client().Get(s.URL + "/content/" + content.HashOf([]byte(hello)))
	if err != nil || resp.ProtoMajor != 2 {
		t.Errorf("%v, %v", resp, err)
	}
}

// Any server of static files can be a mirror.
func TestClientReadsFromStaticFiles(t *testing.T) {
	dir := t.TempDir()
	name, err := ObjectName(content.HashOf([]byte(hello)))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "a b", "content"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a b", name), []byte(hello), 0o644); err != nil {
		t.Fatal(err)
	}
	s, config := serve(t, http.FileServer(http.Dir(dir)))
	c := client(t, config, soon, s.URL+"/a%20b/")
	if b, err := c.Object(t.Context(), content.HashOf([]byte(hello))); err != nil || string(b) != hello {
		t.Errorf("%q, %v", b, err)
	}
}

// Plain http or a mistyped URL must be refused when settings are read, and not fail later on a fleet.
func TestClientRefusesURLs(t *testing.T) {
	for u, why := range map[string]string{
		"http://mirror.example":             "plain http is for this machine only",
		"ftp://mirror.example":              "plain http is for this machine only",
		"mirror.example":                    "it has no host",
		"https://":                          "it has no host",
		"https://:8443":                     "it has no host",
		"https://mirror.example/?x":         "no ?",
		"https://mirror.example/#x":         "no ?",
		"https://mirror.example:port":       "not a URL",
		"http://127.0.0.1.example/":         "plain http is for this machine only",
		"http://localhost.example/":         "plain http is for this machine only",
		"http://user:secret@mirror.example": "user:xxxxx@",
	} {
		_, err := New([]string{u}, nil, time.Second)
		if err == nil || !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", u, err)
		}
	}
	for _, u := range []string{"https://mirror.example", "https://mirror.example:8443/a/b/", "http://127.0.0.1:80", "http://[::1]:80/x", "http://localhost"} {
		if _, err := New([]string{u}, nil, time.Second); err != nil {
			t.Errorf("%s: %v", u, err)
		}
	}
	if _, err := New(nil, nil, time.Second); err == nil {
		t.Error("no mirrors")
	}
	if _, err := New([]string{"https://mirror.example"}, nil, 0); err == nil {
		t.Error("no time")
	}
}

// A foreign mirror must not be able to block a node, fill its memory, or redirect it to an insecure address.
func TestClientBoundsMirror(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, hello) }))
	t.Cleanup(plain.Close)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		why    string
	}{
		"huge, with its length": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10000000000")
			w.WriteHeader(200)
		}, "larger than 512 KiB"},
		"huge, without an end": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}, "larger than 512 KiB"},
		"one byte too many": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, content.MaxStored+1)) }, "larger than 512 KiB"},
		"truncated": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			_, _ = io.WriteString(w, "hel")
			panic(http.ErrAbortHandler)
		}, "mirror"},
		"lying": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hellO") }, "not those that were published"},
		"empty": {func(http.ResponseWriter, *http.Request) {}, "not those that were published"},
		"never answers": {func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}, "no complete answer within"},
		"drips": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = w.Write([]byte("x"))
				_ = http.NewResponseController(w).Flush()
				select {
				case <-release:
					return
				case <-r.Context().Done():
				case <-time.After(time.Millisecond):
				}
			}
		}, "no complete answer within"},
		"sends to plain http": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, plain.URL+r.URL.Path, http.StatusFound)
		}, "from https to plain http"},
		"sends round and round": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path+"x", http.StatusFound)
		}, "redirects more than 3 times"},
		"fails":   {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, "it answers 500"},
		"forbids": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }, "it answers 403"},
		"bomb": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write([]byte{0x1f, 0x8b})
		}, "not those that were published"},
	} {
		t.Run(name, func(t *testing.T) {
			u, config := answers(t, c.answer)
			b, err := client(t, config, time.Second, u).Object(t.Context(), content.HashOf([]byte(hello)))
			if err == nil || b != nil || !strings.Contains(err.Error(), c.why) || !strings.Contains(err.Error(), u) {
				t.Errorf("%d bytes, %v", len(b), err)
			}
		})
	}
}

// Many mirrors redirect to other servers, within https.
func TestClientFollowsRedirectsWithinHTTPS(t *testing.T) {
	var hops atomic.Int32
	u, config := answers(t, func(w http.ResponseWriter, r *http.Request) {
		if hops.Add(1) <= maxRedirects {
			http.Redirect(w, r, r.URL.Path+"x", http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, hello)
	})
	if b, err := client(t, config, soon, u).Object(t.Context(), content.HashOf([]byte(hello))); err != nil || string(b) != hello {
		t.Errorf("%q, %v", b, err)
	}
}

// A mirror with an untrusted certificate is refused.
func TestClientChecksCertificates(t *testing.T) {
	u, _ := answers(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, hello) })
	if _, err := client(t, &tls.Config{MinVersion: tls.VersionTLS12}, soon, u).Object(t.Context(), content.HashOf([]byte(hello))); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("%v", err)
	}
}

// One mirror that is down, outdated or wrong must not block a node from using the others.
func TestClientTriesNextMirror(t *testing.T) {
	src := newStored(hello)
	good, config := serve(t, Handler(src, errAbsent))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := "https://" + listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	var lies, lacks atomic.Int32
	lying, _ := answers(t, func(w http.ResponseWriter, _ *http.Request) { lies.Add(1); _, _ = io.WriteString(w, "hellO") })
	lagging, _ := answers(t, func(w http.ResponseWriter, _ *http.Request) { lacks.Add(1); w.WriteHeader(404) })
	c := client(t, config, soon, dead, lying, lagging, good.URL)
	for range 5 {
		if b, err := c.Object(t.Context(), content.HashOf([]byte(hello))); err != nil || string(b) != hello {
			t.Fatalf("%q, %v", b, err)
		}
	}
	if lies.Load() != maxFailures {
		t.Errorf("a mirror that lies was asked %d times", lies.Load())
	}
	if lacks.Load() != 5 {
		t.Errorf("a mirror that only lags was asked %d times", lacks.Load())
	}
	_, err = c.Object(t.Context(), content.HashOf([]byte("other")))
	for _, u := range []string{dead, lying, lagging, good.URL} {
		if err == nil || !strings.Contains(err.Error(), u) {
			t.Errorf("the error does not name %s: %v", u, err)
		}
	}
}

// If all nodes start at the same mirror, it is overloaded while the others are idle.
func TestNodesSpreadOverMirrors(t *testing.T) {
	urls := []string{"https://a.example", "https://b.example", "https://c.example"}
	first := map[string]int{}
	for i := range 300 {
		c := client(t, nil, soon, urls...)
		c.StartAt(fmt.Sprintf("compute%d", i))
		again := client(t, nil, soon, urls...)
		again.StartAt(fmt.Sprintf("compute%d", i))
		if c.mirrors[0].base != again.mirrors[0].base {
			t.Fatal("a node changes its mirror from run to run")
		}
		seen := map[string]bool{}
		for _, m := range c.mirrors {
			seen[m.base] = true
		}
		if len(seen) != len(urls) {
			t.Fatalf("a mirror got lost: %v", seen)
		}
		first[c.mirrors[0].base]++
	}
	for _, u := range urls {
		if first[u] < 50 {
			t.Errorf("the nodes start at %v", first)
		}
	}
}

// Invalid names are refused before any request.
func TestClientAsksOnlyForNames(t *testing.T) {
	var asked atomic.Int32
	u, config := answers(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	c := client(t, config, soon, u)
	for _, hash := range []string{"", "../x", strings.Repeat("A", 64)} {
		if _, err := c.Object(t.Context(), hash); err == nil {
			t.Errorf("object %q", hash)
		}
	}
	for _, line := range []string{"", "..", "a/b", ".x", strings.Repeat("1", 65)} {
		if _, err := c.Deltas(t.Context(), line, 1, 2); err == nil {
			t.Errorf("line %q", line)
		}
	}
	for _, span := range [][2]int64{{2, 1}, {-1, 1}, {0, maxDeltas}, {maxSeq, maxSeq + 1}} {
		if _, err := c.Deltas(t.Context(), "1.0.0", span[0], span[1]); err == nil {
			t.Errorf("deltas %v", span)
		}
	}
	if asked.Load() > 0 {
		t.Errorf("%d requests were made", asked.Load())
	}
}

// A node that cancels a download must not wait for a mirror, nor count it as failed.
func TestClientEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	u, config := answers(t, func(_ http.ResponseWriter, r *http.Request) { cancel(); <-r.Context().Done() })
	c := client(t, config, time.Hour, u)
	if _, err := c.Object(ctx, content.HashOf([]byte(hello))); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if c.mirrors[0].breaker.failures != 0 {
		t.Error("the mirror is blamed")
	}
}

func TestURLsAreShownWithoutPasswords(t *testing.T) {
	c := client(t, nil, time.Second, (&url.URL{Scheme: "http", Host: "127.0.0.1:1", User: url.UserPassword("ann", "secret")}).String())
	if _, err := c.Object(t.Context(), content.HashOf(nil)); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}
