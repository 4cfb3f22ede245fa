package nspawn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/machines/drivers/folder"
)

const groupDeadline = time.Minute

// groupsRoot returns the mount point of control groups of version 2, also where version 1 is mounted too.
func groupsRoot() (string, error) {
	const root = "/sys/fs/cgroup"
	for _, dir := range []string{root, filepath.Join(root, "unified")} {
		if isMounted(dir, unix.CGROUP2_SUPER_MAGIC) {
			return dir, nil
		}
	}
	return "", errors.New("no control groups of version 2 in " + root)
}

func isMounted(dir string, magic int64) bool {
	var stat unix.Statfs_t
	return unix.Statfs(dir, &stat) == nil && stat.Type == magic
}

// groupOf returns the control group of a process.
func groupOf(pid string) (string, error) {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return group, nil
		}
	}
	return "", errors.New("process " + pid + " is in no control group of version 2")
}

// underSystemd reports whether systemd manages this host: sd_booted(3).
func underSystemd() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

// groupFor returns the control group for a machine, below that of this process. Where systemd manages the host, systemd creates and
// names it.
func groupFor(id string) (name string, bySystemd bool, err error) {
	if underSystemd() {
		return "", true, nil
	}
	parent, err := groupOf("self")
	if err != nil {
		return "", false, err
	}
	if strings.HasPrefix(parent, "/..") { // outside of this cgroup namespace
		parent = "/"
	}
	return filepath.Join(parent, groupPrefix+id), false, nil
}

// makeGroup makes a group and opens it.
func makeGroup(name string) (*os.File, error) {
	root, err := groupsRoot()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	return os.Open(dir)
}

// scope lets systemd move a process into a scope of its own, which outlives the service or session of this process. It returns the
// group of the scope.
func scope(ctx context.Context, id, name string, pid int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, groupDeadline)
	defer cancel()
	unit := groupPrefix + id + scopeSuffix
	err := askSystemd(ctx, "StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail",
		"4", "Description", "s", "Machine "+name+" of Pulley", "Delegate", "b", "true", "Slice", "s", "machine.slice",
		"PIDs", "au", "1", strconv.Itoa(pid), "0")
	if err != nil {
		return "", fmt.Errorf("cannot create %s by systemd: %w", unit, err)
	}
	var group string
	err = folder.Poll(ctx, func() (bool, error) {
		var err error
		group, err = groupOf(strconv.Itoa(pid))
		return filepath.Base(group) == unit, err
	})
	if err != nil {
		return "", fmt.Errorf("cannot wait until systemd moves process %d to %s: %w", pid, unit, err)
	}
	return group, nil
}

// askSystemd calls a method of systemd's manager, org.freedesktop.systemd1(5).
func askSystemd(ctx context.Context, method string, args ...string) error {
	args = append([]string{"--quiet", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", method}, args...)
	_, err := output(ctx, "busctl", args...)
	return err
}

// Parts of the names of machines' groups and of systemd's scopes.
const (
	groupPrefix = "pulley-machine-"
	scopeSuffix = ".scope"
)

// groupDir returns the folder of a machine's group, or of one below it. It refuses any other group: killing the root of a cgroup
// namespace kills all processes in it.
func groupDir(root, group string) (string, error) {
	parts := strings.Split(group, "/")
	if slices.Contains(parts, "..") || !slices.ContainsFunc(parts, func(p string) bool { return strings.HasPrefix(p, groupPrefix) }) {
		return "", fmt.Errorf("%q is not the control group of a machine", group)
	}
	return filepath.Join(root, group), nil
}

// removeGroup kills all processes of a group and of those below it, and removes them. A missing group has no processes.
func removeGroup(ctx context.Context, group string) error {
	root, err := groupsRoot()
	if err != nil {
		return err
	}
	dir, err := groupDir(root, group)
	if err != nil {
		return err
	}
	err = killGroup(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) { // removed, or being removed
		return err
	}
	if strings.HasSuffix(dir, scopeSuffix) && underSystemd() {
		if err := endScope(ctx, dir); err == nil || ctx.Err() != nil {
			return err
		}
	}
	short, cancel := context.WithTimeout(ctx, groupDeadline) // systemd failed, or is not there
	defer cancel()
	if err := folder.Poll(short, func() (bool, error) { return removeGroupDir(dir), nil }); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("cannot wait until the processes in control group %s have ended: %w", dir, ctx.Err())
		}
		return fmt.Errorf("cannot remove control group %s: a process in it does not end", dir)
	}
	return nil
}

// killGroup kills all processes of a group, which Linux does since 5.14.
func killGroup(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, "cgroup.kill"), os.O_WRONLY, 0)
	if _, there := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && there == nil {
		return fmt.Errorf("cannot end the processes in control group %s: it has no cgroup.kill\nuse Linux 5.14 or newer", dir)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString("1")
	return errors.Join(err, f.Close())
}

// endScope waits until systemd has removed the empty group of a scope. Another program must not remove it: the scope would stay
// active for ever where systemd has not yet read that the group is empty.
func endScope(ctx context.Context, dir string) error {
	gone := func() (bool, error) {
		removeBelow(dir)
		_, err := os.Stat(dir)
		return errors.Is(err, fs.ErrNotExist), nil
	}
	for _, stop := range []bool{false, true} {
		if stop { // systemd missed that the group is empty
			if err := askSystemd(ctx, "StopUnit", "ss", filepath.Base(dir), "replace"); err != nil {
				return err
			}
		}
		short, cancel := context.WithTimeout(ctx, groupDeadline/3)
		err := folder.Poll(short, gone)
		cancel()
		if err == nil {
			return nil
		}
	}
	return errors.New("systemd does not remove its group")
}

// removeGroupDir reports whether it removed a group and those below it. A group with a process stays.
func removeGroupDir(dir string) bool {
	removeBelow(dir)
	err := unix.Rmdir(dir)
	return err == nil || errors.Is(err, unix.ENOENT)
}

// removeBelow removes the groups below one, except those with a process.
func removeBelow(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeGroupDir(filepath.Join(dir, e.Name()))
		}
	}
}
