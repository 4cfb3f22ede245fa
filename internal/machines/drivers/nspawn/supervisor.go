package nspawn

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"pulley/internal/machines/drivers/folder"
)

// argSupervise is the name under which a program runs itself again as a machine's supervisor.
const argSupervise = "pulley-nspawn-supervise"

// Mount points in the supervisor's own mount namespace.
const (
	keptRoot   = "/run/machine" // the machine's disk
	groupMount = "/sys/fs/cgroup"
)

// handover is the input of a supervisor.
type handover struct {
	Image  string `json:"image"`
	Bridge string `json:"bridge"`
	Files  []file `json:"files"`

	about folder.About // as recorded
}

// MaybeInit must be the first call of main. It returns at once in a program that a user started. In a program that this package
// started as a supervisor, it never returns.
func MaybeInit() {
	if os.Args[0] != argSupervise {
		return
	}
	code := 0
	if err := supervise(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code) //nolint:forbidigo // this is the complete program of a supervisor
}

// supervise is the main function of a supervisor.
func supervise() error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM) // the host is powered off
	var h handover
	if err := folder.Supervise(&h, func(a folder.About) error { h.about = a; return setUp(h) }); err != nil {
		return err
	}
	return folder.WriteJSON(folder.StateFile, live(h, stop))
}

// setUp prepares the machine. After a failure the kernel drops the mounts.
func setUp(h handover) error {
	if os.Getpid() != 1 { // of its PID namespace: its mounts would be the host's
		return errors.New("cannot supervise a machine: not in a namespace of its own")
	}
	lower := ""
	for _, step := range []struct {
		what string
		do   func() error
	}{
		// Later mounts of the host appear here, and mounts made here do not appear on the host.
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
		// What a killed systemd-nspawn leaves in these ends with the supervisor.
		{"mount /run", func() error { return mount("tmpfs", "/run") }},
		{"mount /tmp", func() error { return mount("tmpfs", "/tmp") }},
		{"mount the disk", func() error { return mountDisk(lower) }},
		{"write onto the disk", func() error { return writeDisk(h.Files) }},
		{"enter its control group", func() error { return enterGroup(h.about.Group) }},
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
		return fmt.Errorf("%w\nan overlay cannot have its upper layer there\nset `folder` of the provider to a folder on ext4 or xfs", err)
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

// enterGroup moves the supervisor to a group below the machine's: a group with groups below it must have no processes.
func enterGroup(group string) error {
	dir := filepath.Join(groupMount, group, "supervisor")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
}
