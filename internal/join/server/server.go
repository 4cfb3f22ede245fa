package server

import (
	"context"
	"crypto"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pulley/environments"
	"pulley/internal/join"
	"pulley/internal/pki"
	"pulley/internal/stablehash"
	"pulley/internal/store"
)

// The defaults of Config.
const (
	DefaultNodeLifetime     = 90 * 24 * time.Hour
	DefaultOperatorLifetime = 90 * 24 * time.Hour
)

// Limits of what the desk does at a time.
const (
	maxJoins     = 16               // joins that are worked on, and as many others; etcd makes users one after the other anyway
	maxWaiting   = 512              // that wait for their turn
	requestTime  = 25 * time.Second // of one request, the wait included: less than a client waits
	maxAttempts  = 50               // of one join against others that want the same name or token
	firstPause   = 5 * time.Millisecond
	longestPause = 200 * time.Millisecond
	rolesLastFor = 10 * time.Minute // until the role of an environment's nodes is looked at again
)

// CA signs certificates; *pki.CA is one.
type CA interface {
	IssueClient(pub crypto.PublicKey, name pki.Name, lifetime time.Duration) ([]byte, error)
	Bundle() []byte
	Fingerprints() []string
}

// Config is what a desk needs. Endpoints and Prefix are told to who joins.
type Config struct {
	Store            *store.Store // as a user that may make users
	CA               CA
	Now              func() time.Time // time.Now when nil
	Log              *slog.Logger     // discarded when nil
	Endpoints        []string         // of etcd, as nodes and operators reach it
	NodeLifetime     time.Duration    // of a certificate
	OperatorLifetime time.Duration
	Metrics          prometheus.Registerer // nil: nobody counts

	// OnFirstBoot is told of each word of a first boot that tells people something: finished, or failed at a step. It must
	// not block.
	OnFirstBoot func(environments.Ref, store.FirstBoot)
	// OnDuplicate is told when another machine comes under a name that is taken. It must not block.
	OnDuplicate func(environments.Ref, string, store.Clone)
}

// Server answers those who want to join. Several may be at work on one etcd.
type Server struct {
	Config
	metrics metrics
	log     *slog.Logger

	turn    chan struct{} // one for each join that is worked on
	waiting chan struct{}
	tokens  stripes // one join a token at a time, so that those of one group don't fight over its count
	claims  claims
	boots   boots
	limits  *limiter // of what is refused
	asked   *limiter // of what is asked by who is let in

	othersTurn    chan struct{} // one for each request that is worked on and no join
	othersWaiting chan struct{}

	mu    sync.Mutex
	roles map[string]time.Time // environments whose role was looked at
}

// New makes a server of joins.
func New(c Config) *Server {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.NodeLifetime <= 0 {
		c.NodeLifetime = DefaultNodeLifetime
	}
	if c.OperatorLifetime <= 0 {
		c.OperatorLifetime = DefaultOperatorLifetime
	}
	return &Server{
		Config: c, log: c.Log, metrics: newMetrics(c.Metrics),
		turn: make(chan struct{}, maxJoins), waiting: make(chan struct{}, maxWaiting), tokens: newStripes(),
		claims: claims{roles: map[string]*roleClaims{}}, boots: boots{all: map[string]*bootView{}, who: map[string]*joinedView{}},
		limits: newLimiter(refusedBurst, refusedEvery), asked: newLimiter(askedBurst, askedEvery),
		othersTurn: make(chan struct{}, maxJoins), othersWaiting: make(chan struct{}, maxWaiting), roles: map[string]time.Time{},
	}
}

// Handler answers below /v1/. Whoever serves it asks for client certificates (tls.VerifyClientCertIfGiven) and verifies
// them against the CA's bundle; certificates of other CAs must not get here.
func (d *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+join.PathJoin, d.answer(d.join))
	mux.HandleFunc("POST "+join.PathRenew, d.answer(d.inTurn(d.renew)))
	mux.HandleFunc("POST "+join.PathRegister, d.answer(d.inTurn(d.register)))
	mux.HandleFunc("POST "+join.PathLeave, d.answer(d.inTurn(d.leave)))
	mux.HandleFunc("POST "+join.PathProgress, d.answer(d.inTurn(d.progress)))
	mux.HandleFunc("GET "+join.PathCA, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-pem-file")
		_, _ = w.Write(d.CA.Bundle())
	})
	return mux
}

// pause waits a little before another attempt, longer each time and never the same, so that desks don't stay in step.
func pause(ctx context.Context, attempt int) error {
	longest := min(firstPause<<min(attempt, 10), longestPause)
	timer := time.NewTimer(rand.N(longest) + time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// stripes are locks that a context can end waiting for.
type stripes []chan struct{}

func newStripes() stripes {
	s := make(stripes, 64)
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
