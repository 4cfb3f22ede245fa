//go:build bench

package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// pulley contains the commands under test, their etcd, and a key that signs releases.
type pulley struct {
	*benchEtcd
	bin, key, signers string
	h                 *history
	peak              map[string]float64 // KiB, the maximum of all runs, by operation
}

func newPulley(t *testing.T, h *history, dir string) *pulley {
	t.Helper()
	requirePeers(t, "ssh-keygen")
	p := &pulley{benchEtcd: startMember(t), bin: filepath.Join(dir, "bin"), key: filepath.Join(dir, "key"), signers: filepath.Join(dir, "allowed_signers"), h: h, peak: map[string]float64{}}
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", p.bin+"/", "../../cmd/pulley", "./installer", "./fleet")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build: %v\n%s", err, out)
	}
	if err := command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "bench", "-f", p.key); err != nil {
		t.Fatal(err)
	}
	public, err := os.ReadFile(p.key + ".pub")
	if err == nil {
		err = os.WriteFile(p.signers, append([]byte("alice@* "), public...), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// publish publishes the work tree as commit i, and returns the duration in seconds.
func (p *pulley) publish(i int) float64 {
	p.t.Helper()
	args := []string{"publish", p.h.work, "--version", p.h.version(i), "--sign-key", p.key, "--endpoints", p.endpoint, "--no-puppet"}
	if !p.h.debian {
		// A masterless run may refuse third-party modules.
		args = append(args, "--no-validate", "--puppetfile", "ignore")
	}
	return seconds(p.t, func() error { return command(filepath.Join(p.bin, "pulley"), args...) })
}

// install installs releases in order on the node in dir, in one process.
func (p *pulley) install(endpoint, dir string, commits ...int) error {
	what := "update"
	if _, err := os.Lstat(filepath.Join(dir, "current")); err != nil {
		what = "cold"
	}
	args := []string{endpoint, p.signers, dir}
	for _, i := range commits {
		args = append(args, p.h.version(i))
	}
	out, err := output(filepath.Join(p.bin, "installer"), args...)
	if err != nil {
		return err
	}
	kib, err := strconv.ParseFloat(out, 64)
	p.peak[what] = max(p.peak[what], kib)
	return err
}

// cold installs into an empty folder.
func (p *pulley) cold(dir string, commit int) job {
	at := func(round int) string { return filepath.Join(dir, fmt.Sprintf("pulley-%d", round)) }
	return job{
		name: "**Pulley**", flushes: true, tree: func(round int) string { return filepath.Join(at(round), "current") },
		run: func(round int) error { return p.install(p.endpoint, at(round), commit) },
	}
}

// settled is the number of updates until a node's folder reaches its steady state, with old releases and a previous
// tree kept for reuse.
const settled = 5

// update follows the history from commit first on, in two states: a node in its steady state, and one that has only the
// previous release.
func (p *pulley) update(dir string, first int) []job {
	p.t.Helper()
	old := filepath.Join(dir, "pulley")
	for i := first - settled; i <= first; i++ {
		if err := p.install(p.endpoint, old, i); err != nil {
			p.t.Fatal(err)
		}
	}
	young := func(round int) string { return filepath.Join(dir, fmt.Sprintf("pulley-young-%d", round)) }
	return []job{
		{
			name: "**Pulley**, beside", flushes: true, tree: func(int) string { return filepath.Join(old, "current") },
			run: func(round int) error { return p.install(p.endpoint, old, first+1+round) },
		},
		{
			name: "Pulley, the first update of a node", flushes: true, tree: func(round int) string { return filepath.Join(young(round), "current") },
			prepare: func(round int) error { return p.install(p.endpoint, young(round), first+round) },
			run:     func(round int) error { return p.install(p.endpoint, young(round), first+1+round) },
		},
	}
}

// transfer is the traffic of one installation from etcd.
type transfer struct{ wire, payload, requests float64 }

// measured installs through the tap, as the only client of etcd.
func (p *pulley) measured(through *tap, dir string, commits ...int) transfer {
	p.t.Helper()
	wire, payload, requests := through.bytes.Load(), p.sent(), p.requests()
	if err := p.install(through.endpoint, dir, commits...); err != nil {
		p.t.Fatal(err)
	}
	return transfer{float64(through.settledBytes() - wire), p.sent() - payload, p.requests() - requests}
}

// settledBytes waits until the count is stable: the end of a connection arrives after its client has exited.
func (p *tap) settledBytes() int64 {
	last := int64(-1)
	for ; last != p.bytes.Load(); time.Sleep(20 * time.Millisecond) {
		last = p.bytes.Load()
	}
	return last
}
