package hieradata

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"pulley/internal/atomicfile"
	"slices"
	"strings"
)

// slot is one of the four places that a node's data comes from, highest first.
type slot struct {
	file  string
	layer Layer // "" where a node has none
}

func slots(role, node string) []slot {
	s := []slot{{"node.yaml", ForNode(node)}, {"role.yaml", ""}, {"environment.yaml", Environment}, {"common.yaml", Common}}
	if role != "" {
		s[1].layer = ForRole(role)
	}
	return s
}

// Files are the names of the data files of a node in their folder, highest first: what a Hiera hierarchy lists as its paths.
func Files() []string {
	names := make([]string, 0, 4)
	for _, s := range slots("", "") {
		names = append(names, s.file)
	}
	return names
}

// NodeDigest identifies the data that one node sees in a generation. It is the same for two generations that differ only in
// layers of others, so that such a change gives this node nothing to do.
func NodeDigest(g Generation, role, node string) string {
	var b bytes.Buffer
	b.WriteString("pulley node data 1\n")
	for _, s := range slots(role, node) {
		fmt.Fprintf(&b, "%s %s\n", s.file, g.Layers[s.layer])
	}
	return Digest(b.Bytes())
}

const stagingPrefix = ".staging-"

// Materialise writes the data of one node as the files of Files into <root>/<NodeDigest>/ and returns that folder. Contents
// holds the bytes of each layer of Order that the generation has, by digest; bytes that don't have their digest are refused
// before anything is written. A layer that the generation lacks becomes an empty mapping. A complete folder is left alone.
func Materialise(root string, g Generation, role, node string, contents map[string][]byte) (string, error) {
	files := make(map[string][]byte, 4)
	for _, s := range slots(role, node) {
		digest, has := g.Layers[s.layer]
		if !has {
			files[s.file] = []byte("{}\n")
			continue
		}
		data, has := contents[digest]
		if !has {
			return "", fmt.Errorf("cannot write data of %s: layer %s of generation %d is missing", node, s.layer, g.Number)
		}
		if Digest(data) != digest {
			return "", fmt.Errorf("cannot write data of %s: layer %s of generation %d is not what its digest says", node, s.layer, g.Number)
		}
		files[s.file] = data
	}
	dir := filepath.Join(root, NodeDigest(g, role, node))
	if complete(dir, files) {
		return dir, nil
	}
	if err := install(root, dir, files); err != nil {
		return "", fmt.Errorf("cannot write data of %s: %w", node, err)
	}
	return dir, nil
}

// complete reports whether a folder has exactly these files.
func complete(dir string, files map[string][]byte) bool {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != len(files) {
		return false
	}
	for name, want := range files {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(want)) {
			return false
		}
		if have, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(have, want) {
			return false
		}
	}
	return true
}

// install makes dir appear whole or not at all.
func install(root, dir string, files map[string][]byte) (err error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	staging, err := os.MkdirTemp(root, stagingPrefix)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(staging))
		}
	}()
	for name, data := range files {
		if err := writeFile(filepath.Join(staging, name), data); err != nil {
			return err
		}
	}
	if err := atomicfile.SyncFolder(staging); err != nil {
		return err
	}
	// A damaged folder can't be replaced by one rename: a folder that has files is never overwritten. Should the power fail
	// between the two, the next run finds no folder and writes it.
	if _, err := os.Lstat(dir); err == nil {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := os.Rename(staging, dir); err != nil {
		return err
	}
	return atomicfile.SyncFolder(root) // without it a power cut may undo the rename after the node said that it has the data
}

func writeFile(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync() // else a power cut may leave an empty file under the final name
	}
	return errors.Join(err, f.Close())
}

// Collect removes the data folders under root whose names are not in keep, and what an interrupted Materialise left. It
// touches nothing else, and returns the names of what it removed.
func Collect(root string, keep []string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot collect old data: %w", err)
	}
	var removed []string
	var problems []error
	for _, e := range entries {
		old := digestForm.MatchString(e.Name()) && !slices.Contains(keep, e.Name())
		if !e.IsDir() || !old && !strings.HasPrefix(e.Name(), stagingPrefix) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(root, e.Name())); err != nil {
			problems = append(problems, fmt.Errorf("cannot collect old data: %w", err))
			continue
		}
		removed = append(removed, e.Name())
	}
	return removed, errors.Join(problems...)
}
