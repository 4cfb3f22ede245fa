// Package machinestest is the test bed of package machines: a provider and a fleet in memory. Their machines boot,
// join, converge and die as time passes, with every known fault. It also owns the contract tests that this fleet and
// the real one in etcd must pass.
//
// It is for tests only. It must never make anything that outlives a test, and never be more tolerant than the systems
// that it replaces.
package machinestest
