// Package stage puts the parts of a target on a node's disk. It fetches the release and the data from etcd and mirrors,
// and verifies that they are authentic before the node attempts them. It must never change files that Puppet sees
// before Activate. If the node has a list of signers, it must never accept a record that it cannot verify.
package stage
