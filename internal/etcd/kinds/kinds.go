// Package kinds finds what this program cannot read in etcd. Each subject lists the kinds of its values, and how each is read.
//
// It must never know a kind itself, and never write.
package kinds

import (
	"errors"
	"strings"

	"pulley/internal/etcd"
)

// ErrOfAnother is a value of another node than its key says.
var ErrOfAnother = errors.New("it is that of another node")

// Kind is the values of one kind.
type Kind struct {
	At        string                               // their key, or the prefix of their keys, which ends with a slash
	Node      bool                                 // the rest of a key is the name of a node or of a machine
	BelowNode bool                                 // the first segment of the rest is the name of a node
	OfUser    bool                                 // a value may name a user of etcd
	Most      int64                                // with more of them, none is read; 0: no limit
	Types     []any                                // a zero value of each type that is stored; none: bytes without a form
	Read      func(rest string, kv *etcd.KV) error // nil: their bytes have no form, or `pulley releases verify` checks them
}

// Many reports whether the kind has many keys, below a prefix.
func (k Kind) Many() bool { return strings.HasSuffix(k.At, "/") }

// Of returns the kind of values of a type.
func Of[T any](at string) Kind {
	return Kind{At: at, Types: []any{*new(T)}, Read: func(_ string, kv *etcd.KV) error { return Into[T](kv) }}
}

// OfNodes returns the kind of values of a type of which each node, or each machine, has one.
func OfNodes[T any](at string) Kind {
	k := Of[T](at)
	k.Node = true
	return k
}

// OfScopes returns the kind of values of a type of which each scope has one; all is the last part of the key of all nodes.
func OfScopes[T any](at, all string) Kind {
	return Kind{At: at, Types: []any{*new(T)}, Read: func(rest string, kv *etcd.KV) error {
		if _, ok := etcd.ScopeOf(rest, all); !ok {
			return etcd.ErrNotOurs
		}
		return Into[T](kv)
	}}
}

// Into reports why a value is not of a type.
func Into[T any](kv *etcd.KV) error { return etcd.Into(new(T))(kv) }
