// Package openstack makes machines in an OpenStack cloud: Nova's servers, of Glance's images, on Neutron's networks. The
// cloud's address and credentials come from clouds.yaml, as OpenStack's own clients read it.
//
// A server is known by its metadata, pulley-owner and pulley-fleet, and by its name. Nova's names are not unique and its
// requests have no idempotency key: a server is looked for before it is asked for, and again afterwards. Where the answer was
// lost, it is looked for for a minute before it is asked for again, by the same Driver; what comes later, or after the program
// was started again, is a second server of the name. Both are listed, and a plan shows the duplicate.
//
// It must never change or delete a server without the fleet's mark, never follow a redirect or a link of an answer, and never
// take an answer that was lost for a server that was not made. Sources: Compute, Image and Networking API references.
package openstack
