package cluster

import (
	"pulley/internal/etcd"
	"pulley/internal/etcd/kinds"
)

// Kinds lists the kinds of values of this package.
func Kinds(k etcd.Keys) []kinds.Kind {
	return []kinds.Kind{kinds.Of[Disk](k.Disk()), kinds.Of[Backup](k.Backup()), {At: k.Installation(), Types: []any{installation{}}, Read: func(_ string, kv *etcd.KV) error {
		_, err := installationID(kv)
		return err
	}}}
}
