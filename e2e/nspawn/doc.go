// Package nspawn plays first boots on real machines: Debian with its own systemd, cron and cloud-init, booted by
// systemd-nspawn from an image that is made once and kept, on a bridge of its own, against `pulley serve` with TLS and
// etcd's users. Build tag e2e.
//
// The whole test process lives in mount, PID, network and IPC namespaces of its own and in one control group: when it
// ends, however it ends, the kernel ends its machines and drops their mounts, their files and the bridge. The host's
// network, mounts and folders are never touched, apart from the kept image.
package nspawn
