// Package e2e plays scenarios with the shipped commands on real parts: etcd, Puppet, cron, in machines that are
// copy-on-write views of this one. One scenario a file; build tag e2e.
package e2e
