// Package store holds what the fleet keeps in etcd: one narrow type for each subject, which Store lists. Package etcd below it
// has the connection, the codec, the keys, transactions, leases and locks. No other package imports clientv3.
//
// Releases, generations of data and permits to go back are signed documents. The store returns their bytes as they were written,
// with signatures that nobody has checked: package trust judges them.
//
// Every call has a deadline. Every write is guarded by ModRevision, or a comment says why it needs no guard. The store decides
// nothing, with one exception: permitFor names the ways back that a change has to permit. It stands here because the permit
// belongs to the transaction of the change.
package store
