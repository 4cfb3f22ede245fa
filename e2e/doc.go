// Package e2e runs scenarios with the released commands and real etcd, Puppet and cron, in machines that are
// copy-on-write views of the host. It must never change the host's own files. The build tag is e2e.
package e2e
