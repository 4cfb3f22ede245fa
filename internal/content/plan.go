package content

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"syscall"
)

// way is a method to get a release: from an installed tree with deltas, or from the base.
type way struct {
	from  *known // nil: the base
	bytes int64  // maximum number of bytes to fetch
}

func (w way) String() string {
	if w.from == nil {
		return "from its base"
	}
	return fmt.Sprintf("from tree %.12s by deltas", w.from.tree)
}

// maxSteps is the maximum number of deltas to use. Each delta takes one pass over the manifest.
const maxSteps = 2 * MaxDeltas

// ways lists the ways to a release, the cheapest first. Their sizes come from the record of the release and the records
// of the installed trees. A wrong size only leads to a slower way.
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

// get fetches the manifest of the release by a way, and returns the supply of its contents.
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

// stockFor returns the contents that installed trees share with a release. With deltas only the start tree matters: the
// deltas contain everything else.
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

// need is the space for writing a tree. Linked files need none; folders do.
type need struct {
	bytes  int64 // on disk, in full blocks
	inodes int64
}

func needs(m *Manifest, linked func(Entry) bool, there func(Entry) bool, fetched, blockSize int64) need {
	blocks := func(size int64) int64 { return (size + blockSize - 1) / blockSize * blockSize }
	n := need{bytes: blockSize + blocks(fetched), inodes: 2} // the root, and the manifest file
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

// room is the free and total space of a file system.
type room struct {
	blockSize               int64
	freeBytes, totalBytes   int64
	freeInodes, totalInodes int64 // both 0 if the file system creates inodes on demand
}

// DefaultReserve is the space in bytes that an installation leaves free for the rest of the machine.
const DefaultReserve = 256 << 20

// NoSpaceError reports that a tree was not installed because it would fill the disk. errors.Is(err, syscall.ENOSPC) is
// true for it, and also for an error from a disk that fills up during writing. Collecting old trees may help.
type NoSpaceError struct {
	Dir                         string
	NeedBytes, NeedInodes       int64
	FreeBytes, FreeInodes       int64
	ReserveBytes, ReserveInodes int64 // must remain free
}

func (e *NoSpaceError) Error() string {
	return fmt.Sprintf("not enough room in %s: %d bytes and %d inodes are needed, %d and %d are free, %d and %d of them stay reserved\n"+
		"free some space there",
		e.Dir, e.NeedBytes, e.NeedInodes, e.FreeBytes, e.FreeInodes, e.ReserveBytes, e.ReserveInodes)
}

func (e *NoSpaceError) Unwrap() error { return syscall.ENOSPC }

// fits returns the reason why n does not fit, or nil. The reserve is reserveBytes, or 3% of the file system if that is
// more. Taking the last block or inode would harm other programs more than an old release harms this node.
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
