// Package environments reads, checks, stores and compares environment files. Package model has the names in them.
//
// The file is environments/<environment>.yaml of a control repo; its name is the name of the environment. Each role has
// a number of nodes and the properties of their machines:
//
//	stack: t42              # optional: one of several fleets of this environment
//	provider: openstack     # optional: the driver that makes the machines
//	roles:
//	  controller:
//	    cardinality: 2
//	    flavor: small       # optional
//
// This file defines the nodes controller1_t42 and controller2_t42, with the hostnames controller1-t42 and
// controller2-t42. Role, number and stack can always be parsed back from either form.
//
// A cloud file, clouds/<cloud>.yaml, maps the symbols of environments to the names of one provider. The values of the
// environment file override the cloud file, and --set overrides both. Pulley stores the result.
//
// Parsing is strict: unknown content is an error with file, line, column and, if a known name is similar, a suggestion.
// All errors are reported at once.
//
// The package owns the format of the file and the stored format of an environment. It also owns the rules for names,
// the sample files and the schemas for editors. It must never read a file, the clock or the network, never use etcd or
// Puppet, and never panic on any input.
package environments
