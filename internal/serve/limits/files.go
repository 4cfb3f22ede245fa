package limits

import (
	"fmt"
	"syscall"
)

// MinFiles is the lowest limit of open files with which serve starts.
const MinFiles = 1024

// Most connections that a listener may have, with any limit of open files.
const (
	mostHTTPS = 4096
	mostEtcd  = 32768
)

// perUser is the number of connections to etcd's port that one user of etcd may have. A tick and a command have one each.
const perUser = 64

// OpenFiles returns the limit of open files of this process. Go's runtime has raised the soft limit to the hard one.
func OpenFiles() (int, error) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, fmt.Errorf("cannot read the limit of open files: %w", err)
	}
	files := int(min(r.Cur, 1<<30)) // "unlimited" is 2⁶⁴−1
	if files < MinFiles {
		return 0, fmt.Errorf("cannot serve with at most %d open files: etcd and its clients need %d or more\n"+
			"raise the hard limit: LimitNOFILE= in the unit of systemd, or `ulimit -Hn` in a shell of root", files, MinFiles)
	}
	return files, nil
}

// HTTPS returns the bounds of the web listener: a quarter of the files. One address may have a quarter of that.
func HTTPS(files int) *Connections {
	total := min(files/4, mostHTTPS)
	return &Connections{Listener: "https", Total: total, PerAddress: total / 4}
}

// Etcd returns the bounds of etcd's port: half of the files. The rest is a reserve for etcd's data and for serve itself.
func Etcd(files int) *Connections {
	total := min(files/2, mostEtcd)
	return &Connections{Listener: "etcd", Total: total, PerAddress: total / 4, PerUser: perUser}
}
