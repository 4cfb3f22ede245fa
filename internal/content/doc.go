// Package content turns a folder of Puppet content into immutable objects that any store of bytes can hold, and turns
// those objects back into a folder on a node. It owns the tree hash, the manifest, packs, deltas, and the life of a release
// on disk:
//
//	publish  ReadTree, Build   a folder and the release before it → objects, a delta, and the Record that names them
//	read     OpenView          a Record → what its tree contains, and the contents, without installing it
//	plan     ways              what has to be fetched, the cheapest way first
//	fetch    Source            objects by hash and deltas by position, checked before a byte of them is decoded
//	install  Store.Install     a tree beside those that are there: verified, flushed once, visible by one rename
//	verify   Store.Verify      whether a tree is still what its name says
//	collect  Store.Collect     trees that nobody needs go away again; the last of them is what the next one is made of
//
// It knows nothing of etcd, signatures, versions or environments. It must never decode bytes whose hash it has not
// checked, write outside the folder that it unpacks into, open an existing file of a tree for writing, make a tree
// visible that is not complete, skip an entry that it does not accept instead of refusing the whole tree, or move
// `current` unless told to.
package content
