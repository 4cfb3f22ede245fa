package content

import (
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// packer cuts a sequence of bytes into objects. Each object holds several files, because small Puppet files compress a
// third smaller together than one by one. The packer buffers at most maxRaw bytes.
type packer struct {
	encoder *zstd.Encoder
	emit    func(Object, []byte) error
	objects []Object

	pending []byte
	ends    []int // ends of files in pending
}

func newPacker(emit func(Object, []byte) error) (*packer, error) {
	encoder, err := newEncoder(maxRaw, nil)
	if err != nil {
		return nil, err
	}
	return &packer{encoder: encoder, emit: emit}, nil
}

// begin makes room for a file of size bytes. The file is not split unless it exceeds the size of a frame.
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

// end marks the end of a file, where the packer prefers to cut.
func (p *packer) end() { p.ends = append(p.ends, len(p.pending)) }

// finish emits the pending bytes and returns all objects in order.
func (p *packer) finish() ([]Object, error) {
	defer p.encoder.Close()
	for len(p.pending) > 0 {
		if err := p.cut(); err != nil {
			return nil, err
		}
	}
	return p.objects, nil
}

// cut emits one object with as much of the start of pending as one stored value can hold.
func (p *packer) cut() error {
	if len(p.objects) == maxObjects {
		return fmt.Errorf("more than %d objects of at most %d bytes are needed\nleave out what nodes do not need (.pulleyignore)", maxObjects, MaxStored)
	}
	size := len(p.pending)
	stored := p.encoder.EncodeAll(p.pending, nil)
	for len(stored) > MaxStored {
		// Slightly less than proportional: the shorter sequence compresses slightly worse.
		size = p.endBefore(int(int64(size) * MaxStored / int64(len(stored)) * 63 / 64))
		if size == 0 {
			return errors.New("content can't be made to fit a stored value") // unreachable: zstd has raw blocks
		}
		stored = p.encoder.EncodeAll(p.pending[:size], stored[:0])
	}
	o := Object{Hash: HashOf(stored), Size: int64(len(stored)), Raw: int64(size)}
	if err := p.emit(o, stored); err != nil {
		return err // the error names the object
	}
	p.objects = append(p.objects, o)
	p.drop(size)
	return nil
}

// endBefore returns the last end of a file at or before n, or n if there is none.
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

// unpacker decodes objects one at a time into one reused buffer.
type unpacker struct {
	decoder *zstd.Decoder
	buffer  []byte
}

func newUnpacker() (*unpacker, error) { return newUnpackerFor(maxRaw, nil) }

// newUnpackerFor creates an unpacker for frames of up to limit bytes, optionally compressed with a dictionary.
func newUnpackerFor(limit uint64, dictionary []byte) (*unpacker, error) {
	options := []zstd.DOption{
		zstd.WithDecoderMaxMemory(limit), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderLowmem(true), zstd.WithDecodeAllCapLimit(true),
	}
	if len(dictionary) > 0 {
		options = append(options, zstd.WithDecoderDictRaw(dictionaryID, dictionary))
	}
	decoder, err := zstd.NewReader(nil, options...)
	if err != nil {
		return nil, err
	}
	return &unpacker{decoder: decoder}, nil
}

func (u *unpacker) close() { u.decoder.Close() }

// unpack returns the raw bytes of one stored frame. They are valid until the next call. The caller must have checked
// the hash of stored.
func (u *unpacker) unpack(stored []byte, raw int64) ([]byte, error) {
	return u.unpackUpTo(stored, raw, maxRaw)
}

func (u *unpacker) unpackUpTo(stored []byte, raw, limit int64) ([]byte, error) {
	if raw <= 0 || raw > limit {
		return nil, fmt.Errorf("declared as %d bytes once decoded, 1 to %d are allowed", raw, limit)
	}
	if err := checkFrame(stored, raw); err != nil {
		return nil, err
	}
	if int64(cap(u.buffer)) < raw {
		u.buffer = make([]byte, raw)
	}
	// The decoder writes at most up to the capacity.
	decoded, err := u.decoder.DecodeAll(stored, u.buffer[:0:raw])
	if err != nil {
		return nil, err
	}
	if int64(len(decoded)) != raw {
		return nil, fmt.Errorf("%d bytes once decoded instead of %d", len(decoded), raw)
	}
	return decoded, nil
}

var errTrailing = errors.New("is followed by other data")

// checkFrame verifies that stored is exactly one frame, that the frame declares raw as its size, and that no bytes
// follow. The decoder itself would accept further frames. Format: RFC 8878, sections 3.1.1 and 3.1.1.2.
func checkFrame(stored []byte, raw int64) error {
	var head zstd.Header
	if err := head.Decode(stored); err != nil {
		return err
	}
	if head.Skippable {
		return errTrailing
	}
	if !head.HasFCS || head.FrameContentSize != uint64(raw) {
		return fmt.Errorf("its frame does not state a size of %d bytes", raw)
	}
	rest := stored[head.HeaderSize:]
	for last := false; !last; {
		if len(rest) < 3 {
			return errTruncated
		}
		block := uint32(rest[0]) | uint32(rest[1])<<8 | uint32(rest[2])<<16
		last = block&1 != 0
		size := int(block >> 3)
		if kind := block >> 1 & 3; kind == 1 { // RLE block: the size is the length of the run
			size = 1
		}
		if len(rest) < 3+size {
			return errTruncated
		}
		rest = rest[3+size:]
	}
	if head.HasCheckSum {
		if len(rest) < 4 {
			return errTruncated
		}
		rest = rest[4:]
	}
	if len(rest) != 0 {
		return errTrailing
	}
	return nil
}
