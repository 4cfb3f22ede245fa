// Package bounded reads input up to a limit, and opens files that cannot block. It never returns a part of a longer input as if it
// were the whole.
package bounded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// A TooLargeError is the error for an input that is longer than its limit.
type TooLargeError struct{ Limit int64 }

func (e *TooLargeError) Error() string {
	switch {
	case e.Limit >= 1<<20 && e.Limit%(1<<20) == 0:
		return fmt.Sprintf("it is larger than %d MiB", e.Limit>>20)
	case e.Limit >= 1<<10 && e.Limit%(1<<10) == 0:
		return fmt.Sprintf("it is larger than %d KiB", e.Limit>>10)
	}
	return fmt.Sprintf("it is larger than %d bytes", e.Limit)
}

// Read reads all of r, at most limit bytes; a longer input is a *TooLargeError.
func Read(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, &TooLargeError{limit}
	}
	return b, nil
}

// ReadFile is Read for a regular file. Its errors name the file.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := Read(f, limit)
	var large *TooLargeError
	if errors.As(err, &large) {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return b, err
}

// errDangling differs from fs.ErrNotExist: a caller would go on as if there had never been a file.
var errDangling = errors.New("it is a link to a missing file")

// Open opens a regular file, or a folder, for reading. A link to a missing file is not a missing file. It refuses named pipes, sockets and devices without opening them: an open
// could wait for ever. A descriptor that this process was given is no such file: /dev/stdin, and /dev/fd/63 for `<(command)`.
func Open(path string) (*os.File, error) {
	if IsGiven(path) {
		return os.Open(path)
	}
	return open(path, os.Stat, os.Lstat, os.OpenFile)
}

// OpenIn is Open for a file of a folder, whose links must not lead out of it.
func OpenIn(root *os.Root, name string) (*os.File, error) {
	return open(name, root.Stat, root.Lstat, root.OpenFile)
}

func open(name string, stat, lstat func(string) (fs.FileInfo, error), openFile func(string, int, fs.FileMode) (*os.File, error)) (*os.File, error) {
	if info, err := stat(name); err == nil { // otherwise the error is that of the open
		if err := check(name, info); err != nil {
			return nil, err
		}
	}
	f, err := openFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0) // another file may have its place by now
	if errors.Is(err, fs.ErrNotExist) {
		if info, is := lstat(name); is == nil && info.Mode()&fs.ModeSymlink != 0 {
			err = fmt.Errorf("%w\nmount the volume of that file, restore the file, or remove the link", &fs.PathError{Op: "open", Path: name, Err: errDangling})
		}
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = check(name, info)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ErrIrregular is the error for a named pipe, a socket or a device.
var ErrIrregular = errors.New("not a regular file")

func check(name string, info fs.FileInfo) error {
	if err := Check("open", name, info); err != nil && name != os.DevNull {
		return fmt.Errorf("%w\nreplace it with a regular file", err)
	}
	return nil
}

// Check refuses what is neither a regular file, a folder nor a link, with an error without a remedy.
func Check(op, name string, info fs.FileInfo) error {
	kind, mode := "", info.Mode()
	switch {
	case mode&fs.ModeNamedPipe != 0:
		kind = "a named pipe"
	case mode&fs.ModeSocket != 0:
		kind = "a socket"
	case mode&fs.ModeDevice != 0:
		kind = "a device"
	case mode&fs.ModeIrregular != 0:
		kind = "a special file"
	default:
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: fmt.Errorf("it is %s, %w", kind, ErrIrregular)}
}

// IsGiven reports whether a path is that of a descriptor of this process.
func IsGiven(path string) bool {
	path = filepath.Clean(path)
	return path == "/dev/stdin" || filepath.Dir(path) == "/dev/fd" || filepath.Dir(path) == "/proc/self/fd"
}
