package content

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// A delta changes one tree into the next. Its bytes are the line PUPDELTA1 and two frames: the changes, then the new
// contents. A frame is uvarint raw size, uvarint stored size and the zstd frame; an empty frame is one zero.
//
// The changes begin with the 32-byte hash of the tree to start from. The previous delta of the line follows: 32-byte
// hash, uvarint size, uvarint weight, or only 32 zero bytes if there is none. Then follow the differing paths in order:
// an entry as in a manifest, or '-' and the path if the path was removed.
//
// The new contents are those that the earlier tree does not have, in the order of the changes, each once. They are
// compressed with a dictionary: the earlier contents of the differing paths.
const (
	deltaTag     = "PUPDELTA1\n"
	removed      = '-'
	dictionaryID = 1
	leastInDict  = 8 // bytes; the minimum size of a dictionary
)

// step is a delta with decoded changes and contents that are not yet decoded.
type step struct {
	from        [sha256.Size]byte // tree
	previous    *Object           // the previous delta
	differences []Difference      // After only; Before is set by link
	raw         int64             // bytes of the new contents
	frame       []byte            // holds the new contents

	contents   []Entry // new, in the order of the frame
	dictionary []Entry // earlier
}

// openDelta decodes the changes of a delta. The caller must have checked stored against the hash in o.
func openDelta(stored []byte, o Object, u *unpacker) (*step, error) {
	s, err := parseDelta(stored, o, u)
	if err != nil {
		return nil, fmt.Errorf("cannot decode delta %.12s: %w", o.Hash, err)
	}
	return s, nil
}

func parseDelta(stored []byte, o Object, u *unpacker) (*step, error) {
	p, err := newParser(string(stored), deltaTag)
	if err != nil {
		return nil, err
	}
	raw, changes, err := p.frame(maxDeltaWeight)
	if err != nil {
		return nil, err
	}
	if raw == 0 {
		return nil, errTruncated
	}
	s := &step{}
	contents := ""
	if s.raw, contents, err = p.frame(maxDeltaWeight); err != nil {
		return nil, err
	}
	if len(p.rest) > 0 {
		return nil, errTrailing
	}
	if raw+s.raw > o.Raw {
		return nil, fmt.Errorf("it takes more than the %d bytes of memory that were stated", o.Raw)
	}
	s.frame = []byte(contents)
	decoded, err := u.unpackUpTo([]byte(changes), raw, maxDeltaWeight)
	if err != nil {
		return nil, err
	}
	return s, s.parseChanges(string(decoded))
}

// frame reads the sizes and the bytes of a frame. An empty frame has only one size.
func (p *parser) frame(limit int64) (raw int64, stored string, err error) {
	if raw, err = p.uvarint(limit); err != nil || raw == 0 {
		return 0, "", err
	}
	size, err := p.uvarint(MaxStored)
	if err != nil {
		return 0, "", err
	}
	stored, err = p.take(size)
	return raw, stored, err
}

func (s *step) parseChanges(decoded string) error {
	p := parser{decoded}
	from, err := p.take(sha256.Size)
	if err != nil {
		return err
	}
	copy(s.from[:], from)
	if zero, err := p.take(sha256.Size); err != nil {
		return err
	} else if zero != string(make([]byte, sha256.Size)) {
		p.rest = zero + p.rest
		o, err := p.object(maxDeltaWeight)
		if err != nil {
			return err
		}
		s.previous = &o
	}
	for len(p.rest) > 0 {
		if len(s.differences) == 2*MaxEntries {
			return tooManyEntries()
		}
		d, err := p.difference()
		if err != nil {
			return fmt.Errorf("change %d: %w", len(s.differences)+1, err)
		}
		s.differences = append(s.differences, d)
	}
	return nil
}

func (p *parser) difference() (Difference, error) {
	if len(p.rest) > 0 && p.rest[0] == removed {
		p.rest = p.rest[1:]
		path, err := p.path()
		return Difference{Path: path}, err
	}
	e, err := p.entry()
	return Difference{Path: e.Path, After: &e}, err
}

// link determines, from the tree that the step starts from, the new contents and the dictionary contents.
func (s *step) link(from *Manifest) {
	t := tree(from.Entries)
	for i := range s.differences {
		d := &s.differences[i]
		d.Before = nil
		if e, ok := t.find(d.Path); ok {
			d.Before = &e
		}
	}
	s.contents, s.dictionary = newContents(from, s.differences)
}

func newContents(from *Manifest, differences []Difference) (contents, dictionary []Entry) {
	seen := make(map[[sha256.Size]byte]bool, len(from.Entries))
	for _, e := range from.Entries {
		seen[e.Hash] = true
	}
	used := map[[sha256.Size]byte]bool{}
	var size int64
	for _, d := range differences {
		if e := d.After; e != nil && e.regular() && e.Size > 0 && !seen[e.Hash] {
			seen[e.Hash] = true
			contents = append(contents, *e)
		}
		e := d.Before
		if e == nil || !e.regular() || e.Size == 0 || used[e.Hash] || d.After != nil && d.After.Hash == e.Hash || size+e.Size > maxDictionary {
			continue
		}
		used[e.Hash] = true
		size += e.Size
		dictionary = append(dictionary, *e)
	}
	if len(contents) == 0 || size < leastInDict {
		dictionary = nil
	}
	return contents, dictionary
}

// unpack returns the new contents, concatenated. Their size must match the changes.
func (s *step) unpack(dictionary []byte) ([]byte, error) {
	var want int64
	for _, e := range s.contents {
		want += e.Size
	}
	if want != s.raw {
		return nil, fmt.Errorf("cannot decode delta: its contents have %d bytes instead of %d", s.raw, want)
	}
	if s.raw == 0 {
		return nil, nil
	}
	u, err := newUnpackerFor(maxDeltaWeight, dictionary)
	if err != nil {
		return nil, err
	}
	defer u.close()
	raw, err := u.unpackUpTo(s.frame, s.raw, maxDeltaWeight)
	if err != nil {
		return nil, fmt.Errorf("cannot decode delta: %w", err)
	}
	return raw, nil
}

// encodeDelta returns the delta from one tree to another. The bytes of contents and dictionary are in the order of
// newContents. It returns errTooLarge if the result exceeds the size of one value.
func encodeDelta(from *Manifest, previous *Object, differences []Difference, contents, dictionary []byte) ([]byte, Object, error) {
	changes := appendTree(nil, from.Tree())
	if previous == nil {
		changes = append(changes, make([]byte, sha256.Size)...)
	} else {
		changes = appendObject(changes, *previous)
	}
	for _, d := range differences {
		if d.After != nil {
			changes = appendEntry(changes, *d.After)
			continue
		}
		changes = append(changes, removed)
		changes = binary.AppendUvarint(changes, uint64(len(d.Path)))
		changes = append(changes, d.Path...)
	}
	weight := len(changes) + len(contents) + len(dictionary)
	if weight > maxDeltaWeight {
		return nil, Object{}, errTooLarge
	}
	b := []byte(deltaTag)
	for _, f := range []struct{ raw, dictionary []byte }{{changes, nil}, {contents, dictionary}} {
		b = binary.AppendUvarint(b, uint64(len(f.raw)))
		if len(f.raw) == 0 {
			continue
		}
		encoder, err := newEncoder(len(f.raw), f.dictionary)
		if err != nil {
			return nil, Object{}, err
		}
		stored := encoder.EncodeAll(f.raw, nil)
		if err := encoder.Close(); err != nil {
			return nil, Object{}, err
		}
		b = binary.AppendUvarint(b, uint64(len(stored)))
		b = append(b, stored...)
	}
	if len(b) > MaxStored {
		return nil, Object{}, errTooLarge
	}
	return b, Object{Hash: HashOf(b), Size: int64(len(b)), Raw: int64(weight)}, nil
}

var errTooLarge = errors.New("the delta is too large")

func appendTree(b []byte, tree string) []byte {
	hash := hashBytes(tree)
	return append(b, hash[:]...)
}

// newEncoder creates an encoder for one frame of size bytes. The window covers the complete dictionary.
func newEncoder(size int, dictionary []byte) (*zstd.Encoder, error) {
	window := zstd.MinWindowSize
	for window < size+len(dictionary) && window < maxWindow {
		window *= 2
	}
	options := []zstd.EOption{
		zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(window),
		zstd.WithSingleSegment(true), zstd.WithEncoderCRC(false),
	}
	if len(dictionary) > 0 {
		options = append(options, zstd.WithEncoderDictRaw(dictionaryID, dictionary))
	}
	// A publisher encodes once and every node decodes. The best level takes one second for 27 MB.
	return zstd.NewWriter(nil, options...)
}

// Difference is one path that differs between two trees.
type Difference struct {
	Path          string
	Before, After *Entry // nil if the tree lacks the path
}

// Diff lists the differences between two trees, sorted by path.
func Diff(a, b *Manifest) []Difference {
	var all []Difference
	before, after := a.Entries, b.Entries
	for len(before) > 0 || len(after) > 0 {
		order := 0
		switch {
		case len(before) == 0:
			order = 1
		case len(after) == 0:
			order = -1
		default:
			order = strings.Compare(before[0].Path, after[0].Path)
		}
		switch {
		case order < 0:
			all = append(all, Difference{Path: before[0].Path, Before: &before[0]})
			before = before[1:]
		case order > 0:
			all = append(all, Difference{Path: after[0].Path, After: &after[0]})
			after = after[1:]
		default:
			if before[0] != after[0] {
				all = append(all, Difference{Path: before[0].Path, Before: &before[0], After: &after[0]})
			}
			before, after = before[1:], after[1:]
		}
	}
	return all
}

// apply applies differences to a and returns the result; the caller must check it. It refuses differences that are out
// of order or do not match a.
func apply(a *Manifest, differences []Difference) (*Manifest, error) {
	b := &Manifest{Entries: make([]Entry, 0, len(a.Entries)+len(differences))}
	rest := a.Entries
	for i, d := range differences {
		if i > 0 && d.Path <= differences[i-1].Path {
			return nil, &refusedError{d.Path, "it is changed twice or out of order", hintBroken}
		}
		for len(rest) > 0 && rest[0].Path < d.Path {
			b.Entries = append(b.Entries, rest[0])
			rest = rest[1:]
		}
		there := len(rest) > 0 && rest[0].Path == d.Path
		if there {
			rest = rest[1:]
		}
		switch {
		case d.After != nil:
			b.Entries = append(b.Entries, *d.After)
		case !there:
			return nil, &refusedError{d.Path, "it is to be removed and is not there", hintBroken}
		}
	}
	if b.Entries = append(b.Entries, rest...); len(b.Entries) > MaxEntries {
		return nil, tooManyEntries()
	}
	return b, nil
}
