package records

import (
	"pulley/internal/etcd"
	"pulley/internal/etcd/kinds"
	"pulley/internal/machines"
)

// EnvKinds lists the kinds of values of this package, of one environment.
func EnvKinds(k etcd.EnvKeys) []kinds.Kind {
	return []kinds.Kind{kinds.Of[etcd.LockHolder](k.Applying()), kinds.Of[machines.Act](k.Acts()), kinds.OfNodes[booked](k.MachineRecords())}
}

// Kinds lists the kinds of values of this package, of no environment.
func Kinds(k etcd.Keys) []kinds.Kind {
	return []kinds.Kind{kinds.Of[Destruction](k.AllDestroyed())}
}
