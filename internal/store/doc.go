// Package store is Pulley's keyspace in etcd: every key, every value's envelope, every transaction. It is the only
// importer of clientv3, and keys.go is the only place that spells a key.
//
// Releases, generations of data and permits to go back are signed documents. Their bytes come out as they were written, with
// signatures that nobody has checked: whether one counts is for whoever acts on it to say (package trust).
//
// Every call has a deadline. Every write is guarded by ModRevision, or a comment says why it needs no guard. It must never
// decide anything, but for two things that only the keyspace can tell, each a pure function in a file of its own: what nobody
// needs any more (planPrune), and which ways back a change has to permit (permitFor). All else comes from its callers.
package store
