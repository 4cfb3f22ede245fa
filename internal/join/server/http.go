package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"pulley/agent"
	"pulley/internal/clip"
	"pulley/internal/join"
)

// caller is a request with its attributes for the log.
type caller struct {
	*http.Request
	from  string // its address
	party string // the owner of its budget: the certificate's name, else the address
	say   []any  // attributes for slog
}

// maxSaid bounds one value of a request in the log, in bytes.
const maxSaid = 256

// about adds attributes of the request.
func (c *caller) about(attributes ...any) {
	for _, a := range attributes {
		if text, ok := a.(string); ok {
			a = clip.Text(text, maxSaid)
		}
		c.say = append(c.say, a)
	}
}

// busyError is a temporary refusal.
type busyError struct {
	reason join.Reason
	after  time.Duration
}

func (e *busyError) Error() string { return string(e.reason) }

// answer wraps the work of a request into a handler with bounds and time limits. It counts and logs refusals.
func (d *Server) answer(do func(context.Context, *caller) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &caller{Request: r, from: addressOf(r)}
		c.party = c.from
		defer d.recover(w, c)
		if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 { // other clients at the same address must not slow it down
			c.party = "certificate " + r.TLS.PeerCertificates[0].Subject.CommonName
			if wait := d.asked.ask(c.party, d.Now()); wait > 0 {
				d.metrics.turnedAway.Inc()
				tell(w, http.StatusTooManyRequests, &join.RefusedError{Reason: join.TooOften}, wait)
				return
			}
		} else if wait := d.limits.blocked(c.party, d.Now()); wait > 0 {
			d.metrics.turnedAway.Inc()
			tell(w, http.StatusTooManyRequests, &join.RefusedError{Reason: join.TooManyRefused}, wait)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), requestTime)
		defer cancel()
		r.Body = http.MaxBytesReader(w, r.Body, join.MaxBody)
		value, err := do(ctx, c)
		var refused *join.RefusedError
		var busy *busyError
		switch {
		case err == nil && value == nil:
			w.WriteHeader(http.StatusNoContent)
		case err == nil:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(value)
		case errors.As(err, &refused):
			d.refuse(c, refused)
			tell(w, http.StatusForbidden, refused, 0)
		case errors.As(err, &busy):
			d.metrics.turnedAway.Inc()
			tell(w, http.StatusServiceUnavailable, &join.RefusedError{Reason: busy.reason}, busy.after)
		case errors.Is(err, agent.ErrUnreachable) || ctx.Err() != nil:
			d.log.Warn("a request could not be answered", append(c.say, "path", r.URL.Path, "from", c.from, "error", err)...)
			tell(w, http.StatusServiceUnavailable, &join.RefusedError{Reason: join.NoEtcd}, 2*time.Second)
		default:
			d.log.Error("a request could not be answered", append(c.say, "path", r.URL.Path, "from", c.from, "error", err)...)
			tell(w, http.StatusInternalServerError, &join.RefusedError{Reason: join.Broken}, 5*time.Second)
		}
	}
}

// recover answers a request that panicked, and logs the stack.
func (d *Server) recover(w http.ResponseWriter, c *caller) {
	what := recover()
	if what == nil {
		return
	}
	if what == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
		panic(what)
	}
	d.log.Error("a request ended in a panic", append(c.say, "path", c.URL.Path, "from", c.from, "panic", what, "stack", string(debug.Stack()))...)
	tell(w, http.StatusInternalServerError, &join.RefusedError{Reason: join.Broken}, 5*time.Second)
}

func tell(w http.ResponseWriter, status int, e *join.RefusedError, after time.Duration) {
	w.Header().Set("Content-Type", "application/json")
	if after > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((after+time.Second-1)/time.Second)))
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(e)
}

// read decodes a request's body, or refuses it.
func (c *caller) read(into any) error {
	b, err := io.ReadAll(c.Body)
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return no(join.BadRequest, join.Params{Field: join.FieldBody, Limit: int(long.Limit)})
	case err != nil:
		return no(join.BadRequest, join.Params{Field: join.FieldBody})
	}
	return nil
}

func addressOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
