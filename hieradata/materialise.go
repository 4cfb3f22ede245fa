package hieradata

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"pulley/internal/atomicfile"
)

// slot is one of the four sources of a node's data, highest first.
type slot struct {
	file  string
	layer Layer // "" if the node has none
}

func slots(role, node string) []slot {
	s := []slot{{"node.yaml", ForNode(node)}, {"role.yaml", ""}, {"environment.yaml", Environment}, {"common.yaml", Common}}
	if role != "" {
		s[1].layer = ForRole(role)
	}
	return s
}

// Files returns the names of a node's data files in their folder, highest first. A Hiera hierarchy lists them as its
// paths.
func Files() []string {
	names := make([]string, 0, 4)
	for _, s := range slots("", "") {
		names = append(names, s.file)
	}
	return names
}

// FilesOf returns the names of a node's data files with their layers, highest first, without those that it has no layer
// for.
func FilesOf(role, node string) iter.Seq2[string, Layer] {
	return func(yield func(string, Layer) bool) {
		for _, s := range slots(role, node) {
			if s.layer != "" && !yield(s.file, s.layer) {
				return
			}
		}
	}
}

// NodeDigest returns the id of the data of one node in a generation. It is the same for two generations that differ
// only in layers of other nodes and roles. Such a change causes no run of this node.
func NodeDigest(g Generation, role, node string) string {
	var b bytes.Buffer
	b.WriteString("pulley node data 1\n")
	for _, s := range slots(role, node) {
		fmt.Fprintf(&b, "%s %s\n", s.file, g.Layers[s.layer])
	}
	return Digest(b.Bytes())
}

const stagingPrefix = ".staging-"

// Materialise writes the data of one node to the files of Files in <root>/<NodeDigest>/ and returns that folder.
// contents contains the bytes of each layer of Order in the generation, by digest. Materialise checks all digests
// before it writes. A layer that the generation does not have becomes an empty mapping. A complete folder is not
// written again.
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
			return "", fmt.Errorf("cannot write data of %s: layer %s of generation %d does not match its digest", node, s.layer, g.Number)
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

// install creates dir atomically.
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
		if err := atomicfile.Write(filepath.Join(staging, name), data, 0o600); err != nil {
			return err
		}
	}
	// A folder with files cannot be replaced by one rename. If the power fails between the removal and the rename, the
	// next run finds no folder and writes it.
	if _, err := os.Lstat(dir); err == nil {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := os.Rename(staging, dir); err != nil {
		return err
	}
	// without it, a power cut could undo the rename after the node reported the data
	return atomicfile.SyncFolder(root)
}

// Collect removes the data folders under root whose names are not in keep, and the remains of an interrupted
// Materialise. It touches nothing else, and returns the removed names.
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
