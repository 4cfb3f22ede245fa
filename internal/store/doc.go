// Package store reads and writes the fleet's data in etcd. Store lists its subjects: each subject is one narrow type.
// Package etcd below it contains the connection, codec, keys, transactions, leases and locks. No other package imports
// clientv3.
//
// Releases, generations of data and rollback permits are signed documents. The store returns their bytes unchanged,
// with unverified signatures. Package trust verifies them.
//
// Every call has a deadline. Every write is guarded by ModRevision, or a comment says why it needs no guard. The store
// must never decide, with one exception: permitFor selects the rollbacks that a change must permit. It stands here
// because the change and its permit share one transaction.
package store
