package content

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// scribes write small files in parallel while other files are fetched and decoded. Most of the time is spent in the
// kernel, which can create files on several processors at once.
type scribes struct {
	jobs chan scroll
	done sync.WaitGroup

	mu     sync.Mutex
	failed error
}

// scroll is one unchecked content and its paths.
type scroll struct {
	entries []Entry
	content []byte
}

const (
	mostScribes = 4
	smallFile   = 256 << 10
	waiting     = 32 // scrolls; with smallFile this limits memory
)

// hire starts scribes that write below a folder. Masked reports that the umask removes mode bits.
func hire(dir string, masked bool) (*scribes, error) {
	s := &scribes{jobs: make(chan scroll, waiting)}
	for range min(mostScribes, runtime.GOMAXPROCS(0)) {
		b, err := openBeneath(dir)
		if err != nil {
			return nil, s.dismiss(err)
		}
		s.done.Go(func() {
			defer b.close()
			for job := range s.jobs {
				if s.problem() == nil {
					s.note(job.write(b, masked))
				}
			}
		})
	}
	return s, nil
}

// dismiss waits until all files are written and returns the first error.
func (s *scribes) dismiss(err error) error {
	s.note(err)
	close(s.jobs)
	s.done.Wait()
	return s.failed
}

func (s *scribes) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = err
	}
}

func (s *scribes) problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// give queues a content. A returned error belongs to an earlier content.
func (s *scribes) give(entries []Entry, r io.Reader) error {
	content := make([]byte, entries[0].Size)
	if _, err := io.ReadFull(r, content); err != nil {
		return fmt.Errorf("cannot write %q: %w", entries[0].Path, err)
	}
	s.jobs <- scroll{entries, content}
	return s.problem()
}

func (j scroll) write(b *beneath, masked bool) error {
	if sha256.Sum256(j.content) != j.entries[0].Hash {
		return wrongContent(j.entries[0].Path)
	}
	for _, e := range j.entries {
		if e.Size != int64(len(j.content)) { // the manifest gives one hash two sizes
			return wrongContent(e.Path)
		}
		if err := b.writeSmall(e, j.content, masked); err != nil {
			return fmt.Errorf("cannot write %q: %w", e.Path, err)
		}
	}
	return nil
}

// writeSmall creates a file with as few system calls as possible.
func (b *beneath) writeSmall(e Entry, content []byte, masked bool) (err error) {
	dir, name, err := b.at(e.Path)
	if err != nil {
		return err
	}
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, e.perm())
	if err != nil {
		return err
	}
	defer func() {
		if closing := unix.Close(fd); err == nil {
			err = closing
		}
		if err != nil { // another way may provide it
			_ = unix.Unlinkat(dir, name, 0)
		}
	}()
	for len(content) > 0 {
		n, err := unix.Write(fd, content)
		if err != nil && err != unix.EINTR {
			return err
		}
		content = content[max(n, 0):]
	}
	if masked {
		if err := unix.Fchmod(fd, e.perm()); err != nil {
			return err
		}
	}
	return setTime(fd, e)
}

// umaskMasks reports whether the umask removes, or may remove, mode bits that a tree needs. It does not use umask(2),
// because that call changes the umask for a moment.
func umaskMasks() bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return true
	}
	_, after, found := bytes.Cut(status, []byte("\nUmask:"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	mask, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 8, 32)
	return !found || err != nil || mask&0o755 != 0
}
