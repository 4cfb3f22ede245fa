package nspawn

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/machines"
)

// argKeep is the name under which a program runs itself again, as a machine's keeper.
const argKeep = "pulley-nspawn-keep"

const (
	inherited     = 3 // the first descriptor beyond stdio: the talk with who started the keeper; then locks
	setUpDeadline = time.Minute
)

// Where a keeper has things in its own mount namespace, whatever the host has there.
const (
	keptRoot   = "/run/machine" // the machine's disk
	groupMount = "/sys/fs/cgroup"
)

// MaybeInit must be called first thing in main. It returns at once in a program that was started by a user; where this
// package started it as a keeper, it is that and never returns.
func MaybeInit() {
	if os.Args[0] != argKeep {
		return
	}
	_ = unix.CloseRange(inherited, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) // locks are the keeper's, not its machine's
	code := 0
	if err := keep(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code) //nolint:forbidigo // this is the whole program of a keeper
}

// keep is the life of a keeper. Its working folder is the machine's; all paths are relative, as the folder moves.
func keep() error {
	var stat unix.Stat_t
	if os.Getpid() != 1 || unix.Fstat(inherited, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return errors.New("cannot keep a machine: not started for that")
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM) // of a host that is switched off
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGPIPE)
	talk := os.NewFile(inherited, "who started this")
	var h handover
	if err := json.NewDecoder(talk).Decode(&h); err != nil {
		return fmt.Errorf("cannot read what machine to keep: %w", err) // who started this was killed: there is no machine
	}
	var a answer
	err := setUp(h)
	if err != nil {
		a.Problem = err.Error()
	}
	_ = json.NewEncoder(talk).Encode(a) // to nobody, where who started this was killed meanwhile
	_ = talk.Close()
	if err != nil {
		return err
	}
	go trimConsole()
	s := live(h, stop)
	return writeJSON(stateFile, s)
}

// setUp makes the machine all that it is, up to the folder in its place. Whatever fails, the kernel drops the mounts.
func setUp(h handover) error {
	lower := ""
	for _, step := range []struct {
		what string
		do   func() error
	}{
		// Mounts that the host makes are seen, none is pinned, and none of these are seen by the host.
		{"keep mounts from the host", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "") }},
		{"mount /proc", func() error { return mount("proc", "/proc") }},
		{"mount control groups", func() error {
			if isMounted(groupMount, unix.CGROUP2_SUPER_MAGIC) {
				return nil
			}
			return mount("cgroup2", groupMount)
		}},
		{"open image " + h.Image, func() error {
			fd, err := unix.Open(h.Image, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			lower = filepath.Join("/proc/self/fd", strconv.Itoa(fd))
			return err
		}},
		// What systemd-nspawn leaves in these when it is killed goes with the keeper.
		{"mount /run", func() error { return mount("tmpfs", "/run") }},
		{"mount /tmp", func() error { return mount("tmpfs", "/tmp") }},
		{"mount the disk", func() error { return mountDisk(lower) }},
		{"write onto the disk", func() error { return writeDisk(h.Files) }},
		{"enter its control group", func() error { return enterGroup(h.About.Group) }},
		{"write its state", func() error { return writeJSON(stateFile, state{State: machines.Building}) }},
		{"move its folder", func() error {
			return unix.Renameat2(unix.AT_FDCWD, filepath.Join("..", newPrefix+h.About.Name+"."+h.About.ID), unix.AT_FDCWD, filepath.Join("..", h.About.Name), unix.RENAME_NOREPLACE)
		}},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("cannot %s: %w", step.what, err)
		}
	}
	return nil
}

func mount(kind, dir string) error {
	return unix.Mount(kind, dir, kind, unix.MS_NOSUID|unix.MS_NODEV, "")
}

func mountDisk(lower string) error {
	if err := os.Mkdir(keptRoot, 0o755); err != nil {
		return err
	}
	err := unix.Mount("overlay", keptRoot, "overlay", 0, "lowerdir="+lower+",upperdir=upper,workdir=work")
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w\nmachines have to be kept on a file system that takes them, such as ext4, and not on an overlay: name a `folder` there", err)
	}
	return err
}

func writeDisk(files []file) error {
	disk, err := os.OpenRoot(keptRoot)
	if err != nil {
		return err
	}
	defer disk.Close()
	for _, f := range files {
		if err := f.put(disk); err != nil {
			return err
		}
	}
	return nil
}

// enterGroup moves the keeper aside in the machine's group: a group with groups below it should have no processes.
func enterGroup(group string) error {
	dir := filepath.Join(groupMount, group, "keeper")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
}
