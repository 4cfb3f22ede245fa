package novatest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fault is something that goes wrong with requests of a method whose path ends so.
type Fault struct {
	Method, Path string
	After        int // that many such requests go well before
	Times        int // 0 is once; below 0 always

	Delay  time.Duration // before anything is done
	Lost   bool          // it is done, and the connection is cut instead of an answer
	Status int           // instead of doing it; 0 does it
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

func (f *Fault) serve(w http.ResponseWriter, r *http.Request, do http.Handler) {
	if f.Delay > 0 {
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return
		}
	}
	switch {
	case f.Lost:
		do.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler) // net/http's own way to cut a connection
	case f.Status != 0:
		for key, value := range f.Header {
			w.Header().Set(key, value)
		}
		if f.Body == "" {
			fail(w, f.Status, "as the test wants it")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(f.Status)
		_, _ = w.Write([]byte(f.Body))
	default:
		do.ServeHTTP(w, r)
	}
}

// faultNames are Nova's words for statuses (nova.api.openstack.wsgi.Fault).
var faultNames = map[int]string{
	400: "badRequest", 401: "unauthorized", 403: "forbidden", 404: "itemNotFound", 405: "badMethod",
	409: "conflictingRequest", 413: "overLimit", 415: "badMediaType", 429: "overLimit", 501: "notImplemented", 503: "serviceUnavailable",
}

// fail answers as Nova does.
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
