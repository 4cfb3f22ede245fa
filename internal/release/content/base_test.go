package content

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// Otherwise a wrong index makes a node read another content instead of reporting an error.
func TestInstallRefusesWrongIndexes(t *testing.T) {
	m := &Manifest{Entries: []Entry{fileEntry("a", "first"), fileEntry("b", "second"), fileEntry("c", "third")}}
	install := func(change func(x *index)) error {
		r, src := forgeIndex(t, m, change, "firstsecondthird")
		s := newStore(t, quick(t))
		err := s.Install(t.Context(), src, r)
		if err != nil {
			wantTrees(t, s)
			return err
		}
		wantTrees(t, s, r.Tree)
		return Audit(t.Context(), src, r)
	}
	for name, spans := range map[string][]span{
		"as packed": {{0, 3}}, "one by one": {{0, 1}, {5, 1}, {11, 1}}, "with empty spans": {{0, 0}, {0, 3}, {1 << 30, 0}},
	} {
		if err := install(func(x *index) { x.spans = spans }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(x *index){
		"no places":             func(x *index) { x.spans = nil },
		"too few":               func(x *index) { x.spans = []span{{0, 2}} },
		"too many":              func(x *index) { x.spans = []span{{0, 4}} },
		"far too many":          func(x *index) { x.spans = []span{{0, MaxEntries}} },
		"one too many":          func(x *index) { x.spans = []span{{0, 3}, {0, 1}} },
		"overlapping":           func(x *index) { x.spans = []span{{0, 2}, {10, 1}} },
		"all at one place":      func(x *index) { x.spans = []span{{0, 1}, {0, 1}, {0, 1}} },
		"shifted":               func(x *index) { x.spans = []span{{1, 2}, {11, 1}} },
		"behind the end":        func(x *index) { x.spans = []span{{0, 2}, {12, 1}} },
		"far behind the end":    func(x *index) { x.spans = []span{{0, 2}, {2 * MaxTreeBytes, 1}} },
		"no packs":              func(x *index) { x.packs = nil },
		"a pack that is larger": func(x *index) { x.packs[0].Raw++ },
		"a pack of other size":  func(x *index) { x.packs[0].Size++ },
		"a pack of other hash":  func(x *index) { x.packs[0].Hash = goldenTree },
		"a manifest as pack":    func(x *index) { x.packs = x.manifest },
		"a pack as manifest":    func(x *index) { x.manifest = x.packs },
		"manifest twice":        func(x *index) { x.manifest = append(x.manifest, x.manifest...) },
	} {
		if err := install(change); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// The decoder must refuse a second encoding of one index, and numbers beyond the limits.
func TestDecodeIndexRefuses(t *testing.T) {
	o := Object{goldenTree, 1, 1}
	object := string(appendObject(nil, o))
	for name, encoded := range map[string]string{
		"nothing":            "",
		"other format":       "PUPINDEX2\n\x00\x00\x00",
		"cut":                indexTag + "\x01" + object[:20],
		"no manifest":        indexTag + "\x00\x00\x00",
		"no packs":           indexTag + "\x01" + object,
		"no spans":           indexTag + "\x01" + object + "\x00",
		"cut span":           indexTag + "\x01" + object + "\x00\x01\x00",
		"trailing":           indexTag + "\x01" + object + "\x00\x00x",
		"long number":        indexTag + "\x81\x00" + object + "\x00\x00",
		"many objects":       indexTag + "\xff\xff\x7f",
		"many spans":         indexTag + "\x01" + object + "\x00\xff\xff\x7f",
		"empty object":       indexTag + "\x01" + object[:32] + "\x00\x01\x00\x00",
		"object of nothing":  indexTag + "\x01" + object[:32] + "\x01\x00\x00\x00",
		"large object":       indexTag + "\x01" + object[:32] + "\x81\x80\x20\x01\x00\x00",
		"large once decoded": indexTag + "\x01" + object[:32] + "\x01\x81\x80\x40\x00\x00",
		"large manifest":     indexTag + "\x11" + strings.Repeat(object[:32]+"\x01\x80\x80\x40", 17) + "\x00\x00",
		"large packs":        indexTag + "\x01" + object + "\x81\x10" + strings.Repeat(object[:32]+"\x01\x80\x80\x40", 2049) + "\x00",
	} {
		if _, err := decodeIndex(encoded); err == nil || !strings.HasPrefix(err.Error(), "cannot decode index: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	x := &index{manifest: []Object{o}, packs: []Object{o, o}, spans: []span{{0, 1}, {1, 1}}}
	if again, err := decodeIndex(string(x.encode())); err != nil || !bytes.Equal(again.encode(), x.encode()) {
		t.Errorf("%+v, %v", again, err)
	}
}

// A base is due if the deltas are too many, or cost a new node more than the tree. Fewer deltas need none, because a
// base costs etcd a complete tree.
func TestWantsBase(t *testing.T) {
	record := func(change func(r *Record)) Record {
		r := Record{Base: Base{Stored: 3 << 20}, Chain: Chain{Seq: 10, Delta: &Object{}}}
		change(&r)
		return r
	}
	for name, c := range map[string]struct {
		change func(r *Record)
		want   bool
	}{
		"few small deltas":      {func(*Record) {}, false},
		"the first of a line":   {func(r *Record) { r.Chain = Chain{} }, true},
		"as many as allowed":    {func(r *Record) { r.Chain.Seq = maxDeltas }, false},
		"one more":              {func(r *Record) { r.Chain.Seq = maxDeltas + 1 }, true},
		"since an earlier base": {func(r *Record) { r.Chain.Seq, r.Base.Seq = 1000, 1000-maxDeltas }, false},
		"a third of the base":   {func(r *Record) { r.Chain.Stored = 1<<20 + maxSmallDeltas }, false},
		"a byte more":           {func(r *Record) { r.Chain.Stored = 1<<20 + maxSmallDeltas + 1 }, true},
		"before the base":       {func(r *Record) { r.Chain.Stored, r.Base.Deltas = 1<<30, 1<<30 }, false},
		"small beside no base":  {func(r *Record) { r.Base.Stored, r.Chain.Stored = 100, maxSmallDeltas }, false},
		"as heavy as may be":    {func(r *Record) { r.Chain.Weight = maxWeight / 2 }, false},
		"heavier":               {func(r *Record) { r.Chain.Weight = maxWeight/2 + 1 }, true},
		"heavy before the base": {func(r *Record) { r.Chain.Weight, r.Base.Weight = 1<<30, 1<<30 }, false},
	} {
		if got := (&builder{}).wantsBase(record(c.change)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// etcd grows only by the changes, even with a new base: contents of an earlier base are not stored again.
func TestLaterBaseReusesPacks(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(5, 6))
	f := modules(random, 1500)
	src := objects{}
	one := src.build(t, f.make(t), Record{}, "1.0.0")
	before := len(mustOpen(t, src, one).supply.index.packs)

	// A new line: the delta would be too large.
	f["new"] = noise(1, 600<<10)
	for i := range 20 {
		f[fmt.Sprintf("modules/m%d/manifests/f%d.pp", i%20, i)] = text(random, 500)
	}
	fresh := maps.Clone(src)
	root := f.make(t)
	two := src.build(t, root, one, "2.0.0")
	var emitted int64
	for hash, b := range src {
		if _, there := fresh[hash]; !there {
			emitted += int64(len(b))
		}
	}
	v := mustOpen(t, src, two)
	if two.Base.Seq != 0 || two.Chain.Line != "2.0.0" || len(v.supply.index.packs) < before+1 {
		t.Errorf("%+v", two)
	}
	if manifest, _ := v.sizes(); emitted > 600<<10+20*500+manifest+10_000 {
		t.Errorf("%d bytes were stored again, of %d; %d of them manifest", emitted, two.Base.Stored, manifest)
	}
	s := newStore(t, quick(t))
	mustInstall(t, s, src, two)
	wantPublished(t, root, s.Path(two.Tree))

	_, all := v.sizes()

	// If most of the tree is removed, its packs are removed too.
	for p := range f {
		if strings.HasPrefix(p, "modules/") && !strings.HasSuffix(p, "0.pp") {
			delete(f, p)
		}
	}
	f["link"], f["newer"] = "-> new", noise(2, 600<<10)
	root = f.make(t)
	three := src.build(t, root, two, "3.0.0")
	v = mustOpen(t, src, three)
	if _, raw := v.sizes(); raw > 2*three.Bytes || raw > all/2 {
		t.Errorf("%d packs of %d bytes for a tree of %d", len(v.supply.index.packs), raw, three.Bytes)
	}
	mustInstall(t, s, src, three)
	wantPublished(t, root, s.Path(three.Tree))
	s = newStore(t, quick(t))
	mustInstall(t, s, src, three)
	wantPublished(t, root, s.Path(three.Tree))
	if err := Audit(t.Context(), src, three); err != nil {
		t.Error(err)
	}
}

// sizes returns the stored bytes of the index and the manifest, and the raw bytes of the packs.
func (v *View) sizes() (manifest, packs int64) {
	_, manifest, _ = sumObjects(v.supply.index.manifest)
	packs, _, _ = sumObjects(v.supply.index.packs)
	return manifest + v.record.Base.Index.Size, packs
}

// With a base on the line, old nodes need one request and new nodes few deltas.
func TestBaseOnTheLine(t *testing.T) {
	src := objects{}
	f := folder{"a": noise(1, 10<<10)}
	line := []Record{src.build(t, f.make(t), Record{}, "1.0.0")}
	var roots []string
	for n := 1; line[n-1].Base.Seq == 0; n++ {
		if n > 20 {
			t.Fatalf("no base after %+v", line[n-1])
		}
		f["b"] = noise(uint64(n), 30<<10)
		roots = append(roots, f.make(t))
		line = append(line, src.build(t, roots[n-1], line[n-1], ""))
	}
	last := line[len(line)-1]
	if last.Base.Seq != last.Chain.Seq || last.Chain.Line != "1.0.0" || last.Cold() != last.Base.Stored {
		t.Errorf("%+v", last)
	}
	s := newStore(t, quick(t))
	mustInstall(t, s, src, line[len(line)-2])
	asked := &counting{objects: src}
	mustInstall(t, s, asked, last)
	if asked.requests != 1 {
		t.Errorf("a node on the line took %d requests", asked.requests)
	}
	s, asked = newStore(t, quick(t)), &counting{objects: src}
	mustInstall(t, s, asked, last)
	if asked.bytes != int(last.Cold()) {
		t.Errorf("a new node took %d bytes, the record says %d", asked.bytes, last.Cold())
	}
	wantPublished(t, roots[len(roots)-1], s.Path(last.Tree))
}

// Prunes and checks depend on these lists. A missing entry would delete an object that a node needs.
func TestReferencesAndAudit(t *testing.T) {
	f := manyPacks()
	src := objects{}
	one := src.build(t, f.make(t), Record{}, "1.0.0")
	f["dense0"] = "changed"
	two := src.build(t, f.make(t), one, "")
	refs, err := References(t.Context(), src, two)
	if err != nil || !slices.Equal(refs, mustOpen(t, src, two).objects()) || len(refs) != len(src)-1 {
		t.Errorf("%d of %d values, %v", len(refs), len(src), err)
	}
	only := objects{deltaKey("1.0.0", 1): src[deltaKey("1.0.0", 1)]}
	for _, o := range refs {
		only[o.Hash] = src[o.Hash]
	}
	if err := Audit(t.Context(), only, two); err != nil {
		t.Error(err)
	}
	s := newStore(t, quick(t))
	mustInstall(t, s, only, two)
	for key, b := range src {
		for name, bad := range map[string][]byte{"flipped": append(bytes.Clone(b[:len(b)-1]), b[len(b)-1]^1), "truncated": b[:len(b)-1], "missing": nil} {
			damaged := maps.Clone(src)
			damaged[key] = bad
			if bad == nil {
				delete(damaged, key)
			}
			if err := Audit(t.Context(), damaged, two); err == nil {
				t.Errorf("%s %s: passed the audit", name, key)
			}
		}
	}
}

// Publishing a change stores only its delta.
func TestBuildEmitsOnlyWhatIsNew(t *testing.T) {
	src := objects{}
	f := modules(rand.New(rand.NewPCG(7, 8)), 300)
	one := src.build(t, f.make(t), Record{}, "1.0.0")
	f["modules/m0/files/run"] = "#!/bin/sh\nexit 1\n"
	root := f.make(t)
	p := Parent{View: mustOpen(t, src, one), Last: true}
	emitted := 0
	r, delta, err := Build(t.Context(), root, mustRead(t, root), p, "2.0.0", func(Object, []byte) error { emitted++; return nil })
	if err != nil || emitted != 0 || int64(len(delta)) != r.Chain.Delta.Size || r.Base != one.Base || r.Chain.Line != "1.0.0" {
		t.Errorf("%d objects, %+v, %v", emitted, r, err)
	}
	p.Last = false
	r, delta, err = Build(t.Context(), root, mustRead(t, root), p, "2.0.0", src.add)
	if err != nil || delta != nil || r.Chain.Line != "2.0.0" || r.Chain.Seq != 0 || r.Base.Tree != r.Tree {
		t.Errorf("beside another one: %+v, %v", r, err)
	}
	s := newStore(t, quick(t))
	mustInstall(t, s, src, r)
	wantPublished(t, root, s.Path(r.Tree))
}
