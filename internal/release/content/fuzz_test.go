package content

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// For any bytes of a store: no panic, and no object is accepted that breaks a rule or has a second encoding.
func FuzzDecodeManifest(f *testing.F) {
	f.Add(string(mustRead(f, golden.make(f)).Encode()))
	f.Add(string(mustRead(f, whole().make(f)).Encode()))
	for _, c := range forbidden() {
		if len(c.entries) < 100 {
			f.Add(string((&Manifest{Entries: c.entries}).Encode()))
		}
	}
	f.Fuzz(func(t *testing.T, encoded string) {
		m, err := decodeManifest(encoded)
		if err != nil {
			return
		}
		if string(m.Encode()) != encoded {
			t.Error("a second spelling of the same manifest was accepted")
		}
		if err := checkEntries(m.Entries); err != nil {
			t.Error(err)
		}
	})
}

// Bytes with a correct hash must not make a node allocate more than declared, or read beyond the frame.
func FuzzDecodePack(f *testing.F) {
	good := slices.Clip(encode(f, "hello, hello, hello, hello"))
	f.Add(good, int64(26))
	f.Add(append(good, 0), int64(26))
	f.Add(append(good, good...), int64(52))
	f.Add(encode(f, noise(1, 2000)+strings.Repeat("ab", 500)), int64(3000))
	u, err := newUnpacker()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, stored []byte, raw int64) {
		got, err := u.unpack(stored, raw)
		if err != nil {
			return
		}
		if int64(len(got)) != raw || cap(got) > maxRaw {
			t.Errorf("%d bytes, room for %d, %d were declared", len(got), cap(got), raw)
		}
		if _, err := u.unpack(append(stored, 0), raw); err == nil {
			t.Error("a trailing byte was accepted")
		}
	})
}

// The sums of a record that passes Check are within the limits, so that it can be planned with.
func FuzzDecodeRecord(f *testing.F) {
	first, _ := publish(f, golden)
	last, _ := later(f)
	for _, r := range []Record{first, last} {
		b, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Record
		if json.Unmarshal(b, &r) != nil || r.Check() != nil {
			return
		}
		if r.Cold() < r.Base.Index.Size || r.Cold() > 2*maxObjects*MaxStored+maxSum {
			t.Errorf("%d bytes from nothing", r.Cold())
		}
		if steps := r.Chain.Seq - r.Base.Seq; steps < 0 || steps > maxDeltas || r.Chain.Weight-r.Base.Weight > maxWeight {
			t.Errorf("%d deltas of %d bytes after its base", steps, r.Chain.Weight-r.Base.Weight)
		}
		if all := ways(r, []*known{{tree: r.Tree, record: r}, {tree: r.Base.Tree}}); all[len(all)-1].from != nil {
			t.Error("no way leads from its base")
		}
	})
}

// A valid index has a place inside the packs for every content.
func FuzzDecodeIndex(f *testing.F) {
	contents := []string{"first", "second", "third"}
	m := &Manifest{Entries: []Entry{fileEntry("a", contents[0]), fileEntry("b", contents[1]), fileEntry("c", contents[2])}}
	add := func(change func(x *index)) {
		forgeIndex(f, m, func(x *index) { change(x); f.Add(string(x.encode())) }, contents...)
	}
	add(func(*index) {})
	add(func(x *index) { x.spans = []span{{5, 1}, {0, 1}, {11, 1}} })
	add(func(x *index) { x.spans = []span{{1 << 30, 3}} })
	add(func(x *index) { x.packs = append(x.packs, x.packs...) })
	for _, r := range []folder{golden, whole(), {}} {
		record, src := publish(f, r)
		encoded, err := fetchWhole(f.Context(), src, []Object{record.Base.Index})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded)
	}
	f.Fuzz(func(t *testing.T, encoded string) {
		x, err := decodeIndex(encoded)
		if err != nil {
			return
		}
		if string(x.encode()) != encoded {
			t.Error("a second spelling of the same index was accepted")
		}
		places, err := x.places(m)
		if err != nil {
			return
		}
		end, _, err := sumObjects(x.packs)
		if err != nil || end > 2*MaxTreeBytes || len(places) != len(contents) {
			t.Errorf("%d bytes, %d contents, %v", end, len(places), err)
		}
		for _, e := range m.Entries {
			if at := places[e.Hash]; at < 0 || at+e.Size > end {
				t.Errorf("%q lies at %d of %d", e.Path, at, end)
			}
		}
	})
}

// changed returns two releases with many differences.
func changed(t testing.TB) (from, to *Manifest, delta []byte, o Object) {
	t.Helper()
	src := objects{}
	f := folder{"a": "first", "b/c": strings.Repeat("second ", 20), "b/d": "#!third", "l": "-> a", "e/": ""}
	one := src.build(t, f.make(t), Record{}, "1.0.0")
	f = folder{"a/b": "first", "b": "#!" + strings.Repeat("second ", 21), "c": "#!third", "l/": "", "ü ö": "new"}
	two := src.build(t, f.make(t), one, "")
	return mustOpen(t, src, one).manifest, mustOpen(t, src, two).manifest, src[deltaKey("1.0.0", 1)], *two.Chain.Delta
}

// A valid delta stays within its declared sizes, in any encoding.
func FuzzOpenDelta(f *testing.F) {
	from, _, delta, o := changed(f)
	f.Add(delta, o.Raw)
	f.Add(delta[:len(delta)-3], o.Raw)
	f.Add(append(slices.Clip(delta), 0), o.Raw)
	f.Add([]byte(deltaTag+"\x40\x05hello\x00"), int64(100))
	u, err := newUnpackerFor(maxDeltaWeight, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, stored []byte, raw int64) {
		s, err := openDelta(stored, Object{Raw: raw}, u)
		if err != nil {
			return
		}
		if s.raw > raw || len(s.frame) > len(stored) {
			t.Errorf("contents of %d bytes in a frame of %d", s.raw, len(s.frame))
		}
		tryStep(t, s, from)
	})
}

// The decoded changes of a delta, and the frame of its contents.
func FuzzApplyDelta(f *testing.F) {
	from, _, delta, o := changed(f)
	u, err := newUnpackerFor(maxDeltaWeight, nil)
	if err != nil {
		f.Fatal(err)
	}
	s, err := openDelta(delta, o, u)
	if err != nil {
		f.Fatal(err)
	}
	p := parser{strings.TrimPrefix(string(delta), deltaTag)}
	raw, changes, err := p.frame(maxDeltaWeight)
	if err != nil {
		f.Fatal(err)
	}
	decoded, err := u.unpack([]byte(changes), raw)
	if err != nil {
		f.Fatal(err)
	}
	head := append(appendTree(nil, from.Tree()), make([]byte, 32)...)
	f.Add(slices.Clone(decoded), s.frame, s.raw)
	f.Add(head, []byte{}, int64(0))
	f.Add(appendEntry(slices.Clone(head), fileEntry("a", "1")), encode(f, "1"), int64(1))
	f.Add(append(slices.Clone(head), "-\x01a-\x01b"...), []byte{}, int64(0))
	f.Add(appendObject(appendTree(nil, from.Tree()), o), []byte{}, int64(0))
	for _, c := range forbidden() {
		if len(c.entries) < 100 {
			b := slices.Clone(head)
			for _, e := range c.entries {
				b = appendEntry(b, e)
			}
			f.Add(b, []byte{}, int64(0))
		}
	}
	f.Fuzz(func(t *testing.T, changes, frame []byte, raw int64) {
		s := &step{raw: raw, frame: frame}
		if s.parseChanges(string(changes)) == nil {
			tryStep(t, s, from)
		}
	})
}

// tryStep applies a step to a tree and unpacks its contents.
func tryStep(t *testing.T, s *step, from *Manifest) {
	t.Helper()
	s.link(from)
	to, err := apply(from, s.differences)
	if err != nil {
		return
	}
	if len(to.Entries) > MaxEntries || !slices.IsSortedFunc(to.Entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) }) {
		t.Errorf("%d entries, perhaps out of order", len(to.Entries))
	}
	if again, err := apply(from, Diff(from, to)); err != nil || again.Tree() != to.Tree() {
		t.Errorf("the difference between the trees leads elsewhere: %v", err)
	}
	var size int64
	for _, e := range s.contents {
		size += e.Size
	}
	if got, err := s.unpack([]byte(strings.Repeat("second ", 20))); err == nil && (int64(len(got)) != size || size > maxDeltaWeight) {
		t.Errorf("%d bytes of contents instead of %d", len(got), size)
	}
}

// A manifest file is trusted only if it matches the tree hash.
func FuzzKnownManifest(f *testing.F) {
	s := newStore(f, quick(f))
	r, src := later(f)
	if err := s.Install(f.Context(), src, r); err != nil {
		f.Fatal(err)
	}
	good, err := os.ReadFile(s.manifestFile(r.Tree))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte("{}\n" + manifestTag))
	f.Add([]byte(`{"tree":"` + r.Tree + `","chain":{"line":"1.0.0","seq":-5,"stored":-9223372036854775808,"weight":9223372036854775807}}`))
	f.Add(binary.AppendUvarint(nil, 1<<63))
	file := filepath.Join(quick(f), "manifest")
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		k, err := lookAt(file, s.Path(r.Tree), r.Tree)
		if err != nil {
			return
		}
		all := ways(r, []*known{k})
		if all[len(all)-1].from != nil || len(all) > 2 {
			t.Errorf("%d ways, none from its base", len(all))
		}
		if k.load(file) == nil && k.manifest.Tree() != r.Tree {
			t.Error("a manifest of another tree was believed")
		}
	})
}
