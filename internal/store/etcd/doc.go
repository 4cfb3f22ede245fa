// Package etcd is the lowest layer of the store: the connection, the codec of values, the keys, transactions, pages, leases
// and locks. keys.go is the only file that spells a key.
//
// It knows no subject of Pulley's and decides nothing. Every call has a deadline. Every write is guarded by ModRevision, or a
// comment says why it needs no guard.
package etcd
