package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"pulley/internal/release/content"
)

const (
	cacheBytes = 64 << 20
	// maxReads limits concurrent reads from the source; maxRequests limits requests that wait or are being sent. Beyond
	// that, the handler returns 503 with Retry-After. A node can read from etcd instead.
	maxReads    = 16
	maxRequests = 1024
	readTimeout = 15 * time.Second
	retryAfter  = "5" // seconds

	// An object never changes. A delta is named by its position: after a prune, another release could take that
	// position. Caches must not keep deltas for long.
	objectsAreKept = "public, max-age=31536000, immutable"
	deltasAreKept  = "public, max-age=60"
	deltaLifetime  = time.Minute
)

// handler serves a source.
type handler struct {
	src      content.Source
	absent   error
	cache    *cache
	reads    chan struct{}
	requests chan struct{}
}

// Handler serves GET and HEAD of objects and deltas of src, and nothing else. If an error of src wraps absent, the
// value does not exist (404). Any other error means that the source is not available now (503). Recently read values
// are kept in memory, up to 64 MiB.
func Handler(src content.Source, absent error) http.Handler {
	return &handler{
		src: src, absent: absent, cache: newCache(cacheBytes, time.Now),
		reads: make(chan struct{}, maxReads), requests: make(chan struct{}, maxRequests),
	}
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	// Parse the path as sent. A valid name has no characters to escape, so an escaped path is invalid.
	n, err := parseName(strings.TrimPrefix(r.URL.EscapedPath(), "/"))
	switch {
	case errors.Is(err, errNoSuchName):
		refuse(w, http.StatusNotFound, err)
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed, errors.New("a mirror accepts only reads"))
		return
	case err != nil:
		refuse(w, http.StatusBadRequest, err)
		return
	}
	select {
	case h.requests <- struct{}{}:
		defer func() { <-h.requests }()
	default:
		busy(w, errors.New("too many requests at once"))
		return
	}
	value, err := h.read(r.Context(), n)
	switch {
	case err != nil && h.isAbsent(err):
		refuse(w, http.StatusNotFound, ErrAbsent)
		return
	case errors.Is(err, errDamaged):
		refuse(w, http.StatusInternalServerError, errDamaged)
		return
	case errors.Is(err, errCrowded):
		busy(w, errCrowded)
		return
	case err != nil:
		busy(w, errors.New("etcd does not answer now")) // not the cause: it names internal hosts
		return
	}
	sum := n.hash
	kept := objectsAreKept
	if sum == "" {
		sum, kept = content.HashOf(value), deltasAreKept
	}
	w.Header().Set("ETag", `"`+sum+`"`)
	w.Header().Set("Cache-Control", kept)
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(value))
}

func (h *handler) isAbsent(err error) bool { return h.absent != nil && errors.Is(err, h.absent) }

var errDamaged = errors.New("what is stored under this name is damaged")

// read returns the value of n from memory or from the source.
func (h *handler) read(ctx context.Context, n name) ([]byte, error) {
	keep := time.Duration(0)
	if n.hash == "" {
		keep = deltaLifetime
	}
	return h.cache.get(ctx, n, keep, h.isAbsent, func(ctx context.Context) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		select {
		case h.reads <- struct{}{}:
			defer func() { <-h.reads }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if n.hash == "" {
			deltas, err := h.src.Deltas(ctx, n.line, n.seq, n.seq)
			if err == nil && len(deltas) != 1 {
				err = fmt.Errorf("cannot read delta %d of %s: %d were found", n.seq, n.line, len(deltas))
			}
			if err != nil {
				return nil, err
			}
			return deltas[0], nil
		}
		value, err := h.src.Object(ctx, n.hash)
		if err == nil && content.HashOf(value) != n.hash {
			err = errDamaged // caches would keep it for a year
		}
		return value, err
	})
}

func busy(w http.ResponseWriter, err error) {
	w.Header().Set("Retry-After", retryAfter)
	refuse(w, http.StatusServiceUnavailable, err)
}

func refuse(w http.ResponseWriter, code int, err error) {
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, err.Error(), code)
}
