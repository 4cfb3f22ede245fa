// Package e2e runs scenarios with the shipped commands on real parts: etcd, Puppet and cron, in machines that are copy-on-write
// views of this one. The build tag is e2e.
package e2e
