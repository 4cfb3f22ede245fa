// Package bounded reads input up to a limit. It never returns a part of a longer input as if it were the whole.
package bounded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
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

// ReadFile is Read for a file. Its errors name the file.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
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
