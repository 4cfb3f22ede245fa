package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"pulley/internal/release/content"
)

const hello = "hello"

func get(h http.Handler, method, path string) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Proxies and nodes cache immutable values, and must not cache values that may change.
func TestHandlerSetsCacheHeaders(t *testing.T) {
	src := newStored(hello)
	src.deltas["1.0.0/7"] = []byte("delta")
	h := Handler(src, errAbsent)
	path := "/content/" + content.HashOf([]byte(hello))

	r := get(h, "GET", path)
	if r.StatusCode != 200 || body(t, r) != hello {
		t.Fatalf("an object: %s", r.Status)
	}
	for header, want := range map[string]string{
		"Cache-Control": "public, max-age=31536000, immutable", "ETag": `"` + content.HashOf([]byte(hello)) + `"`,
		"Content-Type": "application/octet-stream", "X-Content-Type-Options": "nosniff", "Content-Length": "5",
	} {
		if got := r.Header.Get(header); got != want {
			t.Errorf("%s is %q, want %q", header, got, want)
		}
	}
	r = get(h, "HEAD", path)
	if r.StatusCode != 200 || r.Header.Get("Content-Length") != "5" || body(t, r) != "" {
		t.Errorf("HEAD: %s with %v", r.Status, r.Header)
	}
	r = get(h, "GET", "/deltas/1.0.0/000000007")
	if r.StatusCode != 200 || body(t, r) != "delta" || strings.Contains(r.Header.Get("Cache-Control"), "immutable") {
		t.Errorf("a delta, whose place another one may take: %s with %v", r.Status, r.Header)
	}
	known := httptest.NewRequest("GET", path, nil)
	known.Header.Set("If-None-Match", `"`+content.HashOf([]byte(hello))+`"`)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, known)
	if w.Code != http.StatusNotModified {
		t.Errorf("what is known already is sent again: %d", w.Code)
	}
}

// Every client of the network can send requests. They must get content only, and only by its names.
func TestHandlerRefusesOtherPaths(t *testing.T) {
	src := newStored(hello)
	h := Handler(src, errAbsent)
	hash := content.HashOf([]byte(hello))
	for path, want := range map[string]int{
		"/":                                    404,
		"/releases/1.0.0":                      404,
		"/environments/dev/spec":               404,
		"/content":                             404,
		"/content/":                            400,
		"/content/" + hash[:63]:                400,
		"/content/" + hash + "0":               400,
		"/content/" + hash + "/":               400,
		"/content/" + strings.ToUpper(hash):    400,
		"/content/%" + "68" + hash[1:]:         400,
		"/content/../releases/1.0.0":           400,
		"/content/..%2freleases%2f1.0.0":       400,
		"//content/" + hash:                    404,
		"/deltas/":                             400,
		"/deltas/1.0.0":                        400,
		"/deltas/1.0.0/":                       400,
		"/deltas/1.0.0/1":                      400,
		"/deltas/1.0.0/-00000001":              400,
		"/deltas/1.0.0/+00000001":              400,
		"/deltas/1.0.0/0000000001":             400,
		"/deltas/../000000001":                 400,
		"/deltas/1.0.0/../000000001":           400,
		"/deltas/1%2f0/000000001":              400,
		"/content/" + strings.Repeat("0", 64):  404,
		"/deltas/1.0.0/000000001":              404,
		"/deltas/1.0.0-rc1.2/000000000?x=1":    404,
		"/content/" + hash + "?" + "anything=": 200,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		raw, query, _ := strings.Cut(path, "?")
		r.URL.Path, r.URL.RawPath, r.URL.RawQuery = raw, raw, query
		if strings.Contains(raw, "%") {
			r = httptest.NewRequest("GET", path, nil)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
		if want != 200 && w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: a refusal may be kept: %v", path, w.Header())
		}
	}
	for _, method := range []string{"PUT", "POST", "DELETE", "OPTIONS", "PATCH"} {
		if r := get(h, method, "/content/"+hash); r.StatusCode != 405 || r.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %s with %v", method, r.Status, r.Header)
		}
	}
}

// After 404, a node continues at once; after 503, it may repeat the request. Neither response contains etcd's
// addresses.
func TestHandlerSeparatesAbsentFromUnreachable(t *testing.T) {
	src := newStored(hello)
	h := Handler(src, errAbsent)
	path := "/content/" + content.HashOf([]byte(hello))
	src.fail(errors.New("etcd is unreachable at https://10.1.2.3:2379"))
	r := get(h, "GET", path)
	if r.StatusCode != 503 || r.Header.Get("Retry-After") == "" || strings.Contains(body(t, r), "10.1.2.3") {
		t.Errorf("unreachable: %s with %v", r.Status, r.Header)
	}
	src.fail(nil)
	if r := get(h, "GET", path); r.StatusCode != 200 {
		t.Errorf("a failure was kept: %s", r.Status)
	}
	src.fail(errors.New("etcd is unreachable"))
	if r := get(h, "GET", path); r.StatusCode != 200 {
		t.Errorf("what was read is not kept: %s", r.Status)
	}
}

// A damaged value sent as immutable would stay in every proxy for a year.
func TestHandlerDoesNotServeDamage(t *testing.T) {
	src := newStored(hello)
	hash := content.HashOf([]byte(hello))
	src.objects[hash] = []byte("hellO")
	h := Handler(src, errAbsent)
	if r := get(h, "GET", "/content/"+hash); r.StatusCode != 500 || r.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%s with %v", r.Status, r.Header)
	}
	src.objects[hash] = []byte(hello)
	if r := get(h, "GET", "/content/"+hash); r.StatusCode != 200 {
		t.Errorf("after the repair: %s", r.Status)
	}
}

// Five thousand nodes that install one release at the same time must not cause five thousand reads of etcd.
func TestManyRequestsAreOneRead(t *testing.T) {
	src := newStored(hello)
	src.gate = make(chan struct{})
	h := Handler(src, errAbsent)
	path := "/content/" + content.HashOf([]byte(hello))
	var clients sync.WaitGroup
	codes := make(chan int, 200)
	for range 200 {
		clients.Go(func() { codes <- get(h, "GET", path).StatusCode })
	}
	for end := time.Now().Add(10 * time.Second); len(h.(*handler).requests) < 200; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the requests never came together")
		}
	}
	close(src.gate)
	clients.Wait()
	for range 200 {
		if code := <-codes; code != 200 {
			t.Errorf("one of them got %d", code)
		}
	}
	if n := src.count(); n != 1 {
		t.Errorf("etcd was read %d times", n)
	}
}

// Many clients must not use all memory: the handler answers excess requests with Retry-After.
func TestTooManyRequestsGetRetryAfter(t *testing.T) {
	src := newStored(hello)
	src.gate = make(chan struct{})
	h := Handler(src, errAbsent).(*handler)
	path := "/content/" + content.HashOf([]byte(hello))
	var clients sync.WaitGroup
	for range maxRequests {
		clients.Go(func() { get(h, "GET", path) })
	}
	for end := time.Now().Add(10 * time.Second); len(h.requests) < maxRequests; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the requests never came together")
		}
	}
	if r := get(h, "GET", path); r.StatusCode != 503 || r.Header.Get("Retry-After") == "" {
		t.Errorf("one too many: %s", r.Status)
	}
	close(src.gate)
	clients.Wait()
	if r := get(h, "GET", path); r.StatusCode != 200 {
		t.Errorf("after the crowd: %s", r.Status)
	}
}

// The memory of a long-running server must not grow with the published releases.
func TestCacheKeepsUsedObjects(t *testing.T) {
	now := time.Now()
	c := newCache(100, func() time.Time { return now })
	reads := 0
	read := func(n name, size int, keep time.Duration) {
		t.Helper()
		b, err := c.get(t.Context(), n, keep, errAbsentOnly, func(context.Context) ([]byte, error) {
			reads++
			return bytes.Repeat([]byte("x"), size), nil
		})
		if err != nil || len(b) != size {
			t.Fatalf("%v, %d bytes", err, len(b))
		}
		if c.bytes > 100 {
			t.Fatalf("%d bytes are kept", c.bytes)
		}
	}
	want := func(n int) {
		t.Helper()
		if reads != n {
			t.Errorf("%d reads, want %d", reads, n)
		}
	}
	a, b, d := name{hash: "a"}, name{hash: "b"}, name{hash: "d"}
	read(a, 40, 0)
	read(b, 40, 0)
	read(a, 40, 0)
	want(2)
	read(d, 40, 0) // b is the least recently used
	want(3)
	read(a, 40, 0)
	want(3)
	read(b, 40, 0)
	want(4)
	read(name{hash: "huge"}, 101, 0)
	read(name{hash: "huge"}, 101, 0)
	want(6)
	delta := name{line: "1.0.0", seq: 1}
	read(delta, 10, time.Minute)
	read(delta, 10, time.Minute)
	want(7)
	now = now.Add(time.Minute)
	read(delta, 10, time.Minute)
	want(8)
}

func errAbsentOnly(err error) bool { return errors.Is(err, errAbsent) }

// A client that requests thousands of names and disconnects must not leave thousands of reads. It gets Retry-After.
func TestRequestsThatAreGivenUpLeaveBoundedWork(t *testing.T) {
	src := newStored()
	src.gate = make(chan struct{})
	h := Handler(src, errAbsent).(*handler)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range 20 * maxFlights {
		r := httptest.NewRequest("GET", fmt.Sprintf("/content/%064x", i), nil).WithContext(gone)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 503 || w.Header().Get("Retry-After") == "" {
			t.Fatalf("%d: %d", i, w.Code)
		}
	}
	h.cache.mu.Lock()
	n := len(h.cache.flights)
	h.cache.mu.Unlock()
	if n > maxFlights {
		t.Errorf("%d reads are left behind", n)
	}
	if r := get(h, "GET", fmt.Sprintf("/content/%064x", 1<<40)); r.StatusCode != 503 || !strings.Contains(body(t, r), "too many") {
		t.Errorf("one too many: %s", r.Status)
	}
	close(src.gate)
	for end := time.Now().Add(10 * time.Second); n > 0; time.Sleep(time.Millisecond) {
		h.cache.mu.Lock()
		n = len(h.cache.flights)
		h.cache.mu.Unlock()
		if time.Now().After(end) {
			t.Fatalf("%d reads never end", n)
		}
	}
	if r := get(h, "GET", fmt.Sprintf("/content/%064x", 1<<40)); r.StatusCode != 404 {
		t.Errorf("after the crowd: %s", r.Status)
	}
}

// Repeated requests for a missing name must not cause as many reads of etcd. A newly published value must be found
// soon.
func TestAbsenceIsCachedBriefly(t *testing.T) {
	now := time.Now()
	src := newStored()
	h := Handler(src, errAbsent).(*handler)
	h.cache.now = func() time.Time { return now }
	path := "/content/" + content.HashOf([]byte(hello))
	for range 100 {
		if r := get(h, "GET", path); r.StatusCode != 404 {
			t.Fatal(r.Status)
		}
	}
	if n := src.count(); n != 1 {
		t.Errorf("etcd was read %d times", n)
	}
	src.objects[content.HashOf([]byte(hello))] = []byte(hello)
	now = now.Add(absenceLifetime)
	if r := get(h, "GET", path); r.StatusCode != 200 {
		t.Errorf("once it is published: %s", r.Status)
	}
	for i := range 3 * maxAbsent {
		_, _ = h.read(t.Context(), name{line: "2.0.0", seq: int64(i)})
	}
	if n := len(h.cache.absent); n > maxAbsent {
		t.Errorf("%d names are remembered", n)
	}
}

// A cancelled request must not stop the read for other requests that wait for it.
func TestCanceledRequestDoesNotCancelOthers(t *testing.T) {
	src := newStored(hello)
	src.gate = make(chan struct{})
	h := Handler(src, errAbsent).(*handler)
	n := name{hash: content.HashOf([]byte(hello))}
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := h.read(ctx, n); first <- err }()
	for end := time.Now().Add(10 * time.Second); src.count() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing was read")
		}
	}
	go func() { _, err := h.read(t.Context(), n); second <- err }()
	cancel()
	if err := <-first; err == nil {
		t.Error("the one that was given up got an answer")
	}
	close(src.gate)
	if err := <-second; err != nil {
		t.Errorf("the other one: %v", err)
	}
	if src.count() != 1 {
		t.Errorf("%d reads", src.count())
	}
}

// A request must never become an arbitrary path: every name that parses is in its only valid spelling.
func FuzzParseName(f *testing.F) {
	for _, s := range []string{
		"", "content/", "content/" + strings.Repeat("a", 64), "deltas/1.0.0/000000001", "deltas/1.0.0-rc.1/999999999",
		"deltas/../000000001", "content/../x", "deltas/1.0.0/0000000001", "deltas/1.0.0/00000001\n", "/content/", "deltas//000000000",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		n, err := parseName(path)
		if err != nil {
			return
		}
		spelled, err := ObjectName(n.hash)
		if n.hash == "" {
			spelled, err = DeltaName(n.line, n.seq)
		}
		if err != nil || spelled != path || strings.Contains(path, "..") && n.line == "" || strings.ContainsAny(path, "%\\ \n") {
			t.Errorf("%q parses as %+v, which is spelled %q: %v", path, n, spelled, err)
		}
	})
}

// FuzzHandler sends arbitrary targets. The handler must not panic, and must return content only for its own name.
func FuzzHandler(f *testing.F) {
	hash := content.HashOf([]byte(hello))
	for _, s := range []string{"/content/" + hash, "/deltas/1.0.0/000000001", "/content/%2e%2e/x", "/../content/" + hash, "*", "/?"} {
		f.Add("GET", s)
	}
	src := newStored(hello)
	src.deltas["1.0.0/1"] = []byte("delta")
	h := Handler(src, errAbsent)
	f.Fuzz(func(t *testing.T, method, target string) {
		r, err := http.NewRequest(method, "https://mirror.example"+target, nil)
		if err != nil {
			return
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		served := strings.TrimPrefix(r.URL.EscapedPath(), "/")
		switch {
		case w.Code == 200 && r.Method == http.MethodGet: // an empty method means GET too
			if served != "content/"+hash && served != "deltas/1.0.0/000000001" {
				t.Errorf("%s %q is answered with %q", method, target, w.Body)
			}
		case w.Code == 200 && r.Method != http.MethodHead, w.Code == 500, w.Code == 503:
			t.Errorf("%s %q: %d", method, target, w.Code)
		}
	})
}
