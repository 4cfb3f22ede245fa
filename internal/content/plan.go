package content

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"syscall"
)

// way is how a node gets a release: from a tree that it has, by deltas, or by the base.
type way struct {
	from  *known // nil: the base
	bytes int64  // that are fetched, at most
}

func (w way) String() string {
	if w.from == nil {
		return "from its base"
	}
	return fmt.Sprintf("from tree %.12s by deltas", w.from.tree)
}

// maxSteps is how many deltas are taken at most; each costs a pass over the manifest.
const maxSteps = 2 * MaxDeltas

// ways lists how a release can be had, the cheapest first. The sizes come from its record, and from those of the trees that
// are here; should they be wrong, the way is only a detour.
func ways(r Record, have []*known) []way {
	all := []way{{bytes: r.Cold()}}
	for _, k := range have {
		c := k.record.Chain
		steps := r.Chain.Seq - c.Seq
		if k.record.Tree != k.tree || c.Line != r.Chain.Line || steps < 0 || steps > maxSteps || r.Chain.Weight-c.Weight > MaxWeight {
			continue
		}
		all = append(all, way{from: k, bytes: r.Chain.Stored - c.Stored})
	}
	slices.SortStableFunc(all, func(a, b way) int { return cmp.Compare(a.bytes, b.bytes) })
	return all[:min(len(all), 1+slices.IndexFunc(all, func(w way) bool { return w.from == nil }))]
}

// get reads what a way leads to: the release's manifest, and where its contents come from.
func (s *Store) get(ctx context.Context, src Source, r Record, w way) (*Manifest, *supply, error) {
	if w.from == nil {
		v, err := openView(ctx, src, r)
		if err != nil {
			return nil, nil, err
		}
		return v.manifest, &v.supply, nil
	}
	if err := w.from.load(s.manifestFile(w.from.tree)); err != nil {
		return nil, nil, err
	}
	steps, m, err := fetchSteps(ctx, src, r, w.from.record.Chain, w.from.manifest)
	if err != nil {
		return nil, nil, err
	}
	return m, &supply{src: src, steps: steps}, nil
}

// stockFor is what the trees that are here have in common with a release. By deltas only the tree that they start from
// matters: what is new to it comes with them.
func (s *Store) stockFor(w way, have []*known) *stock {
	var trees []*known
	for _, k := range have {
		if w.from != nil && k != w.from {
			continue
		}
		if err := k.load(s.manifestFile(k.tree)); err == nil {
			trees = append(trees, k)
		}
	}
	return newStock(trees)
}

// need is the room that writing a tree takes: nothing but folders for what can be linked.
type need struct {
	bytes  int64 // on disk, in whole blocks
	inodes int64
}

func needs(m *Manifest, linked func(Entry) bool, there func(Entry) bool, fetched, blockSize int64) need {
	blocks := func(size int64) int64 { return (size + blockSize - 1) / blockSize * blockSize }
	n := need{bytes: blockSize + blocks(fetched), inodes: 2} // the root, and the manifest beside it
	for _, e := range m.Entries {
		if there(e) {
			continue
		}
		switch {
		case e.Kind == KindDirectory:
			n.bytes += blockSize
		case e.regular() && linked(e):
			continue
		default:
			n.bytes += blocks(e.Size)
		}
		n.inodes++
	}
	return n
}

// room is what a file system has.
type room struct {
	blockSize               int64
	freeBytes, totalBytes   int64
	freeInodes, totalInodes int64 // both 0 where the file system makes inodes as it needs them
}

// DefaultReserve is how much an installation leaves free for the rest of the machine, in bytes.
const DefaultReserve = 256 << 20

// NoSpaceError says that a tree was not installed because that would fill the disk. errors.Is(err, syscall.ENOSPC) is true
// of it, as it is when the disk fills up while a tree is being written. Collecting old trees may help.
type NoSpaceError struct {
	Dir                         string
	NeedBytes, NeedInodes       int64
	FreeBytes, FreeInodes       int64
	ReserveBytes, ReserveInodes int64 // what has to stay free
}

func (e *NoSpaceError) Error() string {
	return fmt.Sprintf("not enough room in %s: %d bytes and %d inodes are needed, %d and %d are free, %d and %d of them stay reserved\n"+
		"free some space there",
		e.Dir, e.NeedBytes, e.NeedInodes, e.FreeBytes, e.FreeInodes, e.ReserveBytes, e.ReserveInodes)
}

func (e *NoSpaceError) Unwrap() error { return syscall.ENOSPC }

// fits says why n does not fit, or nil. The reserve is reserveBytes, or 3% of the file system where that is more: taking
// the last block or inode would hurt others more than an old release hurts this node.
func (n need) fits(r room, dir string, reserveBytes int64) error {
	e := &NoSpaceError{
		Dir: dir, NeedBytes: n.bytes, NeedInodes: n.inodes, FreeBytes: r.freeBytes, FreeInodes: r.freeInodes,
		ReserveBytes: max(reserveBytes, r.totalBytes/100*3), ReserveInodes: r.totalInodes / 100 * 3,
	}
	if e.NeedBytes > e.FreeBytes-e.ReserveBytes || r.totalInodes > 0 && e.NeedInodes > e.FreeInodes-e.ReserveInodes {
		return e
	}
	return nil
}
