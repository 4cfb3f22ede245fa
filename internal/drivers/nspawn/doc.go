// Package nspawn is the driver of whole machines on one host: a system with its own systemd, cron and cloud-init, which
// systemd-nspawn boots from an image that is built once, on a bridge of the host.
//
// A machine is a folder of package folder. Beside the records it holds its disk (upper, over the image) and its console. A [Provider]
// makes it and starts its supervisor: this program under another name, which outlives it, boots the machine, boots it again when it
// reboots, and holds the lock of the folder. The machine and its mounts are in namespaces of the supervisor: when the supervisor ends, the
// kernel ends the machine and drops its mounts.
//
// The package owns the disks, the addresses in the subnet, the supervisors and their control groups, and the cached image.
//
// A machine that is off stays off, also after a restart of the host: a plan shows it as broken. Machines are not a security boundary
// against their own root.
//
// The package must never mount anything in the host's mount namespace, change the host's network except the ports of the bridge,
// assign an address twice, or leave a machine without its supervisor running.
//
// A program that makes machines calls [MaybeInit] first in main.
package nspawn
