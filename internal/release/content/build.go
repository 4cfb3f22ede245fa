package content

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// Parent is the release that a new release is built on.
type Parent struct {
	*View
	Last bool // no other release follows it on its line: the new one may
}

// Build creates the objects for the tree of the folder root and passes them to emit. m is the result of ReadTree for
// root. Emit may keep the bytes and may receive the same object more than once. With a parent, Build creates objects
// only for new contents; the first release has the zero Parent. Line is the name of a new line, if the release begins
// one.
//
// Build returns the Record that names all objects, and the delta from the parent, or nil without one. Store both
// together, after emit has stored all objects; until then the release is not visible. A file that no longer matches m
// is an error. Errors of emit are returned.
func Build(ctx context.Context, root string, m *Manifest, parent Parent, line string, emit func(Object, []byte) error) (Record, []byte, error) {
	b := builder{ctx: ctx, manifest: m, parent: parent, line: line, emit: emit}
	r, delta, err := b.build(root)
	if err != nil {
		return Record{}, nil, fmt.Errorf("cannot pack tree %s: %w", root, err)
	}
	return r, delta, nil
}

type builder struct {
	ctx      context.Context
	root     *os.Root
	manifest *Manifest
	parent   Parent
	line     string
	emit     func(Object, []byte) error
}

func (b *builder) build(dir string) (Record, []byte, error) {
	if err := checkEntries(b.manifest.Entries); err != nil {
		return Record{}, nil, err
	}
	var err error
	if b.root, err = os.OpenRoot(dir); err != nil {
		return Record{}, nil, err
	}
	defer b.root.Close()

	r := Record{Tree: b.manifest.Tree(), Files: b.manifest.Files(), Bytes: b.manifest.Bytes(), Chain: Chain{Line: b.line}}
	var delta []byte
	if b.parent.View != nil && b.parent.Last {
		delta, err = b.follow(&r)
		if err != nil && !errors.Is(err, errTooLarge) {
			return Record{}, nil, err
		}
	}
	if b.wantsBase(r) {
		if err := b.base(&r); err != nil {
			return Record{}, nil, err
		}
	}
	return r, delta, r.Check()
}

// follow makes the release its parent's successor on the line. If the delta is errTooLarge, the release begins a new
// line.
func (b *builder) follow(r *Record) ([]byte, error) {
	p := b.parent.record
	differences := Diff(b.parent.manifest, b.manifest)
	contents, dictionary := newContents(b.parent.manifest, differences)
	var size int64
	for _, e := range contents {
		if size += e.Size; size > maxDeltaWeight {
			return nil, errTooLarge
		}
	}
	fresh, err := b.read(contents)
	if err != nil {
		return nil, err
	}
	earlier, err := b.parent.contents(b.ctx, dictionary)
	if err != nil {
		return nil, err
	}
	delta, o, err := encodeDelta(b.parent.manifest, p.Chain.Delta, differences, fresh, join(dictionary, earlier))
	if err != nil {
		return nil, err
	}
	r.Base = p.Base
	r.Chain = Chain{Line: p.Chain.Line, Seq: p.Chain.Seq + 1, Delta: &o, Stored: p.Chain.Stored + o.Size, Weight: p.Chain.Weight + o.Raw}
	return delta, nil
}

func join(entries []Entry, contents map[[sha256.Size]byte][]byte) []byte {
	var b []byte
	for _, e := range entries {
		b = append(b, contents[e.Hash]...)
	}
	return b
}

// read returns the contents of the given entries, concatenated.
func (b *builder) read(entries []Entry) ([]byte, error) {
	var all bytes.Buffer
	for _, e := range entries {
		if err := b.copy(e, &all); err != nil {
			return nil, err
		}
	}
	return all.Bytes(), nil
}

// wantsBase reports whether the release needs its own base. It does if it begins a line, or if the deltas since the
// last base cost an empty node too much.
func (b *builder) wantsBase(r Record) bool {
	if r.Chain.Delta == nil {
		return true
	}
	return r.Chain.Seq-r.Base.Seq > maxDeltas || r.Chain.Weight-r.Base.Weight > maxWeight/2 ||
		(r.Chain.Stored-r.Base.Deltas)*3 > r.Base.Stored+3*maxSmallDeltas
}

// maxSmallDeltas is the size in bytes up to which deltas never require a new base, even if the last base is small.
const maxSmallDeltas = 128 << 10

// base stores the complete tree. It reuses a pack of the parent's base if at least half of the pack is still used.
func (b *builder) base(r *Record) error {
	x := index{}
	places := map[[sha256.Size]byte]int64{}
	tooLarge := func(why string) error {
		if b.parent.View == nil {
			return errors.New(why + "\nleave out what nodes do not need (.pulleyignore)")
		}
		b.parent = Parent{} // too many half-empty packs or spans of earlier bases: start again
		return b.base(r)
	}
	if b.parent.View != nil {
		x.packs = b.reuse(places)
	}
	end, _, _ := sumObjects(x.packs)
	packs, err := b.pack(places, end)
	if err != nil {
		return err
	}
	if x.packs = append(x.packs, packs...); len(x.packs) > maxObjects {
		return tooLarge(fmt.Sprintf("more than %d objects are needed", maxObjects))
	}
	if x.manifest, err = b.packManifest(); err != nil {
		return err
	}
	x.setPlaces(b.manifest, places)
	objects, err := b.packBytes(x.encode())
	if err != nil {
		return err
	}
	if len(objects) != 1 {
		return tooLarge("its index does not fit one value")
	}
	r.Base = Base{
		Seq: r.Chain.Seq, Tree: r.Tree, Index: objects[0], Stored: objects[0].Size + x.stored(),
		Deltas: r.Chain.Stored, Weight: r.Chain.Weight,
	}
	return nil
}

// reuse returns the packs of the parent's base to keep, and records the places of the tree's contents in them.
func (b *builder) reuse(places map[[sha256.Size]byte]int64) []Object {
	old := b.parent.supply
	starts := make([]int64, len(old.index.packs)+1)
	for i, o := range old.index.packs {
		starts[i+1] = starts[i] + o.Raw
	}
	used := make([]int64, len(old.index.packs))
	over := func(e Entry, each func(pack int, bytes int64)) { // the packs that hold a content
		at, ok := old.at[e.Hash]
		if !ok {
			return
		}
		first, _ := slices.BinarySearch(starts, at+1)
		for i := first - 1; i < len(used) && starts[i] < at+e.Size; i++ {
			each(i, min(at+e.Size, starts[i+1])-max(at, starts[i]))
		}
	}
	contents := distinct(b.manifest)
	for _, e := range contents {
		over(e, func(pack int, bytes int64) { used[pack] += bytes })
	}
	var packs []Object
	moved := make([]int64, len(used)) // how far each kept pack moves towards the start
	var gone int64
	for i, o := range old.index.packs {
		if used[i]*2 < o.Raw {
			gone += o.Raw
			used[i] = -1
			continue
		}
		packs = append(packs, o)
		moved[i] = gone
	}
	for _, e := range contents {
		kept, shift := false, int64(-1)
		over(e, func(pack int, _ int64) {
			if shift == -1 {
				kept, shift = true, moved[pack]
			}
			kept = kept && used[pack] >= 0 && moved[pack] == shift
		})
		if kept {
			places[e.Hash] = old.at[e.Hash] - shift
		}
	}
	return packs
}

// pack stores the contents without a place, from the offset end on.
func (b *builder) pack(places map[[sha256.Size]byte]int64, end int64) ([]Object, error) {
	p, err := newPacker(b.emit)
	if err != nil {
		return nil, err
	}
	for _, e := range distinct(b.manifest) {
		if _, ok := places[e.Hash]; ok {
			continue
		}
		if err := b.ctx.Err(); err != nil {
			return nil, err
		}
		if err := p.begin(e.Size); err != nil {
			return nil, err
		}
		if err := b.copy(e, p); err != nil {
			return nil, err
		}
		p.end()
		places[e.Hash] = end
		end += e.Size
	}
	return p.finish()
}

// copy writes the content of an entry.
func (b *builder) copy(e Entry, to io.Writer) error {
	if content, ok := b.manifest.added[e.Path]; ok {
		_, err := to.Write(content)
		return err
	}
	return copyFile(b.root, e, to)
}

// copyFile writes the content of a file and verifies that it still matches the manifest.
func copyFile(root *os.Root, e Entry, to io.Writer) error {
	f, err := openRegular(root, e.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(h, to), io.LimitReader(f, e.Size+1))
	if err != nil {
		return err
	}
	if n != e.Size || [sha256.Size]byte(h.Sum(nil)) != e.Hash {
		return fmt.Errorf("%s changed while it was being read\npublish again when nothing writes to the tree", e.Path)
	}
	return nil
}

func (b *builder) packManifest() ([]Object, error) {
	encoded := b.manifest.Encode()
	if len(encoded) > maxManifestBytes {
		return nil, fmt.Errorf("its paths are too long in sum: a manifest of %d bytes, at most %d are allowed\nleave out what nodes do not need (.pulleyignore)",
			len(encoded), maxManifestBytes)
	}
	return b.packBytes(encoded)
}

func (b *builder) packBytes(raw []byte) ([]Object, error) {
	p, err := newPacker(b.emit)
	if err != nil {
		return nil, err
	}
	if _, err := p.Write(raw); err != nil {
		return nil, err
	}
	return p.finish()
}

// distinct returns the first entry, in manifest order, of every non-empty content. The packs hold these contents.
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
