package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"pulley/internal/release/content"
)

// MaxCacheBytes is the size in bytes to which Trim limits a cache. The bases of a few dozen releases fit.
const MaxCacheBytes = 256 << 20

// Cached is a content.Source that keeps objects in a folder of the user. A comparison of the next release with the last
// then reads them from disk. The folder is not trusted: an object with a wrong hash counts as missing. If the folder
// can't be created or written, Cached keeps nothing and reports no error.
type Cached struct {
	Source content.Source
	dir    string
}

var _ content.Source = (*Cached)(nil)

// NewCached wraps a source. It creates the folder dir on first use; with "" it keeps nothing.
func NewCached(src content.Source, dir string) *Cached { return &Cached{src, dir} }

// Object reads an object from the folder, or from the source if the folder lacks it.
func (c *Cached) Object(ctx context.Context, hash string) ([]byte, error) {
	if b := c.read(hash); b != nil {
		return b, nil
	}
	b, err := c.Source.Object(ctx, hash)
	if err == nil && content.HashOf(b) != hash {
		err = fmt.Errorf("cannot accept object %s: its bytes are not those that were published", hash)
	}
	if err != nil {
		return nil, &UnavailableError{err}
	}
	c.Keep(hash, b)
	return b, nil
}

// Deltas reads deltas from the source. It does not keep them: a delta is named by its position on a line, and several
// fleets may use the same name.
func (c *Cached) Deltas(ctx context.Context, line string, from, to int64) ([][]byte, error) {
	all, err := c.Source.Deltas(ctx, line, from, to)
	if err != nil {
		return nil, &UnavailableError{err}
	}
	return all, nil
}

// UnavailableError reports that an earlier release can't be read now. Its text is that of its cause.
type UnavailableError struct{ Cause error }

func (e *UnavailableError) Error() string { return e.Cause.Error() }

func (e *UnavailableError) Unwrap() error { return e.Cause }

// Keep stores an object in the folder.
func (c *Cached) Keep(hash string, b []byte) {
	file := c.file(hash)
	if file == "" || content.HashOf(b) != hash || os.MkdirAll(c.dir, 0o700) != nil {
		return
	}
	if info, err := os.Lstat(file); err == nil && info.Size() == int64(len(b)) && info.Mode().IsRegular() {
		return // read removes a damaged object
	}
	f, err := os.CreateTemp(c.dir, temporary+"*")
	if err != nil {
		return
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		os.Remove(f.Name())
	}
}

// temporary is the prefix of files that are being written. Trim removes those of dead processes.
const temporary = ".new-"

func (c *Cached) read(hash string) []byte {
	file := c.file(hash)
	if file == "" {
		return nil
	}
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, content.MaxStored+1))
	if err != nil || content.HashOf(b) != hash {
		os.Remove(file)
		return nil
	}
	now := time.Now()
	_ = os.Chtimes(file, now, now) // Trim removes objects by the time of their last use
	return b
}

// file returns the path of a kept object. For an invalid hash, which must not become a path, it returns "".
func (c *Cached) file(hash string) string {
	if c.dir == "" || !content.IsHash(hash) {
		return ""
	}
	return filepath.Join(c.dir, hash)
}

// Trim removes the least recently used objects until at most limit bytes remain.
func (c *Cached) Trim(limit int64) error {
	if c.dir == "" {
		return nil
	}
	entries, err := os.ReadDir(c.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot trim the cache: %w", err)
	}
	var files []os.FileInfo
	var total int64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		if c.file(e.Name()) == "" && !strings.HasPrefix(e.Name(), temporary) {
			continue // not a file of the cache
		}
		files = append(files, info)
		total += info.Size()
	}
	slices.SortFunc(files, func(a, b os.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), cmp.Compare(a.Name(), b.Name()))
	})
	for _, info := range files {
		stale := strings.HasPrefix(info.Name(), temporary) && time.Since(info.ModTime()) > time.Hour
		if total <= limit && !stale {
			continue
		}
		if err := os.Remove(filepath.Join(c.dir, info.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot trim the cache: %w", err)
		}
		total -= info.Size()
	}
	return nil
}
