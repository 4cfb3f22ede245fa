package content

import (
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// packer cuts a run of bytes into objects: solid frames, because the small files of Puppet content take a third less
// together than one by one. It holds at most maxRaw bytes.
type packer struct {
	encoder *zstd.Encoder
	emit    func(Object, []byte) error
	objects []Object

	pending []byte
	ends    []int // where in pending a file ends
}

func newPacker(emit func(Object, []byte) error) (*packer, error) {
	encoder, err := newEncoder(maxRaw, nil)
	if err != nil {
		return nil, err
	}
	return &packer{encoder: encoder, emit: emit}, nil
}

// begin makes room for a file of size bytes, so that it is not split unless it is larger than a frame may be.
func (p *packer) begin(size int64) error {
	for len(p.pending) > 0 && int64(len(p.pending))+size > maxRaw {
		if err := p.cut(); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) Write(b []byte) (int, error) {
	written := 0
	for len(b) > 0 {
		if len(p.pending) == maxRaw {
			if err := p.cut(); err != nil {
				return written, err
			}
		}
		n := min(len(b), maxRaw-len(p.pending))
		p.pending = append(p.pending, b[:n]...)
		b = b[n:]
		written += n
	}
	return written, nil
}

// end marks the place after a file as a good one to cut at.
func (p *packer) end() { p.ends = append(p.ends, len(p.pending)) }

// finish emits what is pending and returns all objects in order.
func (p *packer) finish() ([]Object, error) {
	defer p.encoder.Close()
	for len(p.pending) > 0 {
		if err := p.cut(); err != nil {
			return nil, err
		}
	}
	return p.objects, nil
}

// cut emits one object that holds as much of pending, from its start, as a stored value may hold.
func (p *packer) cut() error {
	if len(p.objects) == maxObjects {
		return fmt.Errorf("more than %d objects of at most %d bytes are needed\npublish a smaller tree", maxObjects, MaxStored)
	}
	size := len(p.pending)
	stored := p.encoder.EncodeAll(p.pending, nil)
	for len(stored) > MaxStored {
		// A little less than in proportion: the shorter run compresses slightly worse.
		size = p.endBefore(int(int64(size) * MaxStored / int64(len(stored)) * 63 / 64))
		if size == 0 {
			return errors.New("content can't be made to fit a stored value") // unreachable while zstd falls back to raw blocks
		}
		stored = p.encoder.EncodeAll(p.pending[:size], stored[:0])
	}
	o := Object{Hash: hashOf(stored), Size: int64(len(stored)), Raw: int64(size)}
	if err := p.emit(o, stored); err != nil {
		return err // which names the object
	}
	p.objects = append(p.objects, o)
	p.drop(size)
	return nil
}

// endBefore returns the last place at or before n where a file ends, or n where there is none.
func (p *packer) endBefore(n int) int {
	best := 0
	for _, end := range p.ends {
		if end <= n {
			best = end
		}
	}
	if best == 0 {
		return n
	}
	return best
}

func (p *packer) drop(n int) {
	p.pending = append(p.pending[:0], p.pending[n:]...)
	ends := p.ends[:0]
	for _, end := range p.ends {
		if end > n {
			ends = append(ends, end-n)
		}
	}
	p.ends = ends
}
