package content

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"pulley/internal/bounded"
)

// known is a complete tree on this node with its manifest. Another release can reuse its files without fetching or
// writing them. The manifest file lies next to the tree and begins with the record as one line of JSON. The time of the
// file is the time of the last complete and successful check of the tree.
type known struct {
	tree     string
	dir      string
	record   Record // as of the installation; not authoritative
	checked  time.Time
	manifest *Manifest // nil until loaded
}

// known lists the installed trees with their positions on their lines.
func (s *Store) known() []*known {
	trees, err := s.installed()
	if err != nil {
		return nil
	}
	var all []*known
	for _, t := range trees {
		if k, err := s.look(t.tree); err == nil {
			all = append(all, k)
		}
	}
	return all
}

// look reads the record of a tree, but not its manifest.
func (s *Store) look(tree string) (*known, error) {
	return lookAt(s.manifestFile(tree), s.Path(tree), tree)
}

const maxRecordLine = 16 << 10

// distrusted reports that the tree shares files with a damaged tree and was not read completely since.
func (k *known) distrusted() bool { return k.checked.Unix() == 0 }

// distrust marks all trees as unchecked. Trees share files, so one damaged tree makes the others suspect. Until a tree
// is read completely, installations of all processes read every file that they take from it.
func (s *Store) distrust() {
	trees, _ := s.installed()
	for _, t := range trees {
		_ = os.Chtimes(s.manifestFile(t.tree), time.Unix(0, 0), time.Unix(0, 0))
	}
	s.dropPrevious()
}

func lookAt(file, dir, tree string) (*known, error) {
	f, err := bounded.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	k := &known{tree: tree, dir: dir, checked: info.ModTime()}
	head, err := io.ReadAll(io.LimitReader(f, maxRecordLine))
	if err != nil {
		return nil, err
	}
	line, _, _ := bytes.Cut(head, []byte("\n"))
	if err := json.Unmarshal(line, &k.record); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return k, nil
}

// load reads the manifest. It checks only the tree hash: the installation checked the rules.
func (k *known) load(file string) error {
	if k.manifest != nil {
		return nil
	}
	b, err := bounded.ReadFile(file, maxRecordLine+maxManifestBytes)
	if err != nil {
		return err
	}
	_, encoded, _ := bytes.Cut(b, []byte("\n"))
	m, err := parseManifest(string(encoded))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if m.Tree() != k.tree {
		return fmt.Errorf("%s: %w", file, errLying)
	}
	k.manifest = m
	return nil
}

// remember writes the manifest of a tree. The caller holds the store's lock.
func (s *Store) remember(tree string, r Record, m *Manifest, checked time.Time) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	// Not flushed: after a power cut the tree hash shows whether the file is valid, and the tree can provide it again.
	next := filepath.Join(s.staging(), "manifest") // a sweep removes it after a crash
	err = os.WriteFile(next, append(append(line, '\n'), m.Encode()...), 0o600)
	if err == nil {
		err = os.Chtimes(next, checked, checked)
	}
	if err == nil {
		err = os.Rename(next, s.manifestFile(tree))
	}
	if err != nil {
		_ = os.Remove(next) // it may have filled the disk
	}
	return err
}

// Position returns the position of an installed tree on its line. ok is false if the position is not known.
func (s *Store) Position(tree string) (line string, seq int64, ok bool) {
	if !s.Has(tree) {
		return "", 0, false
	}
	k, err := s.look(tree)
	if err != nil || k.record.Chain.Line == "" {
		return "", 0, false
	}
	return k.record.Chain.Line, k.record.Chain.Seq, true
}

// stock is the contents of some trees.
type stock struct {
	trees []*known
	files map[stocked]place
	roots map[string]*beneath
}

// stocked is a content with a mode. A file with another mode can't be linked.
type stocked struct {
	hash [sha256.Size]byte
	kind Kind
}

type place struct {
	tree *known
	path string
}

func newStock(trees []*known) *stock {
	s := &stock{trees: trees, files: map[stocked]place{}, roots: map[string]*beneath{}}
	for _, k := range trees {
		for _, e := range k.manifest.Entries {
			if e.regular() && e.Size > 0 {
				s.files[stocked{e.Hash, e.Kind}] = place{k, e.Path}
			}
		}
	}
	return s
}

func (s *stock) close() {
	for _, b := range s.roots {
		b.close()
	}
}

// find returns the place of a content with this mode.
func (s *stock) find(e Entry) (place, bool) {
	p, ok := s.files[stocked{e.Hash, e.Kind}]
	return p, ok
}

// has reports whether a content can be linked or copied.
func (s *stock) has(e Entry) bool {
	_, ok := s.find(e)
	_, flipped := s.find(e.flipped())
	return ok || flipped
}

func (s *stock) root(k *known) (*beneath, error) {
	if b, ok := s.roots[k.tree]; ok {
		return b, nil
	}
	b, err := openBeneath(k.dir)
	if err == nil {
		s.roots[k.tree] = b
	}
	return b, err
}

// read returns a content of any mode, after a check.
func (s *stock) read(e Entry) ([]byte, error) {
	for _, kind := range []Kind{KindFile, KindExecutable} {
		p, ok := s.files[stocked{e.Hash, kind}]
		if !ok {
			continue
		}
		f, err := s.open(p)
		if err != nil {
			continue
		}
		b, err := readContent(e, f)
		f.Close()
		if err == nil {
			return b, nil
		}
	}
	return nil, errNotSupplied
}

func (s *stock) open(p place) (*os.File, error) {
	root, err := s.root(p.tree)
	if err != nil {
		return nil, err
	}
	return root.open(p.path)
}

// right reads a file and reports whether its content matches.
func (s *stock) right(p place, e Entry) bool {
	f, err := s.open(p)
	if err != nil {
		return false
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(f, e.Size+1))
	return err == nil && n == e.Size && [sha256.Size]byte(h.Sum(nil)) == e.Hash
}
