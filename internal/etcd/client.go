// Package etcd is below everything that reads or writes etcd. It owns the connection, the codec of values, the keys, transactions,
// pages, leases and locks. Only keys.go spells keys.
//
// It must never know a subject of Pulley, and never decide. Every call has a deadline. Every write is guarded by
// ModRevision, or a comment says why it needs no guard.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// DefaultTimeout bounds every call to etcd.
const DefaultTimeout = 5 * time.Second

// maxAnswerBytes bounds the memory of one response. Normal reads are far smaller. It is not below what `pulley serve` answers: the bytes of an
// answer that a client refuses count as its own until the connection ends.
const maxAnswerBytes = 64 << 20

// Config describes the connection to etcd.
type Config struct {
	Endpoints         []string
	CACert, Cert, Key string        // files; all empty for plain text
	Prefix            string        // first part of every key; DefaultPrefix when empty
	Timeout           time.Duration // of each call; DefaultTimeout when 0
	DryRun            bool          // nothing is written
}

// DB is a connection to one fleet's keyspace. It is safe for concurrent use.
type DB struct {
	Client       *clientv3.Client
	Keys         Keys
	Timeout      time.Duration
	Endpoints    string
	Now          func() time.Time                // the clock of decisions; only the opener replaces it, before any other use
	CallerName   string                          // name of the client in errors
	user         string                          // user that etcd derives from the certificate; "" without one
	peer         *peer                           // nil in etcd's own process
	connecting   *connecting                     // nil where no probe can help
	defragment   func() error                    // of an embedded member; nil elsewhere
	defragmented atomic.Int64                    // revision of the last defragmentation
	pair         func() (tls.Certificate, error) // reads this client's certificate; nil without one
}

// Open creates a client. The first call connects, within its deadline.
func Open(c Config) (*DB, error) {
	if len(c.Endpoints) == 0 {
		return nil, errors.New("cannot reach etcd: no endpoints are given\nset --endpoints or PULLEY_ENDPOINTS")
	}
	seen := &peer{}
	tlsConfig, err := c.tls(seen)
	if err != nil {
		return nil, err
	}
	if c.Timeout < 0 {
		return nil, fmt.Errorf("cannot reach etcd: %s is not a valid timeout\ngive a timeout above 0, like 5s", c.Timeout)
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	db := &DB{
		Keys: NewKeys(c.Prefix), Timeout: c.Timeout, Now: time.Now, Endpoints: strings.Join(c.Endpoints, ","),
		CallerName: "a client without a certificate", user: userOf(tlsConfig), peer: seen,
	}
	if db.user != "" {
		db.CallerName = "the certificate of " + strconv.Quote(db.user)
	}
	if c.Cert != "" {
		db.pair = c.Certificate
	}
	options := []grpc.DialOption{grpc.WithNoProxy()} // a variable such as https_proxy of a machine is for its downloads
	if c.DryRun {
		options = append(options, grpc.WithChainUnaryInterceptor(dryRun))
	}
	if db.connecting = newConnecting(c, tlsConfig, db.certificate); db.connecting != nil {
		options = append(options, grpc.WithChainUnaryInterceptor(db.connecting.intercept))
	}
	db.Client, err = clientv3.New(clientv3.Config{
		Endpoints: c.Endpoints, TLS: tlsConfig, DialTimeout: c.Timeout,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 5 * time.Second,
		MaxCallRecvMsgSize: maxAnswerBytes, DialOptions: options,
		Logger: zap.NewNop(), // errors are returned; the client's own log would repeat them
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make an etcd client for %s: %w", strings.Join(c.Endpoints, ","), err)
	}
	return db, nil
}

// Over returns a connection over the client of an embedded member in the same process. etcd's own client there cannot defragment: it
// panics, so that defragment does.
func Over(client *clientv3.Client, defragment func() error, endpoint, prefix string, timeout time.Duration) *DB {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	return &DB{Now: time.Now, Client: client, Keys: NewKeys(prefix), Timeout: timeout, Endpoints: endpoint, CallerName: "pulley serve", defragment: defragment}
}

// Env returns the keys of an environment.
func (s *DB) Env(ref fmt.Stringer) EnvKeys { return s.Keys.Env(ref.String()) }

// Prefix returns the first part of every key, without surrounding slashes. Names of users and roles begin with it.
func (s *DB) Prefix() string { return s.Keys.Prefix() }

// Close closes the connection.
func (s *DB) Close() error { return s.Client.Close() }

// Txn runs one transaction within the deadline of each call.
func (s *DB) Txn(ctx context.Context, cmps []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	resp, err := s.Client.Txn(ctx).If(cmps...).Then(then...).Else(otherwise...).Commit()
	if slices.ContainsFunc(slices.Concat(then, otherwise), func(op clientv3.Op) bool { return op.IsPut() || op.IsDelete() || op.IsTxn() }) {
		return resp, s.ExplainWrite(err)
	}
	return resp, s.Explain(err)
}

// Usage is the size of a member's file and its quota, in bytes. Quota 0 means unknown.
type Usage struct{ Quota, Stored int64 }

// share returns the used part of the quota; 0 if the quota is unknown.
func (u Usage) share() float64 {
	return float64(u.Stored) / float64(max(u.Quota, 1)) * float64(min(u.Quota, 1))
}

// usageWithin bounds the wait for the other members after one answered.
const usageWithin = time.Second

// Usage reads the usage of the fullest member: one that is full makes the whole cluster refuse writes. An etcd before 3.6 does not
// report its quota.
func (s *DB) Usage(ctx context.Context) (fullest Usage) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	endpoints := s.Client.Endpoints()
	answers := make(chan *clientv3.StatusResponse, len(endpoints))
	for _, endpoint := range endpoints {
		go func() {
			st, _ := s.Client.Status(At(ctx, endpoint), endpoint) // nil without an answer
			answers <- st
		}()
	}
	var late <-chan time.Time
	for range endpoints {
		select {
		case st := <-answers:
			if st == nil {
				continue
			}
			if u := (Usage{st.DbSizeQuota, st.DbSize}); u.share() >= fullest.share() {
				fullest = u
			}
			if late == nil {
				late = time.After(usageWithin)
			}
		case <-late:
			return fullest
		}
	}
	return fullest
}

// Defragment frees the unused space of the member at an endpoint.
func (s *DB) Defragment(ctx context.Context, endpoint string) error {
	if s.defragment != nil {
		return s.defragment()
	}
	_, err := s.Client.Defragment(At(ctx, endpoint), endpoint)
	return s.Explain(err)
}

// FirstAt records a revision, and reports whether no defragmentation was recorded at it: a second one frees nothing.
func (s *DB) FirstAt(revision int64) bool { return s.defragmented.Swap(revision) != revision }

// Get reads one key or a range, within the deadline.
func (s *DB) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	resp, err := s.Client.Get(ctx, key, opts...)
	return resp, s.Explain(err)
}
