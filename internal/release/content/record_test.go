package content

import (
	"strings"
	"testing"
)

// later returns a record in the middle of a line with all fields set.
func later(t testing.TB) (Record, objects) {
	t.Helper()
	src := objects{}
	f := folder{"a": strings.Repeat("first\n", 100), "b": "x"}
	r := src.build(t, f.make(t), Record{}, "1.0.0")
	for _, next := range []string{"second\n", "third\n"} {
		f["a"] = strings.Repeat(next, 100)
		r = src.build(t, f.make(t), r, "")
	}
	return r, src
}

// The numbers of a record decide how much a node allocates and fetches.
func TestRecordCheckRefuses(t *testing.T) {
	good, _ := later(t)
	if good.Chain.Seq != 2 || good.Base.Seq != 0 || good.Chain.Delta == nil {
		t.Fatalf("%+v", good)
	}
	for name, change := range map[string]func(r *Record){
		"no tree":                    func(r *Record) { r.Tree = "" },
		"tree is a path":             func(r *Record) { r.Tree = strings.Repeat("../", 21) + "x" },
		"upper-case tree":            func(r *Record) { r.Tree = strings.ToUpper(r.Tree) },
		"negative files":             func(r *Record) { r.Files = -1 },
		"many files":                 func(r *Record) { r.Files = MaxEntries + 1 },
		"negative bytes":             func(r *Record) { r.Bytes = -1 },
		"many bytes":                 func(r *Record) { r.Bytes = MaxTreeBytes + 1 },
		"no base":                    func(r *Record) { r.Base = Base{} },
		"no base tree":               func(r *Record) { r.Base.Tree = "" },
		"base tree is a path":        func(r *Record) { r.Base.Tree = strings.Repeat("../", 21) + "x" },
		"its own base is another":    func(r *Record) { r.Base.Seq = r.Chain.Seq },
		"base in the future":         func(r *Record) { r.Base.Seq = r.Chain.Seq + 1 },
		"base before the line":       func(r *Record) { r.Base.Seq = -1 },
		"base smaller than index":    func(r *Record) { r.Base.Stored = r.Base.Index.Size - 1 },
		"huge base":                  func(r *Record) { r.Base.Stored = 2*maxObjects*MaxStored + 1 },
		"no index":                   func(r *Record) { r.Base.Index = Object{} },
		"index is a path":            func(r *Record) { r.Base.Index.Hash = "../../x" },
		"empty index":                func(r *Record) { r.Base.Index.Size = 0 },
		"large index":                func(r *Record) { r.Base.Index.Size = MaxStored + 1; r.Base.Stored = 1 << 30 },
		"index decodes to nothing":   func(r *Record) { r.Base.Index.Raw = 0 },
		"index decodes to much":      func(r *Record) { r.Base.Index.Raw = maxRaw + 1 },
		"no line":                    func(r *Record) { r.Chain.Line = "" },
		"long line":                  func(r *Record) { r.Chain.Line = strings.Repeat("1", maxLineBytes+1) },
		"endless line":               func(r *Record) { r.Chain.Seq, r.Base.Seq = maxSeq+1, maxSeq },
		"before the line":            func(r *Record) { r.Chain.Seq, r.Base.Seq = -1, -1 },
		"far behind its base":        func(r *Record) { r.Chain.Seq = maxDeltas + 1 },
		"no delta":                   func(r *Record) { r.Chain.Delta = nil },
		"a delta to the beginning":   func(r *Record) { r.Chain.Seq, r.Base.Tree = 0, r.Tree },
		"delta is a path":            func(r *Record) { r.Chain.Delta.Hash = "../../x" },
		"empty delta":                func(r *Record) { r.Chain.Delta.Size = 0 },
		"large delta":                func(r *Record) { r.Chain.Delta.Size = MaxStored + 1; r.Chain.Stored = 1 << 30 },
		"weightless delta":           func(r *Record) { r.Chain.Delta.Raw = 0 },
		"heavy delta":                func(r *Record) { r.Chain.Delta.Raw = maxWeight + 1; r.Chain.Weight = maxWeight },
		"delta larger than all":      func(r *Record) { r.Chain.Stored = r.Chain.Delta.Size - 1 },
		"delta heavier than all":     func(r *Record) { r.Chain.Weight = r.Chain.Delta.Raw - 1 },
		"negative deltas":            func(r *Record) { r.Chain.Stored = -1 },
		"negative weight":            func(r *Record) { r.Chain.Weight = -1 },
		"endless deltas":             func(r *Record) { r.Chain.Stored = maxSum + 1 },
		"endless weight":             func(r *Record) { r.Chain.Weight, r.Base.Weight = maxSum+1, maxSum },
		"deltas after base too many": func(r *Record) { r.Chain.Weight = maxWeight + 1 },
		"negative deltas of base":    func(r *Record) { r.Base.Deltas = -1 },
		"more before than in all":    func(r *Record) { r.Base.Deltas = r.Chain.Stored + 1 },
		"negative weight of base":    func(r *Record) { r.Base.Weight = -1 },
		"heavier before than in all": func(r *Record) { r.Base.Weight = r.Chain.Weight + 1 },
	} {
		r := good
		delta := *good.Chain.Delta
		r.Chain.Delta = &delta
		change(&r)
		if err := r.Check(); err == nil || !strings.HasPrefix(err.Error(), "cannot accept content record: ") {
			t.Errorf("%s: %v", name, err)
		}
		asked := &counting{}
		s := newStore(t, quick(t))
		if err := s.Install(t.Context(), asked, r); err == nil {
			t.Errorf("%s: installed", name)
		}
		if _, err := OpenView(t.Context(), asked, r); err == nil {
			t.Errorf("%s: opened", name)
		}
		if _, err := References(t.Context(), asked, r); err == nil {
			t.Errorf("%s: listed", name)
		}
		if asked.requests > 0 {
			t.Errorf("%s: fetched before it was refused", name)
		}
	}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
}
