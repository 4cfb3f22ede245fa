package novatest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fault is a fault for requests of a method whose path ends with a suffix. Like Nova, the cloud completes a received
// request even after the client disconnected.
type Fault struct {
	Method, Path string
	After        int // number of matching requests without the fault before it
	Times        int // 0 means once; below 0 means always

	Delay  time.Duration // before any effect
	Late   time.Duration // from the answer, given by Lost or Status, to the effect
	Lost   bool          // the effect happens, and the connection is closed without an answer
	Status int           // answered without an effect; 0 means normal processing
	Body   string
	Header map[string]string
}

// Inject adds a fault.
func (c *Cloud) Inject(f Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.Times == 0 {
		f.Times = 1
	}
	c.faults = append(c.faults, &f)
}

func (c *Cloud) fault(r *http.Request) *Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, f := range c.faults {
		if f.Method != r.Method || !strings.HasSuffix(r.URL.Path, f.Path) {
			continue
		}
		if f.After > 0 {
			f.After--
			continue
		}
		if f.Times--; f.Times == 0 {
			c.faults = slices.Delete(c.faults, i, i+1)
		}
		return f
	}
	return nil
}

// serve answers a request while the client waits.
func (f *Fault) serve(w http.ResponseWriter, r *http.Request, do http.Handler) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // as if it was not received
	}
	hungUp := r.Context().Done()
	r = r.Clone(context.WithoutCancel(r.Context()))
	r.Body = io.NopCloser(bytes.NewReader(body))
	done := make(chan *httptest.ResponseRecorder, 1)
	time.AfterFunc(f.Delay, func() { done <- f.act(r, do) })
	select {
	case <-hungUp:
	case said := <-done:
		if f.Lost {
			panic(http.ErrAbortHandler) // net/http's own way to close a connection
		}
		maps.Copy(w.Header(), said.Header())
		w.WriteHeader(said.Code)
		_, _ = w.Write(said.Body.Bytes())
	}
}

// act processes the request, refuses it, or delays its effect, and returns the answer.
func (f *Fault) act(r *http.Request, do http.Handler) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	switch {
	case f.Late > 0:
		time.AfterFunc(f.Late, func() { do.ServeHTTP(httptest.NewRecorder(), r) })
	case f.Status == 0:
		do.ServeHTTP(w, r)
	}
	if f.Status == 0 {
		return w
	}
	for key, value := range f.Header {
		w.Header().Set(key, value)
	}
	if f.Body == "" {
		fail(w, f.Status, "as the test wants it")
		return w
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.Status)
	_, _ = w.WriteString(f.Body)
	return w
}

// faultNames are Nova's names of statuses (nova.api.openstack.wsgi.Fault).
var faultNames = map[int]string{
	400: "badRequest", 401: "unauthorized", 403: "forbidden", 404: "itemNotFound", 405: "badMethod",
	409: "conflictingRequest", 413: "overLimit", 415: "badMediaType", 429: "overLimit", 501: "notImplemented", 503: "serviceUnavailable",
}

// fail answers in Nova's error format.
func fail(w http.ResponseWriter, status int, message string) {
	name := faultNames[status]
	if name == "" {
		name = "computeFault"
	}
	answer(w, status, map[string]any{name: map[string]any{"code": status, "message": message}})
}

func answer(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
