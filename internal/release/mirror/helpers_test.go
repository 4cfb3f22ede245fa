package mirror

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"pulley/internal/release/content"
)

var errAbsent = errors.New("not found")

// stored is a source in memory that counts requests.
type stored struct {
	objects map[string][]byte
	deltas  map[string][]byte // by name
	gate    chan struct{}     // if set, reads wait for it

	mu    sync.Mutex
	asked map[string]int
	err   error
}

func newStored(values ...string) *stored {
	s := &stored{objects: map[string][]byte{}, deltas: map[string][]byte{}, asked: map[string]int{}}
	for _, v := range values {
		s.objects[content.HashOf([]byte(v))] = []byte(v)
	}
	return s
}

func (s *stored) ask(what string) error {
	s.mu.Lock()
	s.asked[what]++
	err := s.err
	s.mu.Unlock()
	if s.gate != nil {
		<-s.gate
	}
	return err
}

func (s *stored) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *stored) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, times := range s.asked {
		n += times
	}
	return n
}

func (s *stored) Object(_ context.Context, hash string) ([]byte, error) {
	if err := s.ask(hash); err != nil {
		return nil, err
	}
	if b, ok := s.objects[hash]; ok {
		return b, nil
	}
	return nil, fmt.Errorf("cannot read %s: %w", hash, errAbsent)
}

func (s *stored) Deltas(_ context.Context, line string, from, to int64) ([][]byte, error) {
	var all [][]byte
	for seq := from; seq <= to; seq++ {
		name := fmt.Sprintf("%s/%d", line, seq)
		if err := s.ask(name); err != nil {
			return nil, err
		}
		b, ok := s.deltas[name]
		if !ok {
			return nil, fmt.Errorf("cannot read delta %s: %w", name, errAbsent)
		}
		all = append(all, b)
	}
	return all, nil
}

// serve starts a TLS server for h, and returns a client that trusts its CA.
func serve(t *testing.T, h http.Handler) (*httptest.Server, *tls.Config) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return s, &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

func client(t *testing.T, tlsConfig *tls.Config, timeout time.Duration, urls ...string) *Client {
	t.Helper()
	c, err := New(urls, tlsConfig, timeout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// answers starts a mirror that answers every request with one function.
func answers(t *testing.T, f http.HandlerFunc) (string, *tls.Config) {
	t.Helper()
	s, config := serve(t, f)
	return s.URL, config
}
