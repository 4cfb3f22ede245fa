package hieradata

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"pulley/internal/atomicfile"
)

// NodeDigest returns the id of the data of one node in a generation. It is the same for two generations that differ
// only in layers of other nodes, roles and attributes. Such a change causes no run of this node.
func NodeDigest(g Generation, levels Levels) string {
	var b bytes.Buffer
	if levels.isStandard() {
		b.WriteString("pulley node data 1\n")
		for _, l := range levels {
			fmt.Fprintf(&b, "%s %s\n", l.File(), g.Layers[l.Layer])
		}
		return Digest(b.Bytes())
	}
	b.WriteString("pulley node data 2\n")
	for _, l := range levels {
		fmt.Fprintf(&b, "%s %q %s\n", l.Name, l.Layer, g.Layers[l.Layer])
	}
	return Digest(b.Bytes())
}

const stagingPrefix = ".staging-"

// Materialise writes the data of one node to the files of its levels in <root>/<NodeDigest>/ and returns that folder.
// contents contains the bytes of each layer of the levels in the generation, by digest. Materialise checks all digests
// before it writes. A layer that the generation or the node does not have becomes an empty mapping. A complete folder is
// not written again.
func Materialise(root string, g Generation, node string, levels Levels, contents map[string][]byte) (string, error) {
	files := make(map[string][]byte, len(levels)+1)
	for _, l := range levels {
		digest, has := g.Layers[l.Layer]
		if !has {
			files[l.File()] = []byte("{}\n")
			continue
		}
		data, has := contents[digest]
		if !has {
			return "", fmt.Errorf("cannot write data of %s: layer %s of generation %d is missing", node, l.Layer, g.Number)
		}
		if Digest(data) != digest {
			return "", fmt.Errorf("cannot write data of %s: layer %s of generation %d does not match its digest", node, l.Layer, g.Number)
		}
		files[l.File()] = data
	}
	if !levels.isStandard() {
		order, err := json.Marshal(levels)
		if err != nil {
			return "", fmt.Errorf("cannot write data of %s: %w", node, err)
		}
		files[LevelsFile] = order
	}
	dir := filepath.Join(root, NodeDigest(g, levels))
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
		old := digestForm().MatchString(e.Name()) && !slices.Contains(keep, e.Name())
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
