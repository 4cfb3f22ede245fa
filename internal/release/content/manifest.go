package content

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Kind is the type of an entry. The tree hash and the encoded manifest contain its byte.
type Kind byte

// The kinds of entries.
const (
	KindFile       Kind = 'f' // mode 0644
	KindExecutable Kind = 'x' // mode 0755
	KindLink       Kind = 'l'
	KindDirectory  Kind = 'd'
)

// Entry is one name in a tree.
type Entry struct {
	Path   string            // from the root of the tree, with slashes
	Kind   Kind              //
	Size   int64             // bytes of the content or of the target; 0 for a directory
	Hash   [sha256.Size]byte // SHA-256 of the content or of the target; zero for a directory
	Target string            // of a link, relative to the folder of the link
}

func (e Entry) regular() bool { return e.Kind == KindFile || e.Kind == KindExecutable }

// flipped returns the same file with the other mode.
func (e Entry) flipped() Entry {
	if e.Kind == KindExecutable {
		e.Kind = KindFile
	} else {
		e.Kind = KindExecutable
	}
	return e
}

// Manifest lists the contents of a tree, sorted by the bytes of the paths. The root has no entry; every other folder
// has one.
type Manifest struct {
	Entries []Entry

	added map[string][]byte // contents that are not in the folder, by path
}

// Add adds a file whose content is not in the folder that the manifest lists. Its parent folders must be listed.
func (m *Manifest) Add(path string, content []byte) error {
	e := Entry{Path: path, Kind: KindFile, Size: int64(len(content)), Hash: sha256.Sum256(content)}
	at, found := slices.BinarySearchFunc(m.Entries, path, func(e Entry, path string) int { return strings.Compare(e.Path, path) })
	if found {
		return fmt.Errorf("cannot add %q to the tree: it is in the folder already", path)
	}
	m.Entries = slices.Insert(m.Entries, at, e)
	if m.added == nil {
		m.added = map[string][]byte{}
	}
	m.added[path] = content
	return checkEntries(m.Entries)
}

const (
	treeTag     = "PUPTREE1\n"
	manifestTag = "PUPMANIFEST1\n"
)

// Tree returns the tree hash, 64 lower-case hexadecimal digits. It is SHA-256 over the line PUPTREE1 and, for each
// entry, type byte | uvarint length of the path | path | uvarint size | 32-byte hash. Times, owners, other mode bits
// than the executable bit, and packing are not part of it. The hash is therefore the same on every machine.
func (m *Manifest) Tree() string {
	h := sha256.New()
	h.Write([]byte(treeTag))
	var b []byte
	for _, e := range m.Entries {
		b = appendHead(b[:0], e)
		b = append(b, e.Hash[:]...)
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Files returns the number of regular files.
func (m *Manifest) Files() int {
	n := 0
	for _, e := range m.Entries {
		if e.regular() {
			n++
		}
	}
	return n
}

// Bytes returns the sum of the sizes of all regular files.
func (m *Manifest) Bytes() int64 {
	var n int64
	for _, e := range m.Entries {
		if e.regular() {
			n += e.Size
		}
	}
	return n
}

// Encode returns the only valid encoding of the manifest: the line PUPMANIFEST1 and, for each entry, the fields of the
// tree hash. Two fields differ: a link has its target in place of the hash, and a directory has no hash.
func (m *Manifest) Encode() []byte {
	b := []byte(manifestTag)
	for _, e := range m.Entries {
		b = appendEntry(b, e)
	}
	return b
}

func appendEntry(b []byte, e Entry) []byte {
	b = appendHead(b, e)
	switch e.Kind {
	case KindLink:
		b = append(b, e.Target...)
	case KindFile, KindExecutable:
		b = append(b, e.Hash[:]...)
	}
	return b
}

func appendHead(b []byte, e Entry) []byte {
	b = append(b, byte(e.Kind))
	b = binary.AppendUvarint(b, uint64(len(e.Path)))
	b = append(b, e.Path...)
	return binary.AppendUvarint(b, uint64(e.Size))
}

// decodeManifest decodes the result of Encode. It refuses any other encoding of the same manifest, and a manifest that
// breaks a rule for trees (refusedError). The entries share the memory of encoded.
func decodeManifest(encoded string) (*Manifest, error) {
	m, err := parseManifest(encoded)
	if err == nil {
		err = checkEntries(m.Entries)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot decode manifest: %w", err)
	}
	return m, nil
}

func parseManifest(encoded string) (*Manifest, error) {
	if len(encoded) > maxManifestBytes {
		return nil, fmt.Errorf("has %d bytes, at most %d are allowed", len(encoded), maxManifestBytes)
	}
	p, err := newParser(encoded, manifestTag)
	if err != nil {
		return nil, err
	}
	m := &Manifest{}
	for len(p.rest) > 0 {
		if len(m.Entries) == MaxEntries {
			return nil, tooManyEntries()
		}
		e, err := p.entry()
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", len(m.Entries)+1, err)
		}
		m.Entries = append(m.Entries, e)
	}
	return m, nil
}

var errTruncated = errors.New("ends too early")

// parser reads the encodings of this package.
type parser struct{ rest string }

func newParser(encoded, tag string) (*parser, error) {
	rest, ok := strings.CutPrefix(encoded, tag)
	if !ok {
		return nil, errors.New("unknown format, perhaps of a newer Pulley")
	}
	return &parser{rest}, nil
}

func (p *parser) path() (string, error) {
	length, err := p.uvarint(maxPathBytes)
	if err != nil {
		return "", err
	}
	return p.take(length)
}

func (p *parser) entry() (Entry, error) {
	kind, err := p.take(1)
	if err != nil {
		return Entry{}, err
	}
	e := Entry{Kind: Kind(kind[0])}
	if e.Path, err = p.path(); err != nil {
		return Entry{}, err
	}
	if e.Size, err = p.uvarint(MaxFileBytes); err != nil {
		return Entry{}, err
	}
	switch e.Kind {
	case KindFile, KindExecutable:
		hash, err := p.take(sha256.Size)
		copy(e.Hash[:], hash)
		return e, err
	case KindLink:
		e.Target, err = p.take(e.Size)
		e.Hash = sha256.Sum256([]byte(e.Target))
		return e, err
	case KindDirectory:
		return e, nil
	}
	return Entry{}, fmt.Errorf("unknown type %q", kind)
}

func (p *parser) take(n int64) (string, error) {
	if n > int64(len(p.rest)) {
		return "", errTruncated
	}
	taken := p.rest[:n]
	p.rest = p.rest[n:]
	return taken, nil
}

// uvarint reads a number in its shortest encoding. Longer ones would allow several encodings of one manifest.
func (p *parser) uvarint(limit int64) (int64, error) {
	var v uint64
	for i := 0; i < binary.MaxVarintLen64; i++ {
		if i == len(p.rest) {
			return 0, errTruncated
		}
		c := p.rest[i]
		v |= uint64(c&0x7f) << (7 * i)
		if c >= 0x80 {
			continue
		}
		if c == 0 && i > 0 {
			return 0, errors.New("a number is not in its shortest form")
		}
		if v > uint64(limit) {
			return 0, fmt.Errorf("a length of %d, at most %d is allowed", v, limit)
		}
		p.rest = p.rest[i+1:]
		return int64(v), nil
	}
	return 0, errors.New("a number is too long")
}
