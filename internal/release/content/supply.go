package content

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
)

// supply provides the contents of a release: from the packs of a base, from deltas, and from local trees.
type supply struct {
	src   Source
	index *index                      // nil if no base was read
	at    map[[sha256.Size]byte]int64 // offsets of contents in the index's packs
	steps []*step
	local func(Entry) ([]byte, error) // contents of local trees, checked; nil if there are none
}

// errNotSupplied reports that a content was not found anywhere.
var errNotSupplied = errors.New("it is neither in the deltas nor on disk")

// each passes the content of every wanted entry to take, once, in the order of the supply. Take must check and use the
// content before it returns.
func (s *supply) each(ctx context.Context, wanted []Entry, take func(Entry, io.Reader) error) error {
	need := map[[sha256.Size]byte]Entry{}
	for _, e := range wanted {
		need[e.Hash] = e
	}
	steps, dictionary := s.unpacking(need)
	fromPacks := map[[sha256.Size]byte]Entry{}
	early := map[[sha256.Size]byte][]byte{} // contents needed for dictionaries
	for hash, e := range dictionary {
		if s.local != nil {
			if b, err := s.local(e); err == nil {
				early[hash] = b
				continue
			}
		}
		fromPacks[hash] = e
	}
	inSteps := map[[sha256.Size]byte]bool{}
	for _, st := range steps {
		for _, e := range st.contents {
			inSteps[e.Hash] = true
		}
	}
	for hash, e := range need {
		if !inSteps[hash] {
			fromPacks[hash] = e
		}
	}
	err := s.readPacks(ctx, fromPacks, func(e Entry, r io.Reader) error {
		if _, ok := dictionary[e.Hash]; !ok {
			return take(e, r)
		}
		b, err := readContent(e, r)
		if err != nil {
			return err
		}
		early[e.Hash] = b
		if _, ok := need[e.Hash]; ok {
			delete(need, e.Hash)
			return take(e, bytes.NewReader(b))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return unpackSteps(ctx, steps, early, func(e Entry, b []byte) error {
		if _, ok := need[e.Hash]; !ok {
			return nil
		}
		delete(need, e.Hash) // a later step may contain the same content again
		return take(e, bytes.NewReader(b))
	})
}

// unpacking returns the steps to unpack, in order, and the dictionary contents that no step contains.
func (s *supply) unpacking(need map[[sha256.Size]byte]Entry) (steps []*step, dictionary map[[sha256.Size]byte]Entry) {
	wanted := make(map[[sha256.Size]byte]Entry, len(need))
	for hash, e := range need {
		if _, packed := s.at[hash]; !packed {
			wanted[hash] = e
		}
	}
	dictionary = map[[sha256.Size]byte]Entry{}
	for i := len(s.steps) - 1; i >= 0; i-- {
		st := s.steps[i]
		if !slices.ContainsFunc(st.contents, func(e Entry) bool { _, ok := wanted[e.Hash]; return ok }) {
			continue
		}
		steps = append(steps, st)
		for _, e := range st.contents {
			delete(dictionary, e.Hash)
		}
		for _, e := range st.dictionary {
			wanted[e.Hash] = e
			dictionary[e.Hash] = e
		}
	}
	slices.Reverse(steps)
	return steps, dictionary
}

// readPacks reads contents in the order of their place in the packs.
func (s *supply) readPacks(ctx context.Context, need map[[sha256.Size]byte]Entry, take func(Entry, io.Reader) error) error {
	if len(need) == 0 {
		return nil
	}
	type part struct {
		Entry
		at int64
	}
	parts := make([]part, 0, len(need))
	for hash, e := range need {
		at, ok := s.at[hash]
		if !ok {
			return fmt.Errorf("cannot get the content of %q: %w", e.Path, errNotSupplied)
		}
		parts = append(parts, part{e, at})
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.at, b.at) })
	next := 0
	in, err := openStream(ctx, s.src, s.index.packs, func(from, to int64) bool {
		for next < len(parts) && parts[next].at+parts[next].Size <= from {
			next++
		}
		return next < len(parts) && parts[next].at < to
	})
	if err != nil {
		return err
	}
	defer in.close()
	for _, p := range parts {
		if err := in.seek(p.at); err != nil {
			return fmt.Errorf("cannot get the content of %q: %w", p.Path, err)
		}
		if err := take(p.Entry, io.LimitReader(in, p.Size)); err != nil {
			return err
		}
	}
	return nil
}

// unpackSteps unpacks the steps in order. It frees contents that no later dictionary needs.
func unpackSteps(ctx context.Context, steps []*step, early map[[sha256.Size]byte][]byte, take func(Entry, []byte) error) error {
	last := map[[sha256.Size]byte]int{}
	for i, st := range steps {
		for _, e := range st.dictionary {
			last[e.Hash] = i
		}
	}
	for i, st := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		var dictionary []byte
		for _, e := range st.dictionary {
			b, ok := early[e.Hash]
			if !ok {
				return fmt.Errorf("cannot decode delta: the earlier content of %q is missing: %w", e.Path, errNotSupplied)
			}
			dictionary = append(dictionary, b...)
			if last[e.Hash] == i {
				delete(early, e.Hash)
			}
		}
		raw, err := st.unpack(dictionary)
		if err != nil {
			return err
		}
		for _, e := range st.contents {
			b := raw[:e.Size:e.Size]
			raw = raw[e.Size:]
			if sha256.Sum256(b) != e.Hash {
				return wrongContent(e.Path)
			}
			if until, ok := last[e.Hash]; ok && until > i {
				early[e.Hash] = b
			}
			if err := take(e, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// readContent reads all of one content and checks it.
func readContent(e Entry, r io.Reader) ([]byte, error) {
	b := make([]byte, e.Size)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	if sha256.Sum256(b) != e.Hash {
		return nil, wrongContent(e.Path)
	}
	return b, nil
}

func wrongContent(path string) error {
	return fmt.Errorf("cannot accept the content of %q: it is not what the manifest says", path)
}
