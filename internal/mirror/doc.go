// Package mirror carries the immutable bytes of releases over HTTPS, so that thousands of nodes need not read them from
// etcd: a handler that `pulley serve` offers, and a client that reads from it or from any static file server. Below a base
// URL there are
//
//	content/<sha256>           an object of a release
//	deltas/<line>/<9 digits>   a delta, by the name of its line and its position there
//
// A mirror is not trusted: whoever installs what it hands out checks it against a signed record, and etcd stays the
// fallback. This package must never serve any other key, take a name apart by another rule than names.go's, talk plain
// HTTP to another machine, or read an answer without a limit and a deadline.
package mirror
