// Package stage puts the parts of a target on a node's disk: it fetches the release and the data from etcd and mirrors, and
// verifies that they are authentic before the node attempts them. It must never change what Puppet sees before Activate, and
// must never accept a record that it cannot verify where the node has a list of signers.
package stage
