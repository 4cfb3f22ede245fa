package store

import (
	"pulley/internal/etcd"
	"pulley/internal/etcd/kinds"
)

// Kinds lists the kinds of values of this package.
func notifyKinds(k etcd.Keys) []kinds.Kind { return []kinds.Kind{kinds.Of[Notice](k.Notices())} }
