// Package mirror serves and reads the immutable bytes of releases over HTTPS, so that thousands of nodes need not read
// them from etcd. It has a handler, which `pulley serve` uses, and a client, which reads from the handler or from any
// static file server. The paths below a base URL are:
//
//	content/<sha256>           an object of a release
//	deltas/<line>/<9 digits>   a delta, by the name of its line and its position there
//
// A mirror is not trusted: nodes check its bytes against a signed record, and etcd is the fallback. This package must
// never serve any other key or parse names outside names.go. It must never use plain HTTP to another machine, or read a
// response without a limit and a deadline.
package mirror
