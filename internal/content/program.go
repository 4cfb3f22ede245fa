package content

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Program names one executable and the objects that it is stored in: one zstd frame, cut into chunks that fit a value. Two
// builds of a program have next to nothing in common, so nothing is gained by smaller pieces.
type Program struct {
	SHA256 string  `json:"sha256"` // of the program: 64 hex digits
	Size   int64   `json:"size"`   // of the program, in bytes
	Chunks []Chunk `json:"chunks"`
}

// Chunk names an object that holds a part of a program.
type Chunk struct {
	Hash string `json:"hash"` // sha256 of what is stored: the object's name
	Size int64  `json:"size"` // of what is stored, in bytes
}

// The caps on a program.
const (
	MaxProgramBytes = 256 << 20

	maxChunks     = 512
	programWindow = 4 << 20 // of its frame: what a node needs of memory to decode it
)

// Stored is how many bytes the program's objects have together.
func (p Program) Stored() int64 {
	var n int64
	for _, c := range p.Chunks {
		n += c.Size
	}
	return n
}

// Check refuses what no program can be.
func (p Program) Check() error {
	switch {
	case !isHash(p.SHA256):
		return errors.New("its digest is none")
	case p.Size <= 0 || p.Size > MaxProgramBytes:
		return fmt.Errorf("it has %d bytes; there may be 1 to %d", p.Size, MaxProgramBytes)
	case len(p.Chunks) == 0 || len(p.Chunks) > maxChunks:
		return fmt.Errorf("it has %d chunks; there may be 1 to %d", len(p.Chunks), maxChunks)
	}
	for _, c := range p.Chunks {
		if !isHash(c.Hash) || c.Size <= 0 || c.Size > MaxStored {
			return errors.New("one of its chunks makes no sense")
		}
	}
	return nil
}

// PackProgram cuts a program into objects and emits each of them.
func PackProgram(program []byte, emit func(hash string, b []byte) error) (Program, error) {
	p := Program{SHA256: hashOf(program), Size: int64(len(program))}
	fail := func(err error) (Program, error) { return Program{}, fmt.Errorf("cannot pack a program: %w", err) }
	if p.Size == 0 || p.Size > MaxProgramBytes {
		return fail(fmt.Errorf("it has %d bytes; there may be 1 to %d", p.Size, MaxProgramBytes))
	}
	var frame bytes.Buffer
	// One goroutine, so that the same program always becomes the same objects.
	encoder, err := zstd.NewWriter(&frame, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(programWindow))
	if err == nil {
		_, err = encoder.Write(program)
		err = errors.Join(err, encoder.Close())
	}
	if err != nil {
		return fail(err)
	}
	for frame.Len() > 0 {
		b := frame.Next(MaxStored)
		c := Chunk{Hash: hashOf(b), Size: int64(len(b))}
		if err := emit(c.Hash, b); err != nil {
			return Program{}, err
		}
		p.Chunks = append(p.Chunks, c)
	}
	return p, nil
}

// ObjectSource hands out stored bytes by their hash; Source does.
type ObjectSource interface {
	Object(ctx context.Context, hash string) ([]byte, error)
}

// CopyTo writes the program to w, from objects that src has. Each is checked before it is decoded, and all of it in the
// end: with an error, what was written is no program.
func (p Program) CopyTo(ctx context.Context, w io.Writer, src ObjectSource) error {
	fail := func(err error) error { return fmt.Errorf("cannot fetch program %.12s: %w", p.SHA256, err) }
	if err := p.Check(); err != nil {
		return fail(err)
	}
	decoder, err := zstd.NewReader(&chunks{ctx: ctx, src: src, left: p.Chunks}, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return fail(err)
	}
	defer decoder.Close()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, sum), io.LimitReader(decoder, p.Size+1))
	switch {
	case err != nil:
		return fail(err)
	case n != p.Size:
		return fail(fmt.Errorf("it has other than its %d bytes", p.Size))
	case hex.EncodeToString(sum.Sum(nil)) != p.SHA256:
		return fail(errors.New("its bytes are not those that were published"))
	}
	return nil
}

// chunks reads one object after the other.
type chunks struct {
	ctx     context.Context
	src     ObjectSource
	left    []Chunk
	pending []byte
}

func (c *chunks) Read(b []byte) (int, error) {
	for len(c.pending) == 0 {
		if len(c.left) == 0 {
			return 0, io.EOF
		}
		next := c.left[0]
		stored, err := c.src.Object(c.ctx, next.Hash)
		if err == nil {
			err = Object{Hash: next.Hash, Size: next.Size}.accept(stored)
		}
		if err != nil {
			return 0, err
		}
		c.left, c.pending = c.left[1:], stored
	}
	n := copy(b, c.pending)
	c.pending = c.pending[n:]
	return n, nil
}
