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
	Bundle() []byte
	Fingerprints() []string
}

// Config is the environment of a Server. New nodes and operators get Endpoints and Prefix.
type Config struct {
	Store            *store.Store // of a user that may create users
	CA               CA
	Now              func() time.Time // time.Now when nil
	Log              *slog.Logger     // discarded when nil
	Endpoints        []string         // of etcd, as nodes and operators reach it
	NodeLifetime     time.Duration    // of a certificate
	OperatorLifetime time.Duration
	Metrics          prometheus.Registerer // may be nil

	// OnFirstBoot gets each first boot that has finished or failed at a step. It must not block.
	OnFirstBoot func(environments.Ref, store.FirstBoot)
	// OnDuplicate gets each machine that requests another machine's name. It must not block.
	OnDuplicate func(environments.Ref, string, store.Clone)
}

// Server answers requests to join, renew, register, leave and report progress. Several may work on one etcd.
type Server struct {
	Config
	metrics metrics
	log     *slog.Logger

	turn    chan struct{} // a slot for each concurrent join
	waiting chan struct{}
	tokens  stripes // one join for each token at a time, because joins compete for its count
	claims  claims
	boots   boots
	limits  *limiter // on refused requests
	asked   *limiter // on requests of authenticated parties

	othersTurn    chan struct{} // a slot for each concurrent request that is no join
	othersWaiting chan struct{}

	mu    sync.Mutex
	roles map[string]time.Time // time of the last check of each environment's role
}

// New returns a server of joins.
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

// Handler answers below /v1/. Its listener must request client certificates (tls.VerifyClientCertIfGiven), and verify
// them against the CA's bundle.
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

// pause waits before another attempt. The duration grows and is random: otherwise two servers would conflict again.
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

// stripes are locks; a context can end the wait for one.
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
