// Package serve is what `pulley serve` runs: a member of etcd for fleets that have none of their own, or a connection to
// the cluster that they have.
//
// It must never listen in plain text on anything but loopback, and never offer etcd's HTTP/JSON gateway: a web page in an
// operator's browser could write through it.
package serve
