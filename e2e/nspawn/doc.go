// Package nspawn runs first boots on real machines: Debian with its own systemd, cron and cloud-init. systemd-nspawn
// boots them from an image that is built once and kept, on a separate bridge, against `pulley serve` with TLS and
// etcd's users. The build tag is e2e.
//
// The test process runs in its own mount, PID, network and IPC namespaces and in one control group. When it ends, in
// any way, the kernel ends its machines and removes their mounts, their files and the bridge. It must never change the
// host's network, mounts and folders, except the kept image.
package nspawn
