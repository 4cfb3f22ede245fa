package prune

import (
	"pulley/internal/etcd"
	"pulley/internal/etcd/kinds"
	"pulley/internal/release"
)

// Kinds lists the kinds of values that releases need.
func Kinds(db *etcd.DB) []kinds.Kind {
	k, releases := db.Keys, release.In(db)
	return []kinds.Kind{
		{At: k.Releases(), Types: []any{release.Release{}}, Read: func(_ string, kv *etcd.KV) error {
			_, err := releases.DecodeRelease(kv)
			return err
		}},
		{At: k.AgentReleases(), Types: []any{release.AgentRelease{}}, Read: func(_ string, kv *etcd.KV) error {
			_, err := releases.DecodeAgent(kv)
			return err
		}},
		kinds.Of[release.Withdrawal](k.Withdrawals()), kinds.Of[etcd.LockHolder](k.Publishings()), kinds.Of[etcd.LockHolder](k.Pruning()),
	}
}
