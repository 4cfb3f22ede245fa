// Package content converts a folder of Puppet content to immutable objects, which any store of bytes can hold. It also
// converts these objects back to a folder on a node. It owns the tree hash, the manifest, packs, deltas, and the life
// of a release on disk:
//
//	publish  ReadTree, Build   a folder and the previous release → objects, a delta, and the Record that names them
//	read     OpenView          a Record → the manifest and the contents of its tree, without an installation
//	plan     ways              lists the objects to fetch, the cheapest way first
//	fetch    Source            gets objects by hash and deltas by position, and checks them before decoding
//	install  Store.Install     adds a tree to the store: verified, flushed once, visible by one rename
//	verify   Store.Verify      compares an installed tree with its manifest
//	collect  Store.Collect     removes unused trees and keeps the newest of them to build the next release from
//
// The package does not use etcd, signatures, versions or environments. It must never:
//
//   - decode bytes before it has checked their hash
//   - write outside the folder that it unpacks into
//   - open an existing file of a tree for writing
//   - make an incomplete tree visible
//   - skip an unacceptable entry instead of refusing the tree
//   - move `current` unless its caller requests it
package content
