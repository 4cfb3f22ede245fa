// Package hieradata owns live Hiera data: its layers, the canonical bytes of a layer, generations, the files that a node's
// Puppet reads, and the explanation of which layer provides a key and what it hides.
//
// A layer is a YAML mapping of Hiera keys to values. The same data has the same bytes on every machine, and Ruby's YAML
// reader (Psych, which Puppet uses) reads them as exactly the types that this package showed.
//
// The package must never talk to etcd, start a process, follow a YAML alias, or write data whose hash was not checked.
package hieradata
