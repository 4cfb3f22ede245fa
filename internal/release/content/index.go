package content

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// index lists the objects of a base and the places of its tree's contents in them.
//
// The decoded packs form one sequence of bytes. Each distinct content of the manifest has a place in this sequence.
// Contents that are adjacent both in the manifest and in the sequence share a span. A later base lists packs of an
// earlier one again and adds only new contents.
type index struct {
	manifest []Object // decoded in order: the encoded manifest
	packs    []Object
	spans    []span
}

// span is a number of adjacent contents.
type span struct {
	at    int64 // bytes from the start of the first pack
	count int64
}

const indexTag = "PUPINDEX1\n"

// encode returns the line PUPINDEX1 and three lists, each preceded by its length. The lists are the manifest's objects,
// the packs (32-byte hash | uvarint size | uvarint raw) and the spans (uvarint place | uvarint count).
func (x *index) encode() []byte {
	b := []byte(indexTag)
	for _, list := range [][]Object{x.manifest, x.packs} {
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, o := range list {
			b = appendObject(b, o)
		}
	}
	b = binary.AppendUvarint(b, uint64(len(x.spans)))
	for _, s := range x.spans {
		b = binary.AppendUvarint(b, uint64(s.at))
		b = binary.AppendUvarint(b, uint64(s.count))
	}
	return b
}

func appendObject(b []byte, o Object) []byte {
	hash := hashBytes(o.Hash)
	b = append(b, hash[:]...)
	b = binary.AppendUvarint(b, uint64(o.Size))
	return binary.AppendUvarint(b, uint64(o.Raw))
}

func decodeIndex(encoded string) (*index, error) {
	x, err := parseIndex(encoded)
	if err != nil {
		return nil, fmt.Errorf("cannot decode index: %w", err)
	}
	return x, nil
}

func parseIndex(encoded string) (*index, error) {
	p, err := newParser(encoded, indexTag)
	if err != nil {
		return nil, err
	}
	x := &index{}
	if x.manifest, err = p.objects(maxManifestBytes); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	if len(x.manifest) == 0 {
		return nil, errors.New("no manifest")
	}
	// Twice the limit of a tree: a pack of an earlier base is kept while half of it is used.
	if x.packs, err = p.objects(2 * MaxTreeBytes); err != nil {
		return nil, fmt.Errorf("packs: %w", err)
	}
	n, err := p.uvarint(MaxEntries)
	if err != nil {
		return nil, err
	}
	for range n {
		var s span
		if s.at, err = p.uvarint(2 * MaxTreeBytes); err != nil {
			return nil, err
		}
		if s.count, err = p.uvarint(MaxEntries); err != nil {
			return nil, err
		}
		x.spans = append(x.spans, s)
	}
	if len(p.rest) > 0 {
		return nil, errTrailing
	}
	return x, nil
}

func (p *parser) objects(maxSum int64) ([]Object, error) {
	n, err := p.uvarint(maxObjects)
	if err != nil {
		return nil, err
	}
	var objects []Object
	for range n {
		o, err := p.object(maxRaw)
		if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	raw, _, err := sumObjects(objects)
	if err == nil && raw > maxSum {
		err = fmt.Errorf("%d bytes once decoded, at most %d are allowed", raw, maxSum)
	}
	return objects, err
}

func (p *parser) object(maxRaw int64) (Object, error) {
	hash, err := p.take(sha256.Size)
	if err != nil {
		return Object{}, err
	}
	o := Object{Hash: fmt.Sprintf("%x", hash)}
	if o.Size, err = p.uvarint(MaxStored); err != nil {
		return Object{}, err
	}
	if o.Raw, err = p.uvarint(maxRaw); err != nil {
		return Object{}, err
	}
	return o, o.check(maxRaw)
}

// stored returns the size in bytes of all objects that the index lists.
func (x *index) stored() int64 {
	_, manifest, _ := sumObjects(x.manifest)
	_, packs, _ := sumObjects(x.packs)
	return manifest + packs
}

// places returns the place in the packs of each distinct content of m.
func (x *index) places(m *Manifest) (map[[sha256.Size]byte]int64, error) {
	end, _, _ := sumObjects(x.packs)
	contents := distinct(m)
	places := make(map[[sha256.Size]byte]int64, len(contents))
	for _, s := range x.spans {
		if s.count > int64(len(contents)) {
			return nil, errors.New("cannot accept index: it has more contents than the manifest")
		}
		at := s.at
		for _, e := range contents[:s.count] {
			if e.Size > end-at {
				return nil, fmt.Errorf("cannot accept index: %q ends after the last pack", e.Path)
			}
			places[e.Hash] = at
			at += e.Size
		}
		contents = contents[s.count:]
	}
	if len(contents) > 0 {
		return nil, errors.New("cannot accept index: it has fewer contents than the manifest")
	}
	return places, nil
}

// setPlaces is the inverse of places.
func (x *index) setPlaces(m *Manifest, places map[[sha256.Size]byte]int64) {
	x.spans = nil
	next := int64(-1)
	for _, e := range distinct(m) {
		at := places[e.Hash]
		if at != next {
			x.spans = append(x.spans, span{at: at})
		}
		x.spans[len(x.spans)-1].count++
		next = at + e.Size
	}
}
