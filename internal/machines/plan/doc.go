// Package plan compares what an environment calls for with what there is, and says what has to be done about each machine.
//
// It is pure: the same arguments give the same plan. It must never read a clock, etcd or a provider.
package plan
