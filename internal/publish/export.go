package publish

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"pulley/internal/atomicfile"
	"pulley/internal/release"
	"pulley/internal/release/content"
)

// ExportTree writes the tree of a release to a new or empty folder, or to a file NAME.tar, NAME.tar.gz or NAME.tgz. It
// installs the release like a node, to a private store next to the target.
func ExportTree(ctx context.Context, s *release.Releases, r release.SignedRelease, to string) error {
	if err := exportTree(ctx, s, r, to); err != nil {
		return fmt.Errorf("cannot export %s to %s: %w", r.Version, to, err)
	}
	return nil
}

func exportTree(ctx context.Context, s *release.Releases, r release.SignedRelease, to string) (err error) {
	if to, err = filepath.Abs(to); err != nil {
		return err
	}
	archive, zipped := archiveName(to)
	if archive {
		if to, err = atomicfile.Follow(to); err != nil {
			return err
		}
	} else {
		if err := newOrEmpty(to); err != nil {
			return err
		}
	}
	if err := checkFolder(filepath.Dir(to)); err != nil {
		return err
	}
	private, err := os.MkdirTemp(filepath.Dir(to), ".pulley-export-")
	if err != nil {
		return besides(err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(private)) }()
	trees, err := content.OpenStore(private)
	if err != nil {
		return err
	}
	trees.Reserve = 0
	if err := trees.Install(ctx, s, r.Content); err != nil {
		if content.Audit(ctx, s, r.Content) != nil { // the cause is in etcd, not on this machine
			err = damaged(ctx, err)
		}
		return err
	}
	root := trees.Path(r.Content.Tree)
	if archive {
		return writeArchive(ctx, to, zipped, root, r.At)
	}
	if err := loosen(root); err != nil {
		return err
	}
	return unix.Rename(root, to) // os.Rename refuses an existing empty folder
}

// CheckExport refuses a target with the extension of an unsupported archive. It would become a folder.
func CheckExport(to string) error {
	unsupported := []string{".zip", ".7z", ".rar", ".cpio", ".gz", ".bz2", ".xz", ".zst", ".lz4", ".tbz", ".tbz2", ".txz", ".tzst"}
	if archive, _ := archiveName(to); to == "-" || !archive && slices.Contains(unsupported, filepath.Ext(to)) {
		return fmt.Errorf("cannot export to %s: give a folder, or a file .tar, .tar.gz or .tgz", to)
	}
	return nil
}

func archiveName(to string) (archive, zipped bool) {
	zipped = strings.HasSuffix(to, ".tar.gz") || strings.HasSuffix(to, ".tgz")
	return zipped || strings.HasSuffix(to, ".tar"), zipped
}

// newOrEmpty refuses a folder that contains files, because they would look like a part of the release.
func newOrEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(entries) > 0:
		return errors.New("the folder is not empty\ngive a new folder, or empty this one first")
	}
	return nil
}

// checkFolder refuses a folder that is not writable.
func checkFolder(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no folder %s", dir)
	case err == nil && !info.IsDir():
		return fmt.Errorf("%s is not a folder", dir)
	}
	return err
}

// besides replaces a temporary name in an error by its folder.
func besides(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return &fs.PathError{Op: "write to", Path: filepath.Dir(path.Path), Err: path.Err}
	}
	return err
}

// loosen restores the modes of the published files. On a node they are read-only.
func loosen(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return os.Chmod(path, exportedMode(info.Mode()))
	})
}

func exportedMode(mode fs.FileMode) fs.FileMode {
	if mode&0o111 != 0 {
		return 0o755
	}
	return 0o644
}

// ExportRecord writes the signed bytes of a release's record to a file, and the signatures to FILE.sig. If the release
// is not signed, it removes the FILE.sig of an earlier export.
func ExportRecord(r release.SignedRelease, file string) (signed bool, err error) {
	err = writeFile(file, append(append([]byte{}, r.Record...), '\n'))
	if err == nil && len(r.Signatures) > 0 {
		err = writeFile(file+".sig", r.Signatures)
	} else if err == nil {
		if err = os.Remove(file + ".sig"); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return false, fmt.Errorf("cannot export the record of %s: %w", r.Version, err)
	}
	return len(r.Signatures) > 0, nil
}

func writeFile(file string, b []byte) error {
	file, err := atomicfile.Follow(file)
	if err != nil {
		return err
	}
	if err := checkFolder(filepath.Dir(file)); err != nil {
		return err
	}
	return withoutTemporary(atomicfile.WriteShared(file, b, 0o644), file)
}

// withoutTemporary replaces the temporary name in an error by the name of the file.
func withoutTemporary(err error, file string) error {
	var link *os.LinkError
	if errors.As(err, &link) {
		return &fs.PathError{Op: "write", Path: file, Err: link.Err}
	}
	return err
}

// writeArchive writes a tree as a tar file. The file depends only on the tree and the time: names are sorted, all times
// are equal, the owner is root.
func writeArchive(ctx context.Context, file string, zipped bool, root string, at time.Time) error {
	err := atomicfile.WriteSharedFunc(file, 0o644, func(f *os.File) (err error) {
		var w io.Writer = f
		if zipped {
			z := gzip.NewWriter(w) // without a file name and a time
			defer func() { err = errors.Join(err, z.Close()) }()
			w = z
		}
		t := tar.NewWriter(w)
		defer func() { err = errors.Join(err, t.Close()) }()
		return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil {
				err = ctx.Err()
			}
			if err != nil || path == root {
				return err
			}
			return addToArchive(t, root, path, d, at)
		})
	})
	return withoutTemporary(err, file)
}

// anyBytes selects GNU's format for names that the standard format cannot hold, because they are not UTF-8.
func anyBytes(h *tar.Header) {
	if !utf8.ValidString(h.Name) || !utf8.ValidString(h.Linkname) {
		h.Format = tar.FormatGNU
	}
}

func addToArchive(t *tar.Writer, root, path string, d fs.DirEntry, at time.Time) error {
	name, err := filepath.Rel(root, path)
	if err != nil {
		return err
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: filepath.ToSlash(name), ModTime: at.UTC().Truncate(time.Second), Uname: "root", Gname: "root"}
	anyBytes(h)
	switch {
	case d.IsDir():
		h.Typeflag, h.Mode, h.Name = tar.TypeDir, 0o755, h.Name+"/"
		return t.WriteHeader(h)
	case d.Type() == fs.ModeSymlink:
		h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
		if h.Linkname, err = os.Readlink(path); err != nil {
			return err
		}
		anyBytes(h)
		return t.WriteHeader(h)
	}
	h.Typeflag, h.Mode, h.Size = tar.TypeReg, int64(exportedMode(info.Mode())), info.Size()
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(t, f)
	return err
}
