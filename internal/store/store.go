package store

import (
	"time"

	"pulley/internal/store/etcd"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// What callers need of the layer below.
type (
	Config          = etcd.Config
	Scope           = etcd.Scope
	UnreadableError = etcd.UnreadableError
	LockHolder      = etcd.LockHolder
)

// What callers need of the layer below.
const (
	DefaultTimeout = etcd.DefaultTimeout
	DefaultPrefix  = etcd.DefaultPrefix
)

// Errors of the layer below.
var (
	ErrNotFound = etcd.ErrNotFound
	ErrConflict = etcd.ErrConflict
	ErrRevoked  = etcd.ErrRevoked
	ErrFull     = etcd.ErrFull
	ErrNoRole   = etcd.ErrNoRole
)

// Store is a fleet's keyspace: one narrow type for each subject. Who needs one subject takes that one.
type Store struct {
	Cluster      *Cluster
	Environments *Environments
	Node         *Node
	Fleet        *Fleet
	Targets      *Targets
	Releases     *Releases
	Access       *Access
	Identities   *Identities
	Tokens       *Tokens
	FirstBoots   *FirstBoots
	Joins        *Joins
	Notices      *Notices
	Machines     *Machines

	db *etcd.DB
}

// Open makes a client. It does not wait for a connection: the first call does, within its deadline.
func Open(c Config) (*Store, error) {
	db, err := etcd.Open(c)
	if err != nil {
		return nil, err
	}
	return newStore(db), nil
}

// Over is a store over the client of an embedded member, inside of its process.
func Over(client *clientv3.Client, endpoint, prefix string, timeout time.Duration) *Store {
	return newStore(etcd.Over(client, endpoint, prefix, timeout))
}

// newStore makes the subjects, the lowest first: each calls only those that it is given.
func newStore(db *etcd.DB) *Store {
	s := &Store{db: db}
	s.Cluster = &Cluster{db}
	s.Environments = &Environments{db}
	s.Node = &Node{db}
	s.Targets = &Targets{db}
	s.Tokens = &Tokens{db}
	s.FirstBoots = &FirstBoots{db}
	s.Notices = &Notices{db}
	s.Fleet = &Fleet{db, s.Environments, s.Targets}
	s.Releases = &Releases{db, s.Cluster, s.Targets}
	s.Access = &Access{db, s.Cluster, s.Environments}
	s.Identities = &Identities{db, s.Access}
	s.Joins = &Joins{db, s.Cluster, s.Access, s.Identities, s.Tokens, s.FirstBoots}
	s.Machines = &Machines{db, s.Targets, s.Fleet, s.Access, s.Tokens, s.Joins, s.Notices}
	return s
}

// Close ends the connection.
func (s *Store) Close() error { return s.db.Close() }

// Prefix is the first part of every key without slashes around it. Names of etcd's users and roles begin with it.
func (s *Store) Prefix() string { return s.db.Prefix() }

// PrefixOf is the Prefix of a store that is opened with this prefix.
func PrefixOf(prefix string) string { return etcd.NewKeys(prefix).Prefix() }

// ServerIssuer is the authority key id of the certificate that etcd showed last. Nil before the first connection and without TLS.
func (s *Store) ServerIssuer() []byte { return s.db.ServerIssuer() }

// Cluster is etcd itself, and the id of this installation.
type Cluster struct{ db *etcd.DB }

// Environments holds the environments as their files describe them.
type Environments struct{ db *etcd.DB }

// Node is the side of one node: what it reads in a tick, and what it reports.
type Node struct{ db *etcd.DB }

// Targets holds what is desired: targets, their history, live data, and the permits to go back.
type Targets struct{ db *etcd.DB }

// Tokens holds the join tokens.
type Tokens struct{ db *etcd.DB }

// FirstBoots holds where machines are in their first boots.
type FirstBoots struct{ db *etcd.DB }

// Notices holds what people are notified of, once.
type Notices struct{ db *etcd.DB }

// Fleet is the operators' side of the nodes: the host list, statuses, runs, holds, requests and agent versions.
type Fleet struct {
	db      *etcd.DB
	specs   *Environments
	targets *Targets
}

// Releases holds releases of content and of pulley-agent, and removes what nothing needs.
type Releases struct {
	db      *etcd.DB
	cluster *Cluster
	targets *Targets
}

// Access is etcd's users and roles.
type Access struct {
	db      *etcd.DB
	cluster *Cluster
	specs   *Environments
}

// Identities says who holds the names of nodes and operators, and holds their pre-created users.
type Identities struct {
	db     *etcd.DB
	access *Access
}

// Joins is how machines and operators join the fleet, and how nodes are removed from it.
type Joins struct {
	db         *etcd.DB
	cluster    *Cluster
	access     *Access
	identities *Identities
	tokens     *Tokens
	boots      *FirstBoots
}

// Machines holds the machines that pulley makes, and lets one apply at a time change them.
type Machines struct {
	db      *etcd.DB
	targets *Targets
	fleet   *Fleet
	access  *Access
	tokens  *Tokens
	joins   *Joins
	notices *Notices
}
