// Package local provides machines that are copy-on-write views of this very machine.
//
// A [Machine] has mount, UTS, PID and IPC namespaces of its own and shares the network, so that 127.0.0.1 reaches what
// the host serves. Its / is an overlay of the host's / on a tmpfs that exists only in its mount namespace. Programs in it
// are the host's own, run as root, and change /etc, /usr and /var for real, for that machine only. When the machine's
// first process ends, the kernel ends all its other processes and drops its mounts and its files with them.
//
// A [Machine] ends with the program that holds it. A [Provider] makes machines that do not: each is held by a keeper, a
// process of its own, which gives it its userdata and runs its agent.
//
// The package owns: starting and ending such machines, running programs in them, reading and writing their files, the folders
// and keepers of machines that outlive the program, and scratch folders that the next program sweeps up when this one was
// killed.
//
// What a machine is not:
//   - Not a security boundary. It keeps an honest program's changes away from the host (no raw devices, no kernel
//     settings, no modules, no clock, no network configuration), not a hostile program's.
//   - Not all of the host's files: what is mounted below / (a /home of its own, a data disk) is an empty folder in the
//     machine. Config.Binds shows it such folders.
//   - Not a snapshot: a file that the host changes while a machine runs may be seen changed, or not.
//   - Not booted: no systemd, no syslog, and /run and /tmp start empty. The host's /etc/cron.d and its likes are there;
//     Config.Empty clears what should not be.
//
// The package must never mount anything in the host's mount namespace, write below a machine's paths through the host's
// symlinks, leave a process behind other than a keeper that was asked for, or need cleaning up after a SIGKILL.
//
// A program that starts machines calls [MaybeInit] first thing in main: machines are started and entered by running the
// program's own executable again.
package local
