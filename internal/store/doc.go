// Package store is Pulley's keyspace in etcd: every key, every value's envelope, every transaction. It is the only
// importer of clientv3, and keys.go is the only place that spells a key.
//
// Every call has a deadline. Every write is guarded by ModRevision, or a comment says why it needs no guard. It must never
// decide anything: what to read and write comes from its callers.
package store
