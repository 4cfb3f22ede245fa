package content

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"slices"
)

// Walk calls fn for everything in a folder, as fs.WalkDir does, and follows no links. Names may have any bytes: an fs.FS
// refuses those that are not UTF-8.
func Walk(root *os.Root, fn fs.WalkDirFunc) error { return WalkIn(root, ".", fn) }

// WalkIn is Walk for one folder below root. The names are relative to root.
func WalkIn(root *os.Root, dir string, fn fs.WalkDirFunc) error {
	info, err := root.Lstat(dir)
	if err != nil {
		err = fn(dir, nil, err)
	} else {
		err = walk(root, dir, fs.FileInfoToDirEntry(info), fn)
	}
	if errors.Is(err, fs.SkipDir) || errors.Is(err, fs.SkipAll) {
		return nil
	}
	return err
}

func walk(root *os.Root, name string, d fs.DirEntry, fn fs.WalkDirFunc) error {
	if err := fn(name, d, nil); err != nil || !d.IsDir() {
		if errors.Is(err, fs.SkipDir) && d.IsDir() {
			return nil
		}
		return err
	}
	entries, err := readFolder(root, name)
	if err != nil {
		if err = fn(name, d, err); err != nil {
			if errors.Is(err, fs.SkipDir) {
				return nil
			}
			return err
		}
	}
	for _, e := range entries {
		child := e.Name()
		if name != "." {
			child = name + "/" + child
		}
		if err := walk(root, child, e, fn); err != nil {
			if errors.Is(err, fs.SkipDir) { // of a file: skip the rest of its folder
				return nil
			}
			return err
		}
	}
	return nil
}

func readFolder(root *os.Root, name string) ([]fs.DirEntry, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return entries, err
}
