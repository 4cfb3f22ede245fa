// Package environments says what a fleet is made of: it reads, checks, stores and compares the environment file, and
// spells the names of environments, roles, stacks and nodes.
//
// The file is environments/<environment>.yaml of a control repo. Its name is the environment's; each role says how many
// nodes it has, and what their machines are:
//
//	stack: t42              # optional: one of several fleets of this environment
//	provider: openstack     # optional: who makes the machines
//	roles:
//	  controller:
//	    cardinality: 2
//	    flavor: small       # optional
//
// This file calls for the nodes controller1_t42 and controller2_t42, whose hostnames are controller1-t42 and
// controller2-t42. Names are made such that role, number and stack can always be read back from either form.
//
// A cloud file, clouds/<cloud>.yaml, says what the words of environments stand for in one place where machines are made. It is
// laid under the file, single values of --set above it; what is stored is the result.
//
// The file is read strictly. What it does not understand it refuses, with file, line, column and, where something known
// is near, a suggestion; and it tells everything that is wrong at once.
//
// The package owns the format of the file, the format in which an environment is stored, the rules for names, the
// sample files and the schemas for editors. It is pure: it must never read a file, the clock or the network, never know about etcd or Puppet runs,
// and never panic, whatever bytes it is given.
package environments
