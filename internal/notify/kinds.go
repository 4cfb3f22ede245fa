package notify

import (
	"pulley/internal/etcd"
	"pulley/internal/etcd/kinds"
)

// Kinds lists the kinds of values of this package.
func Kinds(k etcd.Keys) []kinds.Kind { return []kinds.Kind{kinds.Of[Notice](k.Notices())} }
