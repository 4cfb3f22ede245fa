package store

import (
	"pulley/internal/etcd"
	"pulley/internal/etcd/kinds"
)

// Kinds lists the kinds of values of this package, of one environment.
func specKinds(k etcd.EnvKeys) []kinds.Kind {
	return []kinds.Kind{{At: k.Spec(), Read: func(_ string, kv *etcd.KV) error {
		_, err := decodeSpec(kv)
		return err
	}}}
}
