package content_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pulley/internal/release/content"
)

type objects map[string][]byte

func (o objects) Object(_ context.Context, hash string) ([]byte, error) {
	b, ok := o[hash]
	if !ok {
		return nil, errors.New("there is no such object")
	}
	return b, nil
}

func someProgram(t *testing.T, size int) ([]byte, content.Program, objects) {
	t.Helper()
	raw := make([]byte, size)
	noise := rand.NewChaCha8([32]byte{1})
	_, _ = noise.Read(raw[:size/2]) // half of it is incompressible
	stored := objects{}
	p, err := content.PackProgram(raw, func(hash string, b []byte) error {
		stored[hash] = bytes.Clone(b)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return raw, p, stored
}

// A program must arrive as published, because only that build was tested. No chunk may be too large for etcd.
func TestProgramRoundTrip(t *testing.T) {
	raw, p, stored := someProgram(t, 5<<20)
	for hash, b := range stored {
		if len(b) > content.MaxStored {
			t.Errorf("object %.12s has %d bytes", hash, len(b))
		}
	}
	if len(p.Chunks) < 5 || p.Stored() < 5<<19 || p.Stored() > 3<<20 {
		t.Errorf("%d chunks with %d bytes", len(p.Chunks), p.Stored())
	}
	var out bytes.Buffer
	if err := p.CopyTo(t.Context(), &out, stored); err != nil || !bytes.Equal(out.Bytes(), raw) {
		t.Errorf("%d bytes came out: %v", out.Len(), err)
	}
	if _, again, _ := someProgram(t, 5<<20); !slices.Equal(again.Chunks, p.Chunks) {
		t.Error("the same program becomes other objects the second time")
	}
}

// A writer to etcd must not be able to replace the program behind a signed digest.
func TestForeignProgramIsRefused(t *testing.T) {
	_, p, stored := someProgram(t, 3<<20)
	other, q, more := someProgram(t, 3<<20+1)
	maps.Copy(stored, more)
	for name, change := range map[string]func(*content.Program){
		"another program's chunks": func(x *content.Program) { x.Chunks = q.Chunks },
		"a chunk too few":          func(x *content.Program) { x.Chunks = x.Chunks[:len(x.Chunks)-1] },
		"chunks in another order":  func(x *content.Program) { slices.Reverse(x.Chunks) },
		"a chunk twice":            func(x *content.Program) { x.Chunks = append(x.Chunks, x.Chunks[0]) },
		"a chunk that is missing":  func(x *content.Program) { x.Chunks[1].Hash = strings.Repeat("ab", 32) },
		"a chunk of another size":  func(x *content.Program) { x.Chunks[1].Size-- },
		"another digest":           func(x *content.Program) { x.SHA256 = q.SHA256 },
		"another size":             func(x *content.Program) { x.Size = int64(len(other)) },
		"no size":                  func(x *content.Program) { x.Size = 0 },
		"no chunks":                func(x *content.Program) { x.Chunks = nil },
		"a digest that is none":    func(x *content.Program) { x.SHA256 = "../../etc/passwd" },
	} {
		x := p
		x.Chunks = slices.Clone(p.Chunks)
		change(&x)
		if err := x.CopyTo(t.Context(), &bytes.Buffer{}, stored); err == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
	damaged := maps.Clone(stored)
	damaged[p.Chunks[0].Hash] = bytes.Repeat([]byte("x"), int(p.Chunks[0].Size))
	if err := p.CopyTo(t.Context(), &bytes.Buffer{}, damaged); err == nil || !strings.Contains(err.Error(), "not those that were published") {
		t.Errorf("an object with other bytes: %v", err)
	}
}
