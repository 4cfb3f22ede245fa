// Package cluster runs Pulley on an etcd cluster of three members, each a process of its own, and damages members and `pulley
// serve` at random. It must never reach a network or a disk of the host. The build tag is e2e.
package cluster
