// Package etcd is the lowest layer of the store. It owns the connection, the codec of values, the keys, transactions,
// pages, leases and locks. Only keys.go spells keys.
//
// It must never know a subject of Pulley, and never decide. Every call has a deadline. Every write is guarded by
// ModRevision, or a comment says why it needs no guard.
package etcd
