// Package machinestest has what tests of provisioning stand on: a cloud and a fleet in memory, with machines that boot, join,
// converge and die as time goes by, and with every fault that we know; and the contract that this fleet and the real one in
// etcd pass both.
//
// It is for tests only. It must never make anything that outlives a test, and never be kinder than what it stands for.
package machinestest
