// Package store reads and writes the fleet's data in etcd, for operators and serve. Store lists its subjects: each subject is one narrow
// type. What nodes share stands below it: package release has the releases, package desired what is wanted, and package control what a
// node itself reads and writes. Package etcd contains the connection, codec, keys, transactions, leases and locks.
//
// Every call has a deadline. Every write is guarded by ModRevision, or a comment says why it needs no guard. The store
// must never decide, with one exception: permitFor selects the rollbacks that a change must permit. It stands here
// because the change and its permit share one transaction.
package store

import (
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/release"
)

// Types of package etcd that callers need.
type (
	// Config is how to connect to etcd.
	Config = etcd.Config
	// Scope is an environment, one of its roles or one of its nodes.
	Scope = etcd.Scope
	// UnreadableError is a value in etcd that this program cannot read.
	UnreadableError = etcd.UnreadableError
	// LockHolder is who holds a lock, and since when.
	LockHolder = etcd.LockHolder
)

// Constants of package etcd that callers need.
const (
	DefaultTimeout = etcd.DefaultTimeout
	DefaultPrefix  = etcd.DefaultPrefix
)

// Errors of package etcd that callers branch on.
var (
	ErrNotFound = etcd.ErrNotFound
	ErrConflict = etcd.ErrConflict
	ErrRevoked  = etcd.ErrRevoked
	ErrFull     = etcd.ErrFull
	ErrNoRole   = etcd.ErrNoRole

	ErrUnknownOutcome = etcd.ErrUnknownOutcome
	ErrReadAgain      = etcd.ErrReadAgain
)

// Store is a fleet's keyspace: one narrow type for each subject. A caller that needs one subject takes that type.
type Store struct {
	Cluster      *Cluster
	Environments *Environments
	Node         *control.Node
	Fleet        *Fleet
	Targets      *Targets
	Releases     *release.Releases
	Prunes       *Prunes
	Access       *Access
	Identities   *Identities
	Tokens       *Tokens
	FirstBoots   *FirstBoots
	Joins        *Joins
	Notices      *Notices
	Machines     *Machines
	Campaigns    *Campaigns

	db *etcd.DB
}

// Open creates a client. The first call connects, within its deadline.
func Open(c Config) (*Store, error) {
	db, err := etcd.Open(c)
	if err != nil {
		return nil, err
	}
	return newStore(db), nil
}

// Over returns a store over the client of an embedded member in the same process.
func Over(client *clientv3.Client, defragment func() error, endpoint, prefix string, timeout time.Duration) *Store {
	return newStore(etcd.Over(client, defragment, endpoint, prefix, timeout))
}

// newStore creates the subjects, lowest first. Each subject calls only the subjects that it receives.
func newStore(db *etcd.DB) *Store {
	s := &Store{db: db}
	s.Cluster, s.Environments, s.Node, s.Targets, s.Tokens = clusterIn(db), specIn(db), control.In(db), targetsIn(db), TokensIn(db)
	s.FirstBoots, s.Notices, s.Fleet, s.Releases, s.Prunes = FirstBootsIn(db), NoticesIn(db), fleetIn(db), release.In(db), pruneIn(db)
	s.Access, s.Identities, s.Joins, s.Campaigns, s.Machines = accessIn(db), IdentitiesIn(db), JoinsIn(db), journalIn(db), recordsIn(db)
	return s
}

// Close closes the connection.
func (s *Store) Close() error { return s.db.Close() }

// Prefix returns the first part of every key, without surrounding slashes. Names of etcd users and roles begin with
// it.
func (s *Store) Prefix() string { return s.db.Prefix() }

// ServerIssuer returns the authority key ID of the last certificate that etcd presented. It is nil before the first
// connection and without TLS.
func (s *Store) ServerIssuer() []byte { return s.db.ServerIssuer() }
