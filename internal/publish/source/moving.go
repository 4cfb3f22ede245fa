package source

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"pulley/internal/release/content"
)

// moving moves the module folders of a Puppetfile out of a tool's way. It moves back the files that the tool did not
// create.
type moving struct {
	work *os.Root // all moves stay within it
	tree string   // the published folder, relative to work
	p    *puppetfile
}

func (m moving) aside(folder int) string { return path.Join(asideFolder, strconv.Itoa(folder)) }

// setAside replaces each folder with an empty one.
func (m moving) setAside() error {
	if err := m.work.Mkdir(asideFolder, 0o700); err != nil {
		return err
	}
	for i, folder := range m.p.folders {
		is := path.Join(m.tree, folder)
		info, err := m.work.Lstat(is)
		switch {
		case err == nil && !info.IsDir():
			return fmt.Errorf("%s, the folder of its modules, is not a folder (%s)\nreplace it by a folder", folder, info.Mode().Type())
		case err == nil:
			err = m.work.Rename(is, m.aside(i))
		case errors.Is(err, fs.ErrNotExist):
			err = nil
		}
		if err == nil {
			err = m.work.MkdirAll(is, 0o755) // r10k reads this folder even if it has no modules to write
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// putBack is the inverse of setAside.
func (m moving) putBack() error {
	for i, folder := range m.p.folders {
		err := m.merge(m.aside(i), folder)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, folder := range m.p.folders {
		_ = m.work.Remove(path.Join(m.tree, folder)) // succeeds only if the folder is still empty
	}
	return nil
}

// merge moves into a folder the files that the tool did not create in it.
func (m moving) merge(from, folder string) error {
	info, err := m.work.Lstat(from)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a folder", folder)
	}
	entries, err := fs.ReadDir(m.work.FS(), from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		was, name := path.Join(from, e.Name()), path.Join(folder, e.Name())
		is := path.Join(m.tree, name)
		_, err := m.work.Lstat(is)
		switch {
		case err == nil && e.IsDir() && m.p.leadsTo(name):
			err = m.merge(was, name)
		case err == nil, e.IsDir() && m.holdsNothing(was):
			continue
		case errors.Is(err, fs.ErrNotExist):
			if err = m.work.MkdirAll(path.Dir(is), 0o755); err == nil {
				err = m.work.Rename(was, is)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// had reports whether a module of the tool is in the place of other files of the folder.
func (m moving) had(module string) bool {
	for i, folder := range m.p.folders {
		if within(module, []string{folder}) {
			was := path.Join(m.aside(i), strings.TrimPrefix(module, folder))
			if info, err := m.work.Lstat(was); err == nil && (!info.IsDir() || !m.holdsNothing(was)) {
				return true
			}
		}
	}
	return false
}

// holdsNothing reports whether a folder contains no files at any depth.
func (m moving) holdsNothing(dir string) bool {
	nothing := true
	err := content.WalkIn(m.work, dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			nothing, err = false, fs.SkipAll
		}
		return err
	})
	return err == nil && nothing
}
