package access

import (
	"pulley/internal/etcd"
	"pulley/internal/etcd/kinds"
	"pulley/internal/model"
)

// EnvKinds lists the kinds of values of this package, of one environment.
func EnvKinds(k etcd.EnvKeys) []kinds.Kind {
	return []kinds.Kind{
		kinds.Of[Provisioning](k.Provisioning()), kinds.Of[Former](k.Former()),
		ofUser(kinds.OfNodes[Identity](k.Identities())), ofUser(kinds.OfNodes[Precreated](k.Precreated(""))), kinds.OfNodes[Presigned](k.Presigned("")),
		kinds.OfNodes[FirstBoot](k.FirstBoots()), kinds.OfNodes[Past](k.Past("")), kinds.OfNodes[model.Lockout](k.Lockout("")),
		{At: k.Cleanup(""), Node: true, Types: []any{Cleanup{}}, Read: func(rest string, kv *etcd.KV) error {
			var c Cleanup
			if err := etcd.Into(&c)(kv); err != nil || c.Node == etcd.Unescape(rest) {
				return err
			}
			return kinds.ErrOfAnother
		}},
	}
}

// Kinds lists the kinds of values of this package, of no environment.
func Kinds(db *etcd.DB) []kinds.Kind {
	k := db.Keys
	token := func(_ string, kv *etcd.KV) error {
		_, err := (&Tokens{db}).DecodeToken(kv)
		return err
	}
	return []kinds.Kind{
		{At: k.NodeTokens(), Types: []any{Token{}}, Read: token}, {At: k.OperatorTokens(), Types: []any{Token{}}, Read: token}, ofUser(kinds.Of[OperatorIdentity](k.Operators())), kinds.Of[etcd.LockHolder](k.Certificate("")),
	}
}

// ofUser marks a kind whose values may name a user of etcd.
func ofUser(k kinds.Kind) kinds.Kind {
	k.OfUser = true
	return k
}
