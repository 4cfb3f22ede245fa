package content

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
)

// Build reads the files that m lists below the folder root and hands the objects that hold them, and m itself, to emit,
// which may keep the bytes. The same object can come more than once. The Record that names them all is worth storing
// only after emit has stored everything; until then nobody can see a part of it. A file that is not what m says, because
// it changed meanwhile, is an error, as is one from emit.
func Build(root string, m *Manifest, emit func(Object, []byte) error) (Record, error) {
	r, err := build(root, m, emit)
	if err != nil {
		return Record{}, fmt.Errorf("cannot pack tree %s: %w", root, err)
	}
	return r, nil
}

func build(dir string, m *Manifest, emit func(Object, []byte) error) (Record, error) {
	if err := checkEntries(m.Entries); err != nil {
		return Record{}, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Record{}, err
	}
	defer root.Close()

	r := Record{Tree: m.Tree(), Files: m.Files(), Bytes: m.Bytes()}
	if r.Packs, err = buildPacks(root, m, emit); err != nil {
		return Record{}, err
	}
	if r.Manifest, err = buildManifest(m, emit); err != nil {
		return Record{}, err
	}
	for _, list := range [][]Object{r.Manifest, r.Packs} {
		for _, o := range list {
			r.Stored += o.Size
		}
	}
	return r, r.Check()
}

func buildPacks(root *os.Root, m *Manifest, emit func(Object, []byte) error) ([]Object, error) {
	p, err := newPacker(emit)
	if err != nil {
		return nil, err
	}
	for _, e := range distinct(m) {
		if err := p.begin(e.Size); err != nil {
			return nil, err
		}
		if err := packFile(root, e, p); err != nil {
			return nil, err
		}
		p.end()
	}
	return p.finish()
}

func packFile(root *os.Root, e Entry, p *packer) error {
	f, err := openRegular(root, e.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(h, p), io.LimitReader(f, e.Size+1))
	if err != nil {
		return err
	}
	if n != e.Size || [sha256.Size]byte(h.Sum(nil)) != e.Hash {
		return fmt.Errorf("%s changed while it was being read\npublish again when nothing writes to the tree", e.Path)
	}
	return nil
}

func buildManifest(m *Manifest, emit func(Object, []byte) error) ([]Object, error) {
	encoded := m.Encode()
	if len(encoded) > maxManifestBytes {
		return nil, fmt.Errorf("its paths are too long in sum: a manifest of %d bytes, at most %d are allowed\npublish a smaller tree",
			len(encoded), maxManifestBytes)
	}
	p, err := newPacker(emit)
	if err != nil {
		return nil, err
	}
	if _, err := p.Write(encoded); err != nil {
		return nil, err
	}
	return p.finish()
}

// distinct returns the first entry, in the order of the manifest, of every content that is not empty: what the packs
// hold, and how they hold it.
func distinct(m *Manifest) []Entry {
	seen := make(map[[sha256.Size]byte]bool, len(m.Entries))
	var entries []Entry
	for _, e := range m.Entries {
		if e.regular() && e.Size > 0 && !seen[e.Hash] {
			seen[e.Hash] = true
			entries = append(entries, e)
		}
	}
	return entries
}
