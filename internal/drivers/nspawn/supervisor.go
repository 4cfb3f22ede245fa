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

	"pulley/internal/drivers/folder"
	"pulley/internal/machines"
)

// argSupervise is the name under which a program runs itself again as a machine's supervisor.
const argSupervise = "pulley-nspawn-supervise"

const (
	inherited     = 3 // the first descriptor beyond stdio: the connection to the starter; then locks
	setUpDeadline = 5 * time.Minute
)

// Mount points in the supervisor's own mount namespace.
const (
	keptRoot   = "/run/machine" // the machine's disk
	groupMount = "/sys/fs/cgroup"
)

// MaybeInit must be the first call of main. It returns at once in a program that a user started. In a program that this package
// started as a supervisor, it never returns.
func MaybeInit() {
	if os.Args[0] != argSupervise {
		return
	}
	_ = unix.CloseRange(inherited, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) // the machine must not inherit the supervisor's locks
	code := 0
	if err := keep(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code) //nolint:forbidigo // this is the whole program of a supervisor
}

// keep is the main function of a supervisor. Its working folder is the machine's. All paths are relative, because the folder moves.
func keep() error {
	var stat unix.Stat_t
	if os.Getpid() != 1 || unix.Fstat(inherited, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return errors.New("cannot keep a machine: not started for that")
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM) // the host is powered off
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGPIPE)
	talk := os.NewFile(inherited, "starter")
	var h handover
	if err := json.NewDecoder(talk).Decode(&h); err != nil {
		return fmt.Errorf("cannot read which machine to keep: %w", err) // the starter was killed: there is no machine
	}
	var a answer
	err := setUp(h)
	if err != nil {
		a.Problem = err.Error()
	}
	_ = json.NewEncoder(talk).Encode(a) // nobody reads it where the starter was killed
	_ = talk.Close()
	if err != nil {
		return err
	}
	go trimConsole()
	s := live(h, stop)
	return folder.WriteJSON(folder.StateFile, s)
}

// setUp prepares the machine and moves its folder to its place. After a failure the kernel drops the mounts.
func setUp(h handover) error {
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
		{"enter its control group", func() error { return enterGroup(h.About.Group) }},
		{"write its state", func() error { return folder.WriteJSON(folder.StateFile, folder.State{State: machines.Building}) }},
		{"move its folder", func() error { return folder.Place(h.About.Name, h.About.ID) }},
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
