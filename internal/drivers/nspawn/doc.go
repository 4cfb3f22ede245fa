// Package nspawn is the driver of whole machines on one host: a system with its own systemd, cron and cloud-init, booted by
// systemd-nspawn from an image that is made once, on a bridge of the host.
//
// A machine is a folder, <Folder>/<owner>/<fleet>/<name>: what it is (machine.json), how it is (state.json), its disk (upper,
// over the image), its console. A [Provider] makes it and starts its keeper: this very program under another name, which
// outlives it, boots the machine, boots it again when it reboots, and holds the folder's lock. The machine and its mounts are
// in namespaces of the keeper: when the keeper ends, however it ends, the kernel ends the machine and drops its mounts.
//
// The package owns: the folder, addresses out of the subnet, the keepers and their control groups, the cached image.
//
// What it does not do: a machine that is off stays off, also after the host was started again; `pulley env plan` says that it
// is broken. Machines are not a security boundary against their own root.
//
// The package must never mount anything in the host's mount namespace, change the host's network beyond the bridge's ports,
// touch a folder without its mark, give one address twice, or leave a machine without its keeper running.
//
// A program that makes machines calls [MaybeInit] first thing in main.
package nspawn
