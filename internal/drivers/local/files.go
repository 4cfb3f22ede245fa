package local

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"pulley/internal/atomicfile"

	"golang.org/x/sys/unix"
)

// ReadFile reads a file in the machine. Errors wrap os.ErrNotExist and similar.
func (m *Machine) ReadFile(path string) ([]byte, error) {
	data, err := m.readFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s in machine %s: %w", path, m.hostname, err)
	}
	return data, nil
}

// WriteFile writes a file in the machine, whole or not at all, owned by root, and creates its folders. It replaces a link at the
// path.
func (m *Machine) WriteFile(path string, data []byte, mode os.FileMode) error {
	if err := m.writeFile(path, data, mode); err != nil {
		return fmt.Errorf("cannot write %s in machine %s: %w", path, m.hostname, err)
	}
	return nil
}

func (m *Machine) readFile(path string) ([]byte, error) {
	root, err := m.root()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	// O_NONBLOCK: a FIFO at the path is an error.
	file, err := openIn(root, path, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	return io.ReadAll(file)
}

func (m *Machine) writeFile(path string, data []byte, mode os.FileMode) error {
	if filepath.Base(path) == "/" || filepath.Base(path) == "." {
		return errors.New("not the path of a file")
	}
	root, err := m.root()
	if err != nil {
		return err
	}
	defer root.Close()
	parent, err := mkdirIn(root, filepath.Dir(filepath.Clean(path)))
	if err != nil {
		return err
	}
	defer parent.Close()
	dir, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", parent.Fd()))
	if err != nil {
		return err
	}
	defer dir.Close()
	return atomicfile.WriteIn(dir, filepath.Base(path), mode, false, func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
}

// removeFile removes a file or link in the machine, where it exists.
func (m *Machine) removeFile(path string) error {
	root, err := m.root()
	if err != nil {
		return err
	}
	defer root.Close()
	parent, err := openIn(root, filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		defer parent.Close()
		err = unix.Unlinkat(int(parent.Fd()), filepath.Base(path), 0)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// root opens the machine's root folder.
func (m *Machine) root() (*os.File, error) {
	root, err := os.OpenFile(fmt.Sprintf("/proc/%d/root", m.Pid()), unix.O_PATH|unix.O_DIRECTORY, 0)
	// The process is alive after its number was used: the number is its own.
	if err != nil || unix.PidfdSendSignal(int(m.pidfd.Fd()), 0, nil, 0) != nil {
		if root != nil {
			root.Close()
		}
		return nil, errors.New("the machine has ended")
	}
	return root, nil
}

// mkdirIn opens a folder below the root, and creates it and its parents where they are missing.
func mkdirIn(root *os.File, dir string) (*os.File, error) {
	file, err := openIn(root, dir, unix.O_PATH|unix.O_DIRECTORY)
	if !errors.Is(err, os.ErrNotExist) || dir == "/" || dir == "." {
		return file, err
	}
	parent, err := mkdirIn(root, filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	if err := unix.Mkdirat(int(parent.Fd()), filepath.Base(dir), 0o755); err != nil && err != unix.EEXIST {
		return nil, &os.PathError{Op: "mkdir", Path: dir, Err: err}
	}
	return openIn(root, dir, unix.O_PATH|unix.O_DIRECTORY)
}

// openIn opens a path as a process with that root does: links lead to the machine's files, never to the host's.
func openIn(root *os.File, path string, flags uint64) (*os.File, error) {
	fd, err := unix.Openat2(int(root.Fd()), path, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
