// Package plan compares an environment with its fleet, and decides the change of each machine.
//
// It is pure: the same arguments give the same plan. It must never read a clock, etcd or a provider.
package plan
