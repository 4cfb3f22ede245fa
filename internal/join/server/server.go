// Package server issues certificates to machines and operators in `pulley serve`. A pure function judges each request
// (judge.go). The server then records the identity in one transaction, and creates its user in etcd.
//
// It must never accept a request that it cannot judge, create anything for a refused request, or issue a name twice.
package server

import (
	"cmp"
	"context"
	"crypto"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/secrets"
	"pulley/internal/stablehash"
)

// Lifetimes of certificates.
const (
	DefaultNodeLifetime = 90 * 24 * time.Hour
	operatorLifetime    = 90 * 24 * time.Hour
)

// Limits of concurrent work.
const (
	maxJoins     = 16               // concurrent joins, and as many other requests; etcd makes users one by one
	maxWaiting   = 512              // requests that wait for their turn
	requestTime  = 25 * time.Second // of one request with its wait: less than a client's timeout
	maxAttempts  = 50               // of one join against conflicts over the same name or token
	firstPause   = 5 * time.Millisecond
	longestPause = 200 * time.Millisecond
	rolesLastFor = 10 * time.Minute // until the role of an environment's nodes is checked again
)

// CA signs certificates; *pki.CA is one.
type CA interface {
	IssueClient(pub crypto.PublicKey, name pki.Name, lifetime time.Duration) ([]byte, error)
	IssueRecipient(environment, scope, recipient string) ([]byte, error)
	secrets.Folder
	Bundle() []byte
	Fingerprints() []string
}

// Config is the environment of a Server. New nodes and operators get Endpoints and Prefix.
type Config struct {
	DB           *etcd.DB // of a user that may create users
	CA           CA
	Left         access.RecordLeft // what becomes of the machine record of a node that leaves
	Now          func() time.Time
	Log          *slog.Logger          // discarded when nil
	Endpoints    []string              // of etcd, as nodes and operators reach it
	NodeLifetime time.Duration         // of a certificate
	Metrics      prometheus.Registerer // may be nil

	// Puppet is the folder with the credentials at the CA of Puppet servers; "": this serve signs no certificates for Puppet.
	Puppet string

	// OnFirstBoot gets each first boot that has finished or failed at a step. It must not block.
	OnFirstBoot func(model.Ref, access.FirstBoot)
	// OnDuplicate gets each machine that requests another machine's name. It must not block.
	OnDuplicate func(model.Ref, string, access.Duplicate)
	// OnSecrets gets each machine that joined and can decrypt secrets from then on, and its address. It must not block.
	OnSecrets func(model.Ref, access.Identity, string)
}

// Server answers requests to join, renew, register, leave and report progress. Several may work on one etcd.
type Server struct {
	Config
	metrics metrics
	gate    gate
	tokens  stripes // one join for each token at a time, because joins compete for its count
	claims  claims
	roles   sharedRoles
	issuer  issuer
	caTime  time.Duration                      // of Puppet's CA for all requests of one answer
	boots   cache[map[string]access.FirstBoot] // by key
	names   cache[names]
	pending map[model.Ref]map[string]model.Host // entries of the host list that are being written; names.mu guards it
	joined  cache[map[string]bool]              // first boots that hold a name, by key
}

// New returns a server of joins.
func New(c Config) *Server {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.NodeLifetime = cmp.Or(c.NodeLifetime, DefaultNodeLifetime)
	m := newMetrics(c.Metrics)
	d := &Server{
		Config: c, metrics: m, gate: newGate(c.Now, c.Log, m), tokens: newStripes(),
		claims: claims{db: c.DB, now: c.Now, roles: map[string]*roleClaims{}},
		roles:  sharedRoles{db: c.DB, now: c.Now, checked: map[string]time.Time{}}, issuer: issuer{c}, caTime: caTime,
	}
	d.boots = newCache(c.Now, func(ctx context.Context, ref model.Ref) (map[string]access.FirstBoot, error) {
		all, _, err := access.FirstBootsIn(c.DB).List(ctx, ref)
		return all, err
	})
	d.names, d.pending = newCache(c.Now, d.readNames), map[model.Ref]map[string]model.Host{}
	d.joined = newCache(c.Now, func(ctx context.Context, ref model.Ref) (map[string]bool, error) {
		all, _, err := access.IdentitiesIn(c.DB).List(ctx, ref)
		machines := map[string]bool{}
		for _, i := range all {
			if i.Live() {
				machines[access.BootKey(i.Machine, i.FirstBoot)] = true
			}
		}
		return machines, err
	})
	return d
}

// Handler answers below /v1/. Its listener must request client certificates (tls.VerifyClientCertIfGiven), and verify
// them against the CA's bundle.
func (d *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+join.PathJoin, d.gate.answer(d.join))
	mux.HandleFunc("POST "+join.PathRenew, d.gate.answer(d.gate.inTurn(d.renew)))
	mux.HandleFunc("POST "+join.PathRegister, d.gate.answer(d.gate.inTurn(d.register)))
	mux.HandleFunc("POST "+join.PathLeave, d.gate.answer(d.gate.inTurn(d.leave)))
	mux.HandleFunc("POST "+join.PathProgress, d.gate.answer(d.gate.inTurn(d.progress)))
	mux.HandleFunc("POST "+join.PathTurn, d.gate.answer(d.gate.inTurn(d.turn)))
	mux.HandleFunc("POST "+join.PathPuppet, d.gate.answer(inTurn(d.gate.puppets, d.puppet)))
	mux.HandleFunc("POST "+join.PathSecrets, d.gate.answer(d.gate.inTurn(d.identities)))
	mux.HandleFunc("POST "+join.PathSealing, d.gate.answer(d.gate.inTurn(d.sealing)))
	mux.HandleFunc("POST "+join.PathReveal, d.gate.answer(d.gate.inTurn(d.reveal)))
	mux.HandleFunc("GET "+join.PathCA, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-pem-file")
		_, _ = w.Write(d.CA.Bundle())
	})
	return mux
}

// retry repeats a try that lost against another writer. The pause in between grows and is random: otherwise two servers
// would conflict again.
func retry(ctx context.Context, try func(attempt int) error) error {
	for attempt := range maxAttempts {
		if err := try(attempt); !errors.Is(err, etcd.ErrConflict) {
			return err
		}
		timer := time.NewTimer(rand.N(min(firstPause<<min(attempt, 10), longestPause)) + time.Millisecond)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		if timer.Stop(); ctx.Err() != nil {
			break
		}
	}
	return busy(3 * time.Second)
}

// stripes are locks; a context can end the wait for one.
type stripes [64]chan struct{}

func newStripes() (s stripes) {
	for i := range s {
		s[i] = make(chan struct{}, 1)
	}
	return s
}

func (s stripes) lock(ctx context.Context, name string) (unlock func(), err error) {
	one := s[stablehash.Sum(name)%uint64(len(s))]
	select {
	case one <- struct{}{}:
		return func() { <-one }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// cache holds a value of each environment for a moment, because hundreds of machines may begin at the same time.
type cache[T any] struct {
	now  func() time.Time
	read func(context.Context, model.Ref) (T, error)

	mu *sync.Mutex
	of map[model.Ref]cached[T]
}

type cached[T any] struct {
	at    time.Time
	value T
}

func newCache[T any](now func() time.Time, read func(context.Context, model.Ref) (T, error)) cache[T] {
	return cache[T]{now: now, read: read, mu: &sync.Mutex{}, of: map[model.Ref]cached[T]{}}
}

// use calls do with the value of an environment, which is at most age old.
func (c cache[T]) use(ctx context.Context, ref model.Ref, age time.Duration, do func(T)) error {
	c.mu.Lock()
	defer c.mu.Unlock() // other callers wait for the same read
	now := c.now()
	v, known := c.of[ref]
	if since := now.Sub(v.at); !known || since < 0 || since >= age {
		value, err := c.read(ctx, ref)
		if err != nil {
			return err
		}
		v = cached[T]{now, value}
		c.of[ref] = v
	}
	do(v.value)
	return nil
}

// change calls do with the value of an environment if it is in the cache.
func (c cache[T]) change(ref model.Ref, do func(T)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v, known := c.of[ref]; known {
		do(v.value)
	}
}
