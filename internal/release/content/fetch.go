package content

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
)

// Source provides published bytes. Callers check the results, so a Source need not be trusted. It must be safe for
// concurrent use.
type Source interface {
	// Object returns stored bytes by their hash.
	Object(ctx context.Context, hash string) ([]byte, error)
	// Deltas returns the deltas of a line at positions from through to. If a delta is missing, the error names it.
	Deltas(ctx context.Context, line string, from, to int64) ([][]byte, error)
}

// fetchObject returns the stored bytes of o exactly as published, or an error.
func fetchObject(ctx context.Context, src Source, o Object) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	stored, err := src.Object(ctx, o.Hash)
	if err != nil {
		return nil, fmt.Errorf("cannot fetch object %s: %w", o.Hash, err)
	}
	return stored, o.accept(stored)
}

// accept checks that stored is the bytes of o.
func (o Object) accept(stored []byte) error {
	if int64(len(stored)) != o.Size {
		return fmt.Errorf("cannot accept object %s: it has %d bytes instead of %d", o.Hash, len(stored), o.Size)
	}
	if HashOf(stored) != o.Hash {
		return fmt.Errorf("cannot accept object %s: its bytes are not those that were published", o.Hash)
	}
	return nil
}

// ahead is the maximum number of objects being fetched or waiting to be decoded.
const ahead = 4

// fetched is one object being fetched.
type fetched chan struct {
	stored []byte
	err    error
}

// stream reads the contents of packs in order. It fetches only packs with wanted contents.
type stream struct {
	ctx      context.Context
	cancel   context.CancelFunc
	src      Source
	packs    []placed // wanted, not yet requested
	coming   []placed
	answers  []fetched // of coming
	unpacker *unpacker

	at   int64  // offset of rest
	rest []byte // remaining bytes of the current pack
}

// placed is an object and the range of its raw bytes in the sequence of all packs.
type placed struct {
	Object
	at int64
}

// openStream starts to read the objects for which wants returns true. Wants receives the range of an object's raw
// bytes.
func openStream(ctx context.Context, src Source, objects []Object, wants func(from, to int64) bool) (*stream, error) {
	u, err := newUnpacker()
	if err != nil {
		return nil, err
	}
	s := &stream{src: src, unpacker: u}
	s.ctx, s.cancel = context.WithCancel(ctx)
	var at int64
	for _, o := range objects {
		if wants(at, at+o.Raw) {
			s.packs = append(s.packs, placed{o, at})
		}
		at += o.Raw
	}
	return s, nil
}

func everything(int64, int64) bool { return true }

func (s *stream) close() {
	s.cancel()
	for _, a := range s.answers {
		<-a // the caller closes the source next; the goroutine may still use it
	}
	s.unpacker.close()
}

// ask keeps up to ahead requests running.
func (s *stream) ask() {
	for len(s.packs) > 0 && len(s.coming) < ahead {
		o := s.packs[0]
		answer := make(fetched, 1)
		s.packs, s.coming, s.answers = s.packs[1:], append(s.coming, o), append(s.answers, answer)
		go func() {
			stored, err := fetchObject(s.ctx, s.src, o.Object)
			answer <- struct {
				stored []byte
				err    error
			}{stored, err}
		}()
	}
}

// next decodes the next wanted pack.
func (s *stream) next() error {
	s.ask()
	if len(s.coming) == 0 {
		return io.EOF
	}
	o, answer := s.coming[0], s.answers[0]
	s.coming, s.answers = s.coming[1:], s.answers[1:]
	got := <-answer
	if got.err != nil && s.ctx.Err() == nil {
		// Parallel requests may have exceeded the bandwidth of a slow link. A single request gets all of it.
		got.stored, got.err = fetchObject(s.ctx, s.src, o.Object)
	}
	if got.err != nil {
		return got.err
	}
	s.ask()
	raw, err := s.unpacker.unpack(got.stored, o.Raw)
	if err != nil {
		return fmt.Errorf("cannot decode object %s: %w", o.Hash, err)
	}
	s.at, s.rest = o.at, raw
	return nil
}

var errGap = errors.New("cannot continue reading: the next pack was not requested")

// seek moves forward to an offset in a wanted pack.
func (s *stream) seek(at int64) error {
	for at >= s.at+int64(len(s.rest)) {
		if err := s.next(); err != nil {
			return err
		}
	}
	if at < s.at {
		return errGap
	}
	s.rest = s.rest[at-s.at:]
	s.at = at
	return nil
}

func (s *stream) Read(b []byte) (int, error) {
	for len(s.rest) == 0 {
		at := s.at
		if err := s.next(); err != nil {
			return 0, err
		}
		if at != 0 && s.at != at {
			return 0, errGap
		}
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	s.at += int64(n)
	return n, nil
}

// fetchWhole decodes objects in order and returns their bytes as one string.
func fetchWhole(ctx context.Context, src Source, objects []Object) (string, error) {
	s, err := openStream(ctx, src, objects, everything)
	if err != nil {
		return "", err
	}
	defer s.close()
	var whole strings.Builder
	raw, _, _ := sumObjects(objects)
	whole.Grow(int(raw))
	_, err = io.Copy(&whole, s)
	return whole.String(), err
}

// fetchBase returns the index and the manifest of a base.
func fetchBase(ctx context.Context, src Source, b Base) (*index, *Manifest, error) {
	encoded, err := fetchWhole(ctx, src, []Object{b.Index})
	if err != nil {
		return nil, nil, err
	}
	x, err := decodeIndex(encoded)
	if err != nil {
		return nil, nil, err
	}
	if stored := b.Index.Size + x.stored(); stored != b.Stored {
		return nil, nil, fmt.Errorf("cannot accept index: its objects have %d bytes instead of %d", stored, b.Stored)
	}
	if encoded, err = fetchWhole(ctx, src, x.manifest); err != nil {
		return nil, nil, err
	}
	m, err := decodeManifest(encoded)
	if err == nil && m.Tree() != b.Tree {
		err = fmt.Errorf("%w: tree hash %s instead of %s", errLying, m.Tree(), b.Tree)
	}
	return x, m, err
}

var errLying = errors.New("cannot accept manifest: it is not the one of this release")

// fetchSteps returns the deltas from an earlier position to the release, in order; m is the tree at that position. The
// release's record names the hash of the last delta, and each delta names its predecessor's. Every delta is therefore
// checked before it is decoded. If a check fails, fetchSteps requests the deltas once more: src may have a second place
// with correct bytes.
func fetchSteps(ctx context.Context, src Source, r Record, from Chain, m *Manifest) ([]*step, *Manifest, error) {
	if from.Seq == r.Chain.Seq {
		return nil, m, m.matches(r)
	}
	var steps []*step
	for again := range 2 {
		stored, err := fetchDeltas(ctx, src, r.Chain, from)
		if err == nil {
			steps, err = openDeltas(stored, r.Chain.Delta)
		} else if !errors.Is(err, errNoGood) {
			return nil, nil, fmt.Errorf("cannot fetch deltas: %w", err)
		}
		if err == nil {
			break
		}
		if again > 0 || ctx.Err() != nil {
			return nil, nil, err
		}
	}
	if tree := hashBytes(m.Tree()); tree != steps[0].from {
		return nil, nil, fmt.Errorf("cannot accept delta: it starts from tree %.6x and not from %.6x", steps[0].from, tree)
	}
	for _, s := range steps {
		s.link(m)
		var err error
		if m, err = apply(m, s.differences); err != nil {
			return nil, nil, err
		}
	}
	// Intermediate trees are not installed. Only the last tree must pass the rules and the hash.
	if err := checkEntries(m.Entries); err != nil {
		return nil, nil, err
	}
	return steps, m, m.matches(r)
}

var errNoGood = errors.New("cannot accept deltas")

// deltaBytes is the number of bytes to request at a time.
const deltaBytes = 1 << 20

// fetchDeltas reads the deltas between two positions. It reads at most the number of bytes given in their records.
func fetchDeltas(ctx context.Context, src Source, to, from Chain) ([][]byte, error) {
	budget, steps := to.Stored-from.Stored, to.Seq-from.Seq
	page := steps
	if budget > deltaBytes {
		page = max(1, steps*deltaBytes/budget)
	}
	var all [][]byte
	for seq := from.Seq + 1; seq <= to.Seq; seq += page {
		end := min(seq+page-1, to.Seq)
		stored, err := src.Deltas(ctx, to.Line, seq, end)
		if err != nil {
			return nil, err
		}
		if int64(len(stored)) != end-seq+1 {
			return nil, fmt.Errorf("%w: received %d instead of %d", errNoGood, len(stored), end-seq+1)
		}
		for _, b := range stored {
			budget -= int64(len(b))
		}
		if budget < 0 {
			return nil, fmt.Errorf("%w: they are larger than the records state", errNoGood)
		}
		all = append(all, stored...)
	}
	return all, nil
}

// openDeltas checks and decodes deltas. Last describes the final one.
func openDeltas(stored [][]byte, last *Object) ([]*step, error) {
	u, err := newUnpackerFor(maxDeltaWeight, nil)
	if err != nil {
		return nil, err
	}
	defer u.close()
	steps := make([]*step, len(stored))
	o, weight := last, int64(0)
	for i := len(stored) - 1; i >= 0; i-- {
		if o == nil {
			return nil, errors.New("cannot accept deltas: none leads to the first of them")
		}
		if weight += o.Raw; weight > maxWeight {
			return nil, fmt.Errorf("cannot accept deltas: they take more than %d bytes of memory", maxWeight)
		}
		if err := o.accept(stored[i]); err != nil {
			return nil, err
		}
		if steps[i], err = openDelta(stored[i], *o, u); err != nil {
			return nil, err
		}
		o = steps[i].previous
	}
	return steps, nil
}

func (m *Manifest) matches(r Record) error {
	switch {
	case m.Tree() != r.Tree:
		return fmt.Errorf("%w: tree hash %s instead of %s", errLying, m.Tree(), r.Tree)
	case m.Files() != r.Files || m.Bytes() != r.Bytes:
		return fmt.Errorf("%w: %d files of %d bytes instead of %d of %d", errLying, m.Files(), m.Bytes(), r.Files, r.Bytes)
	}
	return nil
}

// partial keeps fetched objects on disk until the files of their release are written. An interrupted installation then
// resumes with these objects. They are checked like bytes from a source. A failed write is not an error.
type partial struct {
	Source
	dir string
}

const partialDir = "fetched"

func (s *Store) partial(src Source) *partial {
	return &partial{Source: src, dir: filepath.Join(s.dir, partialDir)}
}

// Object returns the object from disk, or fetches it from the source.
func (s *partial) Object(ctx context.Context, hash string) ([]byte, error) {
	path := filepath.Join(s.dir, hash)
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() { // reading a pipe could block
		if b, err := bounded.ReadFile(path, MaxStored); err == nil && HashOf(b) == hash {
			return b, nil
		}
	}
	b, err := s.Source.Object(ctx, hash)
	if err != nil || len(b) > MaxStored || os.MkdirAll(s.dir, 0o700) != nil {
		return b, err
	}
	// Neither checked nor flushed: fetchObject checks b, and the next read checks the file.
	_ = atomicfile.WriteVolatile(path, b, 0o600)
	return b, nil
}

// bytes returns the size of the kept objects.
func (s *partial) bytes() int64 {
	names, err := os.ReadDir(s.dir)
	if err != nil {
		return 0
	}
	var sum int64
	for _, n := range names {
		if info, err := n.Info(); err == nil {
			sum += info.Size()
		}
	}
	return sum
}

// empty removes all kept objects.
func (s *partial) empty() { _ = os.RemoveAll(s.dir) }
