// Package local makes machines that are copy-on-write views of this host.
//
// A [Machine] has mount, UTS, PID and IPC namespaces of its own and shares the network, so that 127.0.0.1 reaches what
// the host serves. Its / is an overlay of the host's / on a tmpfs that exists only in its mount namespace. Programs in it
// are the host's own, run as root, and change /etc, /usr and /var for real, for that machine only. When the machine's
// first process ends, the kernel ends all its other processes and drops its mounts and its files with them.
//
// A [Machine] ends with the program that holds it. The machines of a [Provider] do not: each has a supervisor, a process of its own,
// which runs its userdata and its agent.
//
// The package owns the start and end of machines, the programs and files in them, the folders and supervisors of machines that
// outlive the program, and scratch folders, which the next program removes where this one was killed.
//
// What a machine is not:
//   - Not a security boundary. Changes of an honest program do not reach the host (no raw devices, kernel settings, modules,
//     clock or network configuration). Those of a hostile program may.
//   - Not all of the host's files: a mount below /, such as /home, is an empty folder in the machine. Config.Binds adds folders.
//   - Not a snapshot: the machine may or may not see later changes of the host's files.
//   - Not booted: no systemd, no syslog, and /run and /tmp start empty. It has the host's /etc/cron.d;
//     Config.Empty hides folders.
//
// The package must never mount anything in the host's mount namespace, write below a machine's paths through the host's
// symlinks, leave a process except a requested supervisor, or need a clean-up after a SIGKILL.
//
// A program that starts machines calls [MaybeInit] first in main: it runs its own executable again as the parts of a machine.
package local
