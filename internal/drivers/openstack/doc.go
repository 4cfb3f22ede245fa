// Package openstack makes machines in an OpenStack cloud: Nova's servers, of Glance's images, on Neutron's networks. The
// cloud's address and credentials come from clouds.yaml, as OpenStack's own clients read it.
//
// A server is identified by its metadata, pulley-owner and pulley-fleet, and by its name. Nova's names are not unique and its requests
// have no idempotency key: the driver looks for a server before and after each order. After a lost answer it looks for a minute
// before it orders again. A server that appears later, or after a restart of the program, is a second one of that name. Both are
// listed, and a plan shows the duplicate.
//
// It must never change or delete a server without the fleet's mark, never follow a redirect or a link of an answer, and never
// take a lost answer for a server that was not made. Sources: Compute, Image and Networking API references.
package openstack
