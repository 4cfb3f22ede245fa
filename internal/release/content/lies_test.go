package content

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"
)

// rewritten returns a delta with other contents and correct hashes.
type rewritten struct {
	from                 *Manifest
	previous             *Object
	differences          []Difference
	contents, dictionary []byte
}

// The record of the next release vouches for a delta. An invalid delta must still not reach a disk or block other ways.
func TestInstallRefusesWrongDeltas(t *testing.T) {
	t.Parallel()
	src := objects{}
	f := folder{"a": "first", "b": noise(7, 700), "d/c": "third"}
	one := src.build(t, f.make(t), Record{}, "1.0.0")
	f["a"], f["b"] = "changed", "new "+f["b"]
	two := src.build(t, f.make(t), one, "")
	from, to := mustOpen(t, src, one).manifest, mustOpen(t, src, two).manifest
	good := func() rewritten {
		d := Diff(from, to)
		return rewritten{from, nil, d, []byte("changed" + f["b"]), []byte("first" + f["b"][4:])}
	}
	other := &Manifest{Entries: []Entry{fileEntry("other", "x")}}
	entry := func(e Entry) Difference { return Difference{Path: e.Path, After: &e} }
	for name, lie := range map[string]func(d *rewritten){
		"none":              func(*rewritten) {},
		"from another tree": func(d *rewritten) { d.from = other },
		"no change":         func(d *rewritten) { d.differences, d.contents, d.dictionary = nil, nil, nil },
		"one change too few": func(d *rewritten) {
			d.differences, d.contents, d.dictionary = d.differences[:1], d.contents[:7], nil
		},
		"one more": func(d *rewritten) { d.differences = append(d.differences, entry(dirEntry("e"))) },
		"out of order": func(d *rewritten) {
			d.differences[0], d.differences[1] = d.differences[1], d.differences[0]
		},
		"twice":                  func(d *rewritten) { d.differences = append(d.differences, d.differences[1]) },
		"removes what is not":    func(d *rewritten) { d.differences = append(d.differences, Difference{Path: "x"}) },
		"leads outside":          func(d *rewritten) { d.differences = append(d.differences, entry(fileEntry("../x", "first"))) },
		"absolute":               func(d *rewritten) { d.differences = slices.Insert(d.differences, 0, entry(fileEntry("/x", "first"))) },
		"below a file":           func(d *rewritten) { d.differences = slices.Insert(d.differences, 1, entry(fileEntry("a/x", "first"))) },
		"in no folder":           func(d *rewritten) { d.differences = append(d.differences, entry(fileEntry("x/y", "first"))) },
		"takes a folder away":    func(d *rewritten) { d.differences = append(d.differences, Difference{Path: "d"}) },
		"escaping link":          func(d *rewritten) { d.differences = append(d.differences, entry(linkEntry("x", "../.."))) },
		"a name too alike":       func(d *rewritten) { d.differences = slices.Insert(d.differences, 0, entry(fileEntry("A", "first"))) },
		"other contents":         func(d *rewritten) { d.contents = bytes.ToUpper(d.contents) },
		"contents swapped":       func(d *rewritten) { d.contents = []byte(f["b"] + "changed") },
		"too many contents":      func(d *rewritten) { d.contents = append(d.contents, 'x') },
		"too few contents":       func(d *rewritten) { d.contents = d.contents[:len(d.contents)-1] },
		"no contents":            func(d *rewritten) { d.contents, d.dictionary = nil, nil },
		"against something else": func(d *rewritten) { d.dictionary = d.contents },
	} {
		d := good()
		lie(&d)
		delta, o, err := encodeDelta(d.from, d.previous, d.differences, d.contents, d.dictionary)
		if err != nil {
			t.Fatal(err)
		}
		forged := maps.Clone(src)
		forged[deltaKey("1.0.0", 1)] = delta
		r := two
		r.Chain.Delta, r.Chain.Stored, r.Chain.Weight = &o, o.Size, o.Raw
		refuseBothWays(t, name, forged, one, r, name == "none")
	}
	delta := src[deltaKey("1.0.0", 1)]
	for name, lie := range map[string]func(o *Object) []byte{
		"truncated":     func(*Object) []byte { return delta[:len(delta)-1] },
		"longer":        func(*Object) []byte { return append(bytes.Clone(delta), 0) },
		"flipped bit":   func(*Object) []byte { b := bytes.Clone(delta); b[len(b)/2] ^= 1; return b },
		"empty":         func(*Object) []byte { return nil },
		"another hash":  func(o *Object) []byte { o.Hash = one.Base.Index.Hash; return delta },
		"another size":  func(o *Object) []byte { o.Size--; return delta },
		"lighter":       func(o *Object) []byte { o.Raw = 100; return delta },
		"another value": func(*Object) []byte { return src[one.Base.Index.Hash] },
	} {
		forged, o := maps.Clone(src), *two.Chain.Delta
		forged[deltaKey("1.0.0", 1)] = lie(&o)
		r := two
		r.Chain.Delta = &o
		refuseBothWays(t, name, forged, one, r, false)
	}
	forged := maps.Clone(src)
	delete(forged, deltaKey("1.0.0", 1))
	refuseBothWays(t, "missing", forged, one, two, false)
}

// refuseBothWays tries a release from the previous tree and from nothing.
func refuseBothWays(t *testing.T, name string, src Source, one, two Record, right bool) {
	t.Helper()
	s := newStore(t, quick(t))
	if err := s.Install(t.Context(), src, two); (err == nil) != right {
		t.Errorf("%s, from nothing: %v", name, err)
	}
	if !right {
		wantTrees(t, s)
		if files, err := ReadFiles(t.Context(), src, two, func(string) bool { return true }); err == nil {
			t.Errorf("%s: read %q", name, files)
		}
	}
	s = newStore(t, quick(t))
	mustInstall(t, s, src, one)
	mustActivate(t, s, one.Tree)
	if err := s.Install(t.Context(), src, two); (err == nil) != right {
		t.Errorf("%s: %v", name, err)
	}
	wantCurrent(t, s, one.Tree)
	if !right {
		wantTrees(t, s, one.Tree)
	}
}

// A line with another start than its record gives is refused.
func TestInstallRefusesBrokenLines(t *testing.T) {
	src := objects{}
	f := folder{"a": "0"}
	line := []Record{src.build(t, f.make(t), Record{}, "1.0.0")}
	for n := range 4 {
		f["a"] = fmt.Sprint(n + 1)
		line = append(line, src.build(t, f.make(t), line[n], ""))
	}
	last := line[4]
	for name, lie := range map[string]func(src objects){
		"one is another's":      func(src objects) { src[deltaKey("1.0.0", 2)] = src[deltaKey("1.0.0", 3)] },
		"swapped":               func(src objects) { a, b := deltaKey("1.0.0", 2), deltaKey("1.0.0", 3); src[a], src[b] = src[b], src[a] },
		"the first is missing":  func(src objects) { delete(src, deltaKey("1.0.0", 1)) },
		"one is missing":        func(src objects) { delete(src, deltaKey("1.0.0", 2)) },
		"one is truncated":      func(src objects) { k := deltaKey("1.0.0", 2); src[k] = src[k][:20] },
		"one has a flipped bit": func(src objects) { k := deltaKey("1.0.0", 2); src[k] = bytes.Clone(src[k]); src[k][30] ^= 1 },
	} {
		forged := maps.Clone(src)
		lie(forged)
		refuseBothWays(t, name, forged, line[0], last, false)
		if err := Audit(t.Context(), forged, last); err == nil {
			t.Errorf("%s: passed an audit", name)
		}
		s := newStore(t, quick(t)) // a node beyond the damaged position is not affected
		mustInstall(t, s, src, line[3])
		mustInstall(t, s, forged, last)
	}
	for name, change := range map[string]func(r *Record){
		"another line":     func(r *Record) { r.Chain.Line = "2.0.0" },
		"one further":      func(r *Record) { r.Chain.Seq++ },
		"base one further": func(r *Record) { r.Base.Seq++ },
		"base of another":  func(r *Record) { r.Base.Tree = line[1].Tree },
		"an earlier delta": func(r *Record) { r.Chain.Delta = line[3].Chain.Delta },
		"an earlier tree":  func(r *Record) { r.Tree = line[3].Tree },
		"other files":      func(r *Record) { r.Files++ },
		"other bytes":      func(r *Record) { r.Bytes++ },
		"a delta that follows another": func(r *Record) {
			o, m := *line[2].Chain.Delta, mustOpen(t, src, line[3])
			r.Chain.Delta = relink(t, src, m.manifest, &o)
		},
		"a delta that follows none": func(r *Record) { r.Chain.Delta = relink(t, src, mustOpen(t, src, line[3]).manifest, nil) },
	} {
		r := last
		change(&r)
		s := newStore(t, quick(t))
		if err := s.Install(t.Context(), src, r); err == nil {
			t.Errorf("%s: installed", name)
		}
		wantTrees(t, s)
	}
}

// relink replaces the last delta of the line by one that names another predecessor.
func relink(t *testing.T, src objects, from *Manifest, previous *Object) *Object {
	t.Helper()
	to := &Manifest{Entries: []Entry{fileEntry("a", "4")}}
	delta, o, err := encodeDelta(from, previous, Diff(from, to), []byte("4"), nil)
	if err != nil {
		t.Fatal(err)
	}
	src[deltaKey("1.0.0", 4)] = delta
	return &o
}
