// Package hieradata owns live Hiera data: its layers, their canonical bytes, generations, and the files that a node's
// Puppet reads. It also explains which layer provides a key and which values it hides.
//
// A layer is a YAML mapping of Hiera keys to values. The same data has the same bytes on every machine. Ruby's YAML
// reader (Psych, which Puppet uses) reads them with exactly the types that this package displays.
//
// The package must never talk to etcd, start a process, follow a YAML alias, or write data whose hash was not checked.
package hieradata
