package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// staging is the mount point of the machine's tmpfs during the set-up, in its own mount namespace. Any folder that every host has
// would do: it is hidden once the machine has its own root.
const staging = "/tmp"

// devices of the host that a machine has: no disks, no memory.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// readOnlyProc are the paths where a write would reach the host's kernel.
var readOnlyProc = []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"}

// setup is the state of the set-up, in the machine's first process and its namespaces.
type setup struct {
	config   Config
	identity identity
	carried  []carried
}

// carried is a mount of the host that is attached in the machine.
type carried struct {
	fd   int
	to   string
	file bool
}

// setUp turns the namespaces of this process into the machine.
func setUp(config Config) error {
	unix.Umask(0)
	s := &setup{config: config}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"make its mounts private", s.makePrivate}, // first: until then the host would see each mount
		{"use / as its lower layer", s.refuseChroot},
		{"read the host's /etc", s.readHost},
		{"open binds", s.carryBinds},
		{"open devices", s.carryDevices},
		{"mount its tmpfs", s.mountTmpfs},
		{"empty folders", s.emptyFolders},
		{"mount an overlay of /", s.mountOverlay},
		{"open its own folders", s.carryFolders},
		{"make the overlay its root", s.pivot},
		{"mount /proc and /sys", s.mountKernel},
		{"attach binds and devices", s.attach},
		{"set up /dev", s.setUpDev},
		{"write its identity", s.writeIdentity},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("cannot %s: %w", step.name, err)
		}
	}
	return nil
}

func (s *setup) makePrivate() error {
	return mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
}

// refuseChroot fails in a chroot. There pivot_root leaves the root of the namespace as it is, and the commands of the machine, which
// enter that namespace, would change the host outside of the chroot. A ".." above the root shows one: chroot(2).
func (s *setup) refuseChroot() (err error) {
	root, err := os.Open("/")
	if err != nil {
		return err
	}
	defer root.Close()
	if err := unix.Chroot(staging); err != nil {
		return os.NewSyscallError("chroot", err)
	}
	defer func() { // back to the root of before
		err = errors.Join(err, root.Chdir(), unix.Chroot("."))
	}()
	var inside, above unix.Stat_t
	if err := errors.Join(root.Chdir(), unix.Fstat(int(root.Fd()), &inside), os.Chdir(".."), unix.Stat(".", &above)); err != nil {
		return err
	}
	if inside.Dev != above.Dev || inside.Ino != above.Ino {
		return errors.New("this program runs in a chroot, and its machines would change the host outside of it\nrun it on the host, or in a container")
	}
	return nil
}

func (s *setup) carryBinds() error {
	for _, bind := range s.config.Binds {
		fd, err := s.carry(bind.From, bind.To)
		if err != nil {
			return err
		}
		readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &readOnly); err != nil {
			return &os.PathError{Op: "mount_setattr", Path: bind.From, Err: err}
		}
	}
	return nil
}

func (s *setup) carryDevices() error {
	for _, name := range devices {
		if _, err := s.carry("/dev/"+name, "/dev/"+name); err != nil {
			return err
		}
	}
	return nil
}

// mountTmpfs mounts the file system for all writes of the machine, which have one limit.
func (s *setup) mountTmpfs() error {
	size := fmt.Sprintf("size=%d,mode=0700", s.config.SizeBytes)
	if err := mount("machine", staging, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, size); err != nil {
		return err
	}
	for name, mode := range map[string]os.FileMode{
		"upper": 0o755, "work": 0o755, "root": 0o755,
		"dev": 0o755, "shm": 0o777 | os.ModeSticky, "run": 0o755, "run/lock": 0o777 | os.ModeSticky, "tmp": 0o777 | os.ModeSticky,
	} {
		if err := os.MkdirAll(filepath.Join(staging, name), 0o755); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Join(staging, name), mode); err != nil {
			return err
		}
	}
	return nil
}

// emptyFolders makes each folder opaque in the upper layer.
// https://docs.kernel.org/filesystems/overlayfs.html#whiteouts-and-opaque-directories
func (s *setup) emptyFolders() error {
	for _, path := range s.config.Empty {
		path, err := filepath.EvalSymlinks(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return err
		}
		upper := filepath.Join(staging, "upper")
		lower := "/"
		for name := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
			upper, lower = filepath.Join(upper, name), filepath.Join(lower, name)
			if err := mkdirLike(upper, lower); err != nil {
				return err
			}
		}
		if err := unix.Setxattr(upper, "trusted.overlay.opaque", []byte("y"), 0); err != nil {
			return &os.PathError{Op: "setxattr", Path: upper, Err: err}
		}
	}
	return nil
}

// mkdirLike creates a folder with the owner and mode of another one. It does not change an existing folder.
func mkdirLike(dir, like string) error {
	var stat unix.Stat_t
	if err := unix.Lstat(like, &stat); err != nil {
		return &os.PathError{Op: "lstat", Path: like, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		return &os.PathError{Op: "empty", Path: like, Err: unix.ENOTDIR}
	}
	if err := os.Mkdir(dir, 0o700); errors.Is(err, os.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	if err := os.Chown(dir, int(stat.Uid), int(stat.Gid)); err != nil {
		return err
	}
	return unix.Chmod(dir, stat.Mode&0o7777) // after chown, which removes set-id bits
}

func (s *setup) mountOverlay() error {
	// Without redirect_dir, package managers fail to rename folders of the host.
	options := "lowerdir=/,upperdir=" + staging + "/upper,workdir=" + staging + "/work,redirect_dir=on"
	err := mount("machine", staging+"/root", "overlay", 0, options)
	switch {
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w\nthis kernel has no overlayfs\nrun: modprobe overlay", err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ELOOP):
		return fmt.Errorf("%w\nthe file system of / cannot be the lower layer of an overlay\n"+
			"use a host or container whose / is on a disk of its own", err)
	}
	return err
}

// carryFolders opens the folders of the machine's tmpfs that are no layer of the overlay. They are attached before the devices and
// binds, which may be below them.
func (s *setup) carryFolders() error {
	var folders []carried
	for _, folder := range []struct{ from, to string }{
		{"dev", "/dev"}, {"shm", "/dev/shm"}, {"run", "/run"}, {"tmp", "/tmp"},
	} {
		fd, err := openTree(filepath.Join(staging, folder.from))
		if err != nil {
			return err
		}
		folders = append(folders, carried{fd: fd, to: folder.to})
	}
	s.carried = append(folders, s.carried...)
	return nil
}

// pivot makes the overlay the root of the mount namespace, also for processes that enter later.
func (s *setup) pivot() error {
	if err := os.Chdir(filepath.Join(staging, "root")); err != nil {
		return err
	}
	// With "." twice the old root needs no folder: pivot_root(2).
	if err := unix.PivotRoot(".", "."); err != nil {
		return os.NewSyscallError("pivot_root", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return os.NewSyscallError("umount", err)
	}
	return os.Chdir("/")
}

func (s *setup) mountKernel() error {
	for _, dir := range []string{"/proc", "/sys"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := mount("proc", "/proc", "proc", flags, ""); err != nil {
		return err
	}
	for _, path := range readOnlyProc {
		if err := mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""); errors.Is(err, os.ErrNotExist) {
			continue // absent from some kernels
		} else if err != nil {
			return err
		}
		if err := mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|flags, ""); err != nil {
			return err
		}
	}
	return mount("sysfs", "/sys", "sysfs", flags|unix.MS_RDONLY, "")
}

func (s *setup) setUpDev() error {
	if err := os.Mkdir("/dev/pts", 0o755); err != nil {
		return err
	}
	const tty = "gid=5" // Debian's and Red Hat's group tty, which owns terminals
	if err := mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,"+tty); err != nil {
		return err
	}
	for name, target := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, "/dev/"+name); err != nil {
			return err
		}
	}
	return nil
}

// carry opens a file or folder of the host, for a path in the machine.
func (s *setup) carry(from, to string) (fd int, err error) {
	info, err := os.Stat(from)
	if err != nil {
		return 0, err
	}
	fd, err = openTree(from)
	if err != nil {
		return 0, err
	}
	s.carried = append(s.carried, carried{fd: fd, to: to, file: !info.IsDir()})
	return fd, nil
}

func (s *setup) attach() error {
	for _, c := range s.carried {
		if err := c.makeTarget(); err != nil {
			return err
		}
		if err := unix.MoveMount(c.fd, "", unix.AT_FDCWD, c.to, unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS); err != nil {
			return &os.PathError{Op: "move_mount", Path: c.to, Err: err}
		}
		unix.Close(c.fd)
	}
	return nil
}

func (c carried) makeTarget() error {
	if !c.file {
		return os.MkdirAll(c.to, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(c.to), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(c.to, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return err
	}
	return file.Close()
}

// openTree returns a detached copy of the mounts at and below a path.
func openTree(path string) (fd int, err error) {
	fd, err = unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return 0, &os.PathError{Op: "open_tree", Path: path, Err: err}
	}
	return fd, nil
}

func mount(source, target, fsType string, flags uintptr, options string) error {
	if err := unix.Mount(source, target, fsType, flags, options); err != nil {
		return &os.PathError{Op: "mount", Path: target, Err: err}
	}
	return nil
}
