package specs

import (
	"pulley/internal/etcd"
	"pulley/internal/etcd/kinds"
)

// Kinds lists the kinds of values of this package, of one environment.
func Kinds(k etcd.EnvKeys) []kinds.Kind {
	return []kinds.Kind{{At: k.Spec(), Read: func(_ string, kv *etcd.KV) error {
		_, err := Decode(kv)
		return err
	}}}
}
