package serve

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"pulley/internal/etcd"
	"pulley/internal/release"
	"pulley/internal/release/content"
)

// published is an etcd with one program, and a version that cannot be read: it must keep no node from the others.
type published struct {
	program content.Program
	objects map[string][]byte
	reads   atomic.Int64
}

func (p *published) Agents(context.Context) ([]release.SignedAgent, error) {
	p.reads.Add(1)
	r := release.SignedAgent{}
	r.Platforms = map[string]content.Program{"linux/amd64": p.program}
	return []release.SignedAgent{r}, &release.UnreadableReleases{Versions: []string{"9.9.9"}, Errors: []error{&etcd.UnreadableError{}}}
}

func (p *published) Object(_ context.Context, hash string) ([]byte, error) {
	if b, ok := p.objects[hash]; ok {
		return b, nil
	}
	return nil, etcd.ErrNotFound
}

func pack(t *testing.T, program []byte) *published {
	t.Helper()
	p := &published{objects: map[string][]byte{}}
	var err error
	if p.program, err = content.PackProgram(program, func(hash string, b []byte) error { p.objects[hash] = bytes.Clone(b); return nil }); err != nil {
		t.Fatal(err)
	}
	return p
}

func fetchAgent(t *testing.T, server, digest string) (int, []byte) {
	t.Helper()
	resp, err := http.Get(server + agentPath + digest) //nolint:noctx // of this process
	if err != nil {
		t.Error(err)
		return 0, nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, b
}

// A first boot runs the fetched program as root: it must get the complete program of that digest, or nothing.
func TestAgentsAreServedByDigest(t *testing.T) {
	t.Parallel()
	program := make([]byte, 2<<20)
	random := rand.NewChaCha8([32]byte{1})
	if _, err := random.Read(program); err != nil {
		t.Fatal(err)
	}
	src := pack(t, program)
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "pulley-agent")
	write := func(text string) string {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte(text))
		return hex.EncodeToString(sum[:])
	}
	first := write("the first agent")
	agents, err := newAgents(src, dir, []string{file})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(Web{Agents: agents})
	defer server.Close()

	// Many machines request it at once, and etcd is read once.
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if code, b := fetchAgent(t, server.URL, src.program.SHA256); code != http.StatusOK || !bytes.Equal(b, program) {
				t.Errorf("a published program: %d, %d bytes", code, len(b))
			}
		})
	}
	all.Wait()
	if n := src.reads.Load(); n != 1 {
		t.Errorf("etcd was asked %d times", n)
	}
	if code, b := fetchAgent(t, server.URL, first); code != http.StatusOK || string(b) != "the first agent" {
		t.Errorf("a file: %d %q", code, b)
	}
	// A file that was replaced is another program.
	second := write("another agent altogether")
	if code, b := fetchAgent(t, server.URL, second); code != http.StatusOK || string(b) != "another agent altogether" {
		t.Errorf("a file that was replaced: %d %q", code, b)
	}
	for digest, want := range map[string]int{first: 404, "x": 400, "..%2f..%2fetc%2fpasswd": 400, src.program.SHA256 + "0": 400} {
		if code, b := fetchAgent(t, server.URL, digest); code != want {
			t.Errorf("%s: %d %q", digest, code, b)
		}
	}
	// Damaged content in etcd never becomes a file.
	for hash := range src.objects {
		src.objects[hash][0]++
	}
	if err := os.Remove(filepath.Join(dir, src.program.SHA256)); err != nil {
		t.Fatal(err)
	}
	if code, _ := fetchAgent(t, server.URL, src.program.SHA256); code != http.StatusServiceUnavailable {
		t.Errorf("a damaged program: %d", code)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	if _, err := newAgents(src, dir, []string{filepath.Join(dir, "missing")}); err == nil {
		t.Error("a file that is missing was taken")
	}
}
