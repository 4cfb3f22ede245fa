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

// Store is a fleet's keyspace by subject: each part holds the methods of those who use it.
type Store struct {
	*etcd.DB
	*clusterPart
	*specsPart
	*nodePart
	*fleetPart
	*targetsPart
	*releasesPart
	*accessPart
	*identitiesPart
	*tokensPart
	*bootsPart
	*joinsPart
	*noticesPart
	*machinesPart
	*doctorPart
}

// Open makes a client. It does not wait for a connection: the first call does, within its deadline.
func Open(c etcd.Config) (*Store, error) {
	d, err := etcd.Open(c)
	if err != nil {
		return nil, err
	}
	return newStore(d), nil
}

// Over is a store over the client of an embedded member, inside of its process.
func Over(client *clientv3.Client, endpoint, prefix string, timeout time.Duration) *Store {
	return newStore(etcd.Over(client, endpoint, prefix, timeout))
}

// PrefixOf is Store.Prefix of a store that is opened with this prefix.
func PrefixOf(prefix string) string { return etcd.NewKeys(prefix).Prefix() }

func newStore(d *etcd.DB) *Store {
	s := &Store{DB: d}
	s.clusterPart = &clusterPart{DB: d}
	s.specsPart = &specsPart{DB: d}
	s.nodePart = &nodePart{DB: d}
	s.targetsPart = &targetsPart{DB: d}
	s.fleetPart = &fleetPart{DB: d, specs: s.specsPart, targets: s.targetsPart}
	s.releasesPart = &releasesPart{DB: d, cluster: s.clusterPart, targets: s.targetsPart}
	s.accessPart = &accessPart{DB: d, cluster: s.clusterPart, specs: s.specsPart}
	s.identitiesPart = &identitiesPart{DB: d, access: s.accessPart}
	s.tokensPart = &tokensPart{DB: d}
	s.bootsPart = &bootsPart{DB: d}
	s.noticesPart = &noticesPart{DB: d}
	s.joinsPart = &joinsPart{DB: d, cluster: s.clusterPart, access: s.accessPart, identities: s.identitiesPart, tokens: s.tokensPart, boots: s.bootsPart}
	s.machinesPart = &machinesPart{DB: d, targets: s.targetsPart, fleet: s.fleetPart, access: s.accessPart, tokens: s.tokensPart, joins: s.joinsPart, notices: s.noticesPart}
	s.doctorPart = &doctorPart{d, s.clusterPart, s.specsPart, s.fleetPart, s.accessPart, s.identitiesPart, s.bootsPart, s.noticesPart, s.machinesPart}
	return s
}

// Below each part stand those that it calls; no part calls one that calls it.
type (
	clusterPart struct{ *etcd.DB } // etcd itself, and this installation
	specsPart   struct{ *etcd.DB } // environments as their files say
	nodePart    struct{ *etcd.DB } // what one node reads and writes
	targetsPart struct{ *etcd.DB } // what is desired, its history, its data and the permits to go back
	fleetPart   struct {           // hosts, statuses, runs, holds and requests
		*etcd.DB
		specs   *specsPart
		targets *targetsPart
	}
	releasesPart struct { // releases of content and of pulley-agent, and their removal
		*etcd.DB
		cluster *clusterPart
		targets *targetsPart
	}
	accessPart struct { // etcd's users and roles
		*etcd.DB
		cluster *clusterPart
		specs   *specsPart
	}
	identitiesPart struct { // who holds the names of nodes and operators
		*etcd.DB
		access *accessPart
	}
	tokensPart  struct{ *etcd.DB } // join tokens
	bootsPart   struct{ *etcd.DB } // first boots
	noticesPart struct{ *etcd.DB } // notices
	joinsPart   struct {           // joining and leaving the fleet
		*etcd.DB
		cluster    *clusterPart
		access     *accessPart
		identities *identitiesPart
		tokens     *tokensPart
		boots      *bootsPart
	}
	machinesPart struct { // the machines that pulley makes
		*etcd.DB
		targets *targetsPart
		fleet   *fleetPart
		access  *accessPart
		tokens  *tokensPart
		joins   *joinsPart
		notices *noticesPart
	}
	doctorPart struct {
		*etcd.DB
		cluster    *clusterPart
		specs      *specsPart
		fleet      *fleetPart
		access     *accessPart
		identities *identitiesPart
		boots      *bootsPart
		notices    *noticesPart
		machines   *machinesPart
	}
)
