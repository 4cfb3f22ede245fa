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

// Program names one executable and its objects: one zstd frame, cut into chunks that fit a value. Smaller pieces would
// not help, because two builds of a program share almost no bytes.
type Program struct {
	SHA256 string  `json:"sha256"` // of the program: 64 hex digits
	Size   int64   `json:"size"`   // of the program, in bytes
	Chunks []chunk `json:"chunks"`
}

// chunk names an object that holds a part of a program.
type chunk struct {
	Hash string `json:"hash"` // SHA-256 of the stored bytes: the object's name
	Size int64  `json:"size"` // of the stored bytes
}

// The limits of a program.
const (
	MaxProgramBytes = 256 << 20

	maxChunks     = 512
	programWindow = 4 << 20 // of its frame: memory that a node needs for decoding
)

// Stored returns the total size in bytes of the program's objects.
func (p Program) Stored() int64 {
	var n int64
	for _, c := range p.Chunks {
		n += c.Size
	}
	return n
}

// Check verifies the fields of the record.
func (p Program) Check() error {
	switch {
	case !IsHash(p.SHA256):
		return errors.New("its digest is not valid")
	case p.Size <= 0 || p.Size > MaxProgramBytes:
		return fmt.Errorf("it has %d bytes; there may be 1 to %d", p.Size, MaxProgramBytes)
	case len(p.Chunks) == 0 || len(p.Chunks) > maxChunks:
		return fmt.Errorf("it has %d chunks; there may be 1 to %d", len(p.Chunks), maxChunks)
	}
	for _, c := range p.Chunks {
		if !IsHash(c.Hash) || c.Size <= 0 || c.Size > MaxStored {
			return errors.New("one of its chunks is not valid")
		}
	}
	return nil
}

// PackProgram cuts a program into objects and passes each of them to emit.
func PackProgram(program []byte, emit func(hash string, b []byte) error) (Program, error) {
	p := Program{SHA256: HashOf(program), Size: int64(len(program))}
	fail := func(err error) (Program, error) { return Program{}, fmt.Errorf("cannot pack a program: %w", err) }
	if p.Size == 0 || p.Size > MaxProgramBytes {
		return fail(fmt.Errorf("it has %d bytes; there may be 1 to %d", p.Size, MaxProgramBytes))
	}
	var frame bytes.Buffer
	// With one goroutine the same program always gives the same objects.
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
		c := chunk{Hash: HashOf(b), Size: int64(len(b))}
		if err := emit(c.Hash, b); err != nil {
			return Program{}, err
		}
		p.Chunks = append(p.Chunks, c)
	}
	return p, nil
}

// ObjectSource provides stored bytes by hash. Every Source implements it.
type ObjectSource interface {
	Object(ctx context.Context, hash string) ([]byte, error)
}

// CopyTo writes the program to w from the objects of src. It checks each object before decoding, and the complete
// program at the end. After an error, discard the bytes written to w.
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
		return fail(fmt.Errorf("its size is not %d bytes", p.Size))
	case hex.EncodeToString(sum.Sum(nil)) != p.SHA256:
		return fail(errors.New("its bytes are not those that were published"))
	}
	return nil
}

// chunks reads the objects in order.
type chunks struct {
	ctx     context.Context
	src     ObjectSource
	left    []chunk
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
