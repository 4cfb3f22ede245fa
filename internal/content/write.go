package content

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"pulley/internal/failpoint"
)

// writeTree fills an empty folder with what m lists: folders, then files, then links, so that nothing is ever written
// through a link. It sets modes itself, whatever the umask is.
func writeTree(ctx context.Context, root *os.Root, m *Manifest, src Source, packs []Object) error {
	contents, err := openStream(ctx, src, packs)
	if err != nil {
		return err
	}
	defer contents.close()
	w := writer{root: root, contents: contents, first: map[[sha256.Size]byte]string{}}
	files, half := 0, m.Files()/2
	for _, pass := range []struct {
		takes func(Entry) bool
		write func(Entry) error
	}{
		{func(e Entry) bool { return e.Kind == KindDirectory }, w.directory},
		{Entry.regular, func(e Entry) error {
			if files == half {
				failpoint.Here("install:half-written")
			}
			files++
			return w.file(e)
		}},
		{func(e Entry) bool { return e.Kind == KindLink }, w.link},
	} {
		for _, e := range m.Entries {
			if !pass.takes(e) {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := pass.write(e); err != nil {
				return fmt.Errorf("cannot write %q: %w", e.Path, err)
			}
		}
	}
	return nil
}

type writer struct {
	root     *os.Root
	contents io.Reader
	first    map[[sha256.Size]byte]string // where a content was written first
}

func (w *writer) directory(e Entry) error {
	if err := w.root.Mkdir(e.Path, 0o755); err != nil {
		return err
	}
	f, err := w.root.Open(e.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Chmod(0o755)
}

// file writes one file read-only: trees are never changed in place, and this stops most that try.
func (w *writer) file(e Entry) (err error) {
	from := w.contents
	if path, ok := w.first[e.Hash]; ok {
		f, err := w.root.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		from = f
	}
	f, err := w.root.OpenFile(e.Path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|unix.O_NOFOLLOW, 0o400)
	if err != nil {
		return err
	}
	defer func() {
		if closing := f.Close(); err == nil {
			err = closing
		}
	}()
	h := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(f, h), from, e.Size); err != nil {
		return err
	}
	if [sha256.Size]byte(h.Sum(nil)) != e.Hash {
		return wrongContent(e.Path)
	}
	w.first[e.Hash] = e.Path
	if e.Kind == KindExecutable {
		return f.Chmod(0o555)
	}
	return f.Chmod(0o444)
}

func (w *writer) link(e Entry) error { return w.root.Symlink(e.Target, e.Path) }
