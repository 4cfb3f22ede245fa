package serve

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"pulley/internal/atomicfile"
	"pulley/internal/etcd"
	"pulley/internal/join/server"
	"pulley/internal/release"
	"pulley/internal/release/content"
)

const (
	agentPath = "/agent/"
	// A client below minRate bytes a second on average, after an initial time, is cut off: 30 MB in 16 minutes.
	minRate    = 32 << 10
	beginsSlow = 30 * time.Second
	// fetchTimeout bounds the assembly of a program from etcd. maxKept bounds the programs on disk.
	fetchTimeout = time.Minute
	maxKept      = 6
	// maxSending bounds concurrent transfers: a node that is asked to retry does.
	maxSending = 256
	// maxOfOne bounds the transfers to one address. One address must not use all of them, but a rack may share one
	// address.
	maxOfOne = 32
	// publishedFor is the cache time of the published list: random digests must not cost a read each.
	publishedFor = time.Second
)

// programs is the source of published programs of the agent.
type programs interface {
	content.ObjectSource
	Agents(ctx context.Context) ([]release.SignedAgent, error)
}

// Agents serves GET /agent/<sha256>: programs of the agent by their digest, from files of this machine and from etcd.
// A client checks the digest of a program before it runs the program. Agents is safe for concurrent use.
type Agents struct {
	src      programs
	dir      string // of assembled programs
	sending  chan struct{}
	fetching chan struct{} // one at a time; other requests wait for it

	minRate    float64       // bytes a second
	beginsSlow time.Duration // until minRate applies

	mu    sync.Mutex
	files map[string]agentFile // by path
	of    map[string]int       // running transfers, by address

	reading   chan struct{} // lock of the fields below
	published map[string]content.Program
	read      time.Time
}

// agentFile is the state of a program file when its digest was computed.
type agentFile struct {
	size   int64
	time   time.Time
	digest string
}

// newAgents reads the digests of files, and stores assembled programs in dir.
func newAgents(src programs, dir string, files []string) (*Agents, error) {
	a := &Agents{
		src: src, dir: dir, sending: make(chan struct{}, maxSending), fetching: make(chan struct{}, 1),
		minRate: minRate, beginsSlow: beginsSlow,
		files: map[string]agentFile{}, of: map[string]int{}, reading: make(chan struct{}, 1),
	}
	for _, f := range files {
		digest, err := a.digestLocked(f)
		if err != nil {
			return nil, fmt.Errorf("cannot serve the agent %s: %w", f, err)
		}
		if digest == "" {
			return nil, fmt.Errorf("cannot serve the agent %s: it is not a program file", f)
		}
	}
	return a, nil
}

// digests returns the digests of the files, by path.
func (a *Agents) digests() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	digests := map[string]string{}
	for path, f := range a.files {
		digests[path] = f.digest
	}
	return digests
}

func (a *Agents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	digest := strings.TrimPrefix(r.URL.EscapedPath(), agentPath)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD are supported", http.StatusMethodNotAllowed)
		return
	case !isDigest(digest):
		http.Error(w, "an agent is named by its SHA-256: 64 hexadecimal digits", http.StatusBadRequest)
		return
	}
	done := a.enter(r)
	if done == nil {
		busy(w, "too many programs are being sent")
		return
	}
	defer done()
	f, err := a.open(r.Context(), digest)
	switch {
	case errors.Is(err, etcd.ErrNotFound):
		http.Error(w, "no agent of this digest is published, nor one of --agent", http.StatusNotFound)
		return
	case err != nil:
		busy(w, "the program is not available now") // without the reason, which may contain names from the internal network
		return
	}
	defer f.Close()
	w.Header().Set("ETag", `"`+digest+`"`)
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(&paced{ResponseWriter: w, control: http.NewResponseController(w), of: a, begun: time.Now()}, r, "", time.Time{}, f)
}

// paced cuts off a client that is too slow for its amount of data. A fixed deadline would also cut off slow lines.
type paced struct {
	http.ResponseWriter
	control *http.ResponseController
	of      *Agents
	begun   time.Time
	sent    int
}

func (p *paced) Write(b []byte) (int, error) {
	p.sent += len(b)
	_ = p.control.SetWriteDeadline(p.begun.Add(p.of.beginsSlow + time.Duration(float64(p.sent)/p.of.minRate*float64(time.Second))))
	return p.ResponseWriter.Write(b)
}

// enter reserves a transfer, in total and for the address. It returns nil if there is none left.
func (a *Agents) enter(r *http.Request) (done func()) {
	from := server.PartyOf(r)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of[from] >= maxOfOne {
		return nil
	}
	select {
	case a.sending <- struct{}{}:
	default:
		return nil
	}
	a.of[from]++
	return func() {
		<-a.sending
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.of[from]--; a.of[from] == 0 {
			delete(a.of, from)
		}
	}
}

func busy(w http.ResponseWriter, says string) {
	w.Header().Set("Retry-After", "5")
	http.Error(w, says, http.StatusServiceUnavailable)
}

func isDigest(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size && s == strings.ToLower(s)
}

// open finds a program among the files, among the assembled programs, or in etcd.
func (a *Agents) open(ctx context.Context, digest string) (*os.File, error) {
	if path := a.fileOf(digest); path != "" {
		return os.Open(path)
	}
	kept := filepath.Join(a.dir, digest)
	if f, err := os.Open(kept); err == nil {
		return f, nil
	}
	program, err := a.find(ctx, digest)
	if err != nil {
		return nil, err
	}
	select {
	case a.fetching <- struct{}{}:
		defer func() { <-a.fetching }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if f, err := os.Open(kept); err == nil { // another request has assembled it
		return f, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout) // other requests wait for it, too
	defer cancel()
	if err := a.keep(ctx, program, kept); err != nil {
		return nil, err
	}
	a.drop(digest)
	return os.Open(kept)
}

// find returns the published program with a digest.
func (a *Agents) find(ctx context.Context, digest string) (content.Program, error) {
	select {
	case a.reading <- struct{}{}:
		defer func() { <-a.reading }()
	case <-ctx.Done():
		return content.Program{}, ctx.Err()
	}
	program, ok := a.published[digest]
	if age := time.Since(a.read); age >= publishedFor && (!ok || age >= time.Minute) { // one may have been pruned
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), etcd.DefaultTimeout)
		defer cancel()
		all, err := a.src.Agents(ctx)
		if err != nil && !errors.As(err, new(*release.UnreadableReleases)) {
			return content.Program{}, err
		}
		a.published, a.read = map[string]content.Program{}, time.Now()
		for _, r := range all {
			for _, p := range r.Platforms {
				a.published[p.SHA256] = p
			}
		}
		program, ok = a.published[digest]
	}
	if !ok {
		return content.Program{}, etcd.ErrNotFound
	}
	return program, nil
}

// fileOf returns the path of the file with a digest, or "".
func (a *Agents) fileOf(digest string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for path := range a.files {
		if now, err := a.digestLocked(path); err == nil && now == digest {
			return path
		}
	}
	return ""
}

// keep assembles a program in a file, atomically.
func (a *Agents) keep(ctx context.Context, program content.Program, path string) error {
	if err := os.MkdirAll(a.dir, 0o700); err != nil {
		return err
	}
	return atomicfile.WriteSharedFunc(path, 0o600, func(f *os.File) error { return program.CopyTo(ctx, f, a.src) })
}

// drop deletes the oldest assembled programs, except one.
func (a *Agents) drop(but string) {
	entries, err := os.ReadDir(a.dir)
	if err != nil {
		return
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return !isDigest(e.Name()) || e.Name() == but })
	age := func(e os.DirEntry) int64 {
		if info, err := e.Info(); err == nil {
			return info.ModTime().UnixNano()
		}
		return 0
	}
	slices.SortFunc(entries, func(x, y os.DirEntry) int { return cmp.Compare(age(x), age(y)) })
	for len(entries) >= maxKept {
		_ = os.Remove(filepath.Join(a.dir, entries[0].Name()))
		entries = entries[1:]
	}
}

// digestLocked returns the current digest of a file. It returns "" for anything but a regular file.
func (a *Agents) digestLocked(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", nil
	}
	if known, ok := a.files[path]; ok && known.size == info.Size() && known.time.Equal(info.ModTime()) {
		return known.digest, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	a.files[path] = agentFile{info.Size(), info.ModTime(), hex.EncodeToString(h.Sum(nil))}
	return a.files[path].digest, nil
}
