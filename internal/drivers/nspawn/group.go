package nspawn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const groupDeadline = 30 * time.Second

// groupsRoot is where control groups of version 2 are mounted, also beside those of version 1.
func groupsRoot() (string, error) {
	const root = "/sys/fs/cgroup"
	for _, dir := range []string{root, filepath.Join(root, "unified")} {
		if isMounted(dir, unix.CGROUP2_SUPER_MAGIC) {
			return dir, nil
		}
	}
	return "", errors.New("this host has no control groups of version 2 in " + root)
}

func isMounted(dir string, magic int64) bool {
	var stat unix.Statfs_t
	return unix.Statfs(dir, &stat) == nil && stat.Type == magic
}

// groupOf is the control group of a process.
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

// underSystemd reports whether systemd rules this host: sd_booted(3).
func underSystemd() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

// groupFor is the control group for a machine: one below this process's own. Where systemd rules this host, it is systemd who
// has to make and to name it.
func groupFor(id string) (name string, bySystemd bool, err error) {
	if underSystemd() {
		return "", true, nil
	}
	parent, err := groupOf("self")
	if err != nil {
		return "", false, err
	}
	if strings.HasPrefix(parent, "/..") { // outside of this namespace of groups
		parent = "/"
	}
	return filepath.Join(parent, groupPrefix+id), false, nil
}

func makeGroup(name string) error {
	root, err := groupsRoot()
	if err != nil {
		return err
	}
	return os.Mkdir(filepath.Join(root, name), 0o755)
}

// scope has systemd move a process into a scope of its own, whose groups are the process's to divide: it is not ended with
// the service or the session that pulley runs in. It returns the group.
func scope(ctx context.Context, id, name string, pid int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, groupDeadline)
	defer cancel()
	unit := groupPrefix + id + scopeSuffix
	err := askSystemd(ctx, "StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail",
		"4", "Description", "s", "Machine "+name+" of Pulley", "Delegate", "b", "true", "Slice", "s", "machine.slice",
		"PIDs", "au", "1", strconv.Itoa(pid), "0")
	if err != nil {
		return "", fmt.Errorf("cannot have systemd make %s: %w", unit, err)
	}
	var group string
	err = poll(ctx, func() (bool, error) {
		var err error
		group, err = groupOf(strconv.Itoa(pid))
		return filepath.Base(group) == unit, err
	})
	if err != nil {
		return "", fmt.Errorf("cannot wait for systemd to move process %d to %s: %w", pid, unit, err)
	}
	return group, nil
}

// askSystemd calls a method of its manager, org.freedesktop.systemd1(5).
func askSystemd(ctx context.Context, method string, args ...string) error {
	args = append([]string{"--quiet", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", method}, args...)
	if out, err := exec.CommandContext(ctx, "busctl", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, tail(string(out), 3))
	}
	return nil
}

// The name of every machine's group begins with groupPrefix; that of a scope of systemd ends with scopeSuffix.
const (
	groupPrefix = "pulley-machine-"
	scopeSuffix = ".scope"
)

// groupDir is the folder of a machine's group, or of one below it. Any other group is refused: to kill the root of a namespace
// of groups is to kill all that runs in it.
func groupDir(root, group string) (string, error) {
	parts := strings.Split(group, "/")
	if slices.Contains(parts, "..") || !slices.ContainsFunc(parts, func(p string) bool { return strings.HasPrefix(p, groupPrefix) }) {
		return "", fmt.Errorf("%q is not the control group of a machine", group)
	}
	return filepath.Join(root, group), nil
}

// killGroup kills every process of a group and of those below it, at once. A group that is not there has none.
func killGroup(group string) error {
	root, err := groupsRoot()
	if err != nil {
		return err
	}
	dir, err := groupDir(root, group)
	if err != nil {
		return err
	}
	err = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) { // gone, or going
		return nil
	}
	return err
}

// removeGroup kills what is left in a group and removes it with those below it.
func removeGroup(ctx context.Context, group string) error {
	root, err := groupsRoot()
	if err != nil {
		return err
	}
	dir, err := groupDir(root, group)
	if err != nil {
		return err
	}
	if err := killGroup(group); err != nil {
		return err
	}
	if strings.HasSuffix(dir, scopeSuffix) && underSystemd() {
		if err := endScope(ctx, dir); err == nil || ctx.Err() != nil {
			return err
		}
	}
	short, cancel := context.WithTimeout(ctx, groupDeadline)
	defer cancel()
	if err := poll(short, func() (bool, error) { return removeGroupDir(dir), nil }); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("cannot wait for the end of what is in control group %s: %w", dir, ctx.Err())
		}
		return fmt.Errorf("cannot remove control group %s: a process in it does not end", dir)
	}
	return nil
}

// endScope waits until systemd has removed the group of a scope in which nothing lives any more. Whoever removes it in systemd's
// place may do so before the kernel has told systemd that it is empty: then the scope would be active for good.
func endScope(ctx context.Context, dir string) error {
	gone := func() (bool, error) {
		removeBelow(dir)
		_, err := os.Stat(dir)
		return errors.Is(err, fs.ErrNotExist), nil
	}
	for _, stop := range []bool{false, true} {
		if stop { // it heard nothing all the same
			if err := askSystemd(ctx, "StopUnit", "ss", filepath.Base(dir), "replace"); err != nil {
				return err
			}
		}
		short, cancel := context.WithTimeout(ctx, groupDeadline/3)
		err := poll(short, gone)
		cancel()
		if err == nil {
			return nil
		}
	}
	return errors.New("systemd keeps its group")
}

// removeGroupDir reports whether a group and those below it are gone. One in which a process lives stays.
func removeGroupDir(dir string) bool {
	removeBelow(dir)
	err := unix.Rmdir(dir)
	return err == nil || errors.Is(err, unix.ENOENT)
}

// removeBelow removes the groups below one, but for those in which a process lives.
func removeBelow(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeGroupDir(filepath.Join(dir, e.Name()))
		}
	}
}
