package store

// Store is a fleet's keyspace by subject: each part holds the methods of those who use it.
type Store struct {
	*db
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

func newStore(d *db) *Store {
	s := &Store{db: d}
	s.clusterPart = &clusterPart{db: d}
	s.specsPart = &specsPart{db: d}
	s.nodePart = &nodePart{db: d}
	s.targetsPart = &targetsPart{db: d}
	s.fleetPart = &fleetPart{db: d, specs: s.specsPart, targets: s.targetsPart}
	s.releasesPart = &releasesPart{db: d, cluster: s.clusterPart, targets: s.targetsPart}
	s.accessPart = &accessPart{db: d, cluster: s.clusterPart, specs: s.specsPart}
	s.identitiesPart = &identitiesPart{db: d, access: s.accessPart}
	s.tokensPart = &tokensPart{db: d}
	s.bootsPart = &bootsPart{db: d}
	s.noticesPart = &noticesPart{db: d}
	s.joinsPart = &joinsPart{db: d, cluster: s.clusterPart, access: s.accessPart, identities: s.identitiesPart, tokens: s.tokensPart, boots: s.bootsPart}
	s.machinesPart = &machinesPart{db: d, targets: s.targetsPart, fleet: s.fleetPart, access: s.accessPart, tokens: s.tokensPart, joins: s.joinsPart, notices: s.noticesPart}
	s.doctorPart = &doctorPart{d, s.clusterPart, s.specsPart, s.fleetPart, s.accessPart, s.identitiesPart, s.bootsPart, s.noticesPart, s.machinesPart}
	return s
}

// Below each part stand those that it calls; no part calls one that calls it.
type (
	clusterPart struct{ *db } // etcd itself, and this installation
	specsPart   struct{ *db } // environments as their files say
	nodePart    struct{ *db } // what one node reads and writes
	targetsPart struct{ *db } // what is desired, its history, its data and the permits to go back
	fleetPart   struct {      // hosts, statuses, runs, holds and requests
		*db
		specs   *specsPart
		targets *targetsPart
	}
	releasesPart struct { // releases of content and of pulley-agent, and their removal
		*db
		cluster *clusterPart
		targets *targetsPart
	}
	accessPart struct { // etcd's users and roles
		*db
		cluster *clusterPart
		specs   *specsPart
	}
	identitiesPart struct { // who holds the names of nodes and operators
		*db
		access *accessPart
	}
	tokensPart  struct{ *db } // join tokens
	bootsPart   struct{ *db } // first boots
	noticesPart struct{ *db } // notices
	joinsPart   struct {      // joining and leaving the fleet
		*db
		cluster    *clusterPart
		access     *accessPart
		identities *identitiesPart
		tokens     *tokensPart
		boots      *bootsPart
	}
	machinesPart struct { // the machines that pulley makes
		*db
		targets *targetsPart
		fleet   *fleetPart
		access  *accessPart
		tokens  *tokensPart
		joins   *joinsPart
		notices *noticesPart
	}
	doctorPart struct {
		*db
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
