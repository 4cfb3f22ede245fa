package content

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Source hands out stored objects by hash. What it returns is checked, so it need not be trusted.
type Source interface {
	Object(ctx context.Context, hash string) ([]byte, error)
}

// fetchObject returns the stored bytes of o: exactly those that were published, or an error.
func fetchObject(ctx context.Context, src Source, o Object) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	stored, err := src.Object(ctx, o.Hash)
	if err != nil {
		return nil, fmt.Errorf("cannot fetch object %s: %w", o.Hash, err)
	}
	if int64(len(stored)) != o.Size {
		return nil, fmt.Errorf("cannot accept object %s: it has %d bytes instead of %d", o.Hash, len(stored), o.Size)
	}
	if hashOf(stored) != o.Hash {
		return nil, fmt.Errorf("cannot accept object %s: its bytes are not those that were published", o.Hash)
	}
	return stored, nil
}

// stream reads objects one after another as one run of bytes. It holds one of them at a time.
type stream struct {
	fetch    func(Object) ([]byte, error)
	objects  []Object // still to come
	rest     []byte   // of the one being read
	unpacker *unpacker
}

func openStream(ctx context.Context, src Source, objects []Object) (*stream, error) {
	u, err := newUnpacker()
	if err != nil {
		return nil, err
	}
	fetch := func(o Object) ([]byte, error) { return fetchObject(ctx, src, o) }
	return &stream{fetch: fetch, objects: objects, unpacker: u}, nil
}

func (s *stream) close() { s.unpacker.close() }

func (s *stream) Read(b []byte) (int, error) {
	for len(s.rest) == 0 {
		if len(s.objects) == 0 {
			return 0, io.EOF
		}
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// skip goes n bytes further and does not fetch objects that it passes over.
func (s *stream) skip(n int64) error {
	for n > 0 {
		if len(s.rest) == 0 {
			if len(s.objects) == 0 {
				return io.ErrUnexpectedEOF
			}
			if raw := s.objects[0].Raw; n >= raw {
				s.objects = s.objects[1:]
				n -= raw
				continue
			}
			if err := s.next(); err != nil {
				return err
			}
		}
		passed := min(n, int64(len(s.rest)))
		s.rest = s.rest[passed:]
		n -= passed
	}
	return nil
}

func (s *stream) next() error {
	o := s.objects[0]
	stored, err := s.fetch(o)
	if err != nil {
		return err
	}
	if s.rest, err = s.unpacker.unpack(stored, o.Raw); err != nil {
		return fmt.Errorf("cannot decode object %s: %w", o.Hash, err)
	}
	s.objects = s.objects[1:]
	return nil
}

// fetchManifest returns the manifest that a record names: it has the record's tree hash, counts and sizes.
func fetchManifest(ctx context.Context, src Source, r Record) (*Manifest, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	s, err := openStream(ctx, src, r.Manifest)
	if err != nil {
		return nil, err
	}
	defer s.close()
	var encoded strings.Builder
	var size int64
	for _, o := range r.Manifest {
		size += o.Raw
	}
	encoded.Grow(int(size))
	if _, err := io.Copy(&encoded, s); err != nil {
		return nil, err
	}
	m, err := DecodeManifest(encoded.String())
	if err != nil {
		return nil, err
	}
	return m, m.matches(r)
}

var errLying = errors.New("cannot accept manifest: it is not the one of this release")

func (m *Manifest) matches(r Record) error {
	var packed, files int64
	for _, o := range r.Packs {
		packed += o.Raw
	}
	for _, e := range distinct(m) {
		files += e.Size
	}
	switch {
	case m.Tree() != r.Tree:
		return fmt.Errorf("%w: tree hash %s instead of %s", errLying, m.Tree(), r.Tree)
	case m.Files() != r.Files || m.Bytes() != r.Bytes:
		return fmt.Errorf("%w: %d files of %d bytes instead of %d of %d", errLying, m.Files(), m.Bytes(), r.Files, r.Bytes)
	case packed != files:
		return fmt.Errorf("%w: its files have %d bytes, the packs hold %d", errLying, files, packed)
	}
	return nil
}
