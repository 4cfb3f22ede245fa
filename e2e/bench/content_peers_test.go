//go:build bench

package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// requirePeers fails the test if a program is missing: a table without one of the peers is misleading.
func requirePeers(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("cannot measure: %v\n`make bench` installs the peers: e2e/packages g10k r10k casync rsync git", err)
		}
	}
}

// peers are the other ways to put a control repository onto a machine. Their sources are already on the machine: a bare
// git repository, a folder, casync's store, a tar file. None of them pays for a network.
type peers struct {
	h   *history
	dir string
	// The published commit, as casync and tar read it.
	index, store, tar string

	unmade error // of casync's store
}

func newPeers(h *history, dir string) *peers {
	return &peers{h: h, dir: dir, index: filepath.Join(dir, "tree.caidx"), store: filepath.Join(dir, "store.castr"), tar: filepath.Join(dir, "tree.tar")}
}

// publish updates all sources to commit i.
func (p *peers) publish(i int) error {
	if err := p.h.checkout(i); err != nil {
		return err
	}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return err
	}
	clean := p.source()
	if err := command("rsync", "-a", "--delete", "--exclude=/.git", p.h.work+"/", clean+"/"); err != nil {
		return err
	}
	// Without owners and times, like Pulley. With them, casync would transfer more.
	p.unmade = command("casync", "make", "--with=permissions", "--with=symlinks", "--store="+p.store, p.index, clean)
	return nil
}

// extract is casync's, with more arguments.
func (p *peers) extract(to string, more ...string) error {
	if p.unmade != nil {
		return p.unmade
	}
	return command("casync", slices.Concat([]string{"extract", "--store=" + p.store}, more, []string{p.index, to})...)
}

// archive creates the source of tar.
func (p *peers) archive() error { return command("tar", "-cf", p.tar, "-C", p.source(), ".") }

func (p *peers) source() string { return filepath.Join(p.dir, "source") }

// deployer is a program that manages a folder of environments, one for each branch of a git repository.
type deployer struct {
	program      string
	dir, origin  string
	settings     string // format of its configuration; %s are the cache, the repository and the folder of environments
	before, then []string
}

func (p *peers) g10k(dir string) deployer {
	return deployer{"g10k", dir, p.h.origin, ":cachedir: %s\nsources:\n  bench:\n    remote: file://%s\n    basedir: %s\n", []string{"-config"}, []string{"-branch", "main", "-quiet"}}
}

func (p *peers) r10k(dir string) deployer {
	return deployer{"r10k", dir, p.h.origin, ":cachedir: %s\n:sources:\n  bench:\n    remote: file://%s\n    basedir: %s\n", []string{"deploy", "environment", "main", "--config"}, nil}
}

func (d deployer) tree() string { return filepath.Join(d.dir, "environments", "main") }

func (d deployer) configure() error {
	cache, environments := filepath.Join(d.dir, "cache"), filepath.Join(d.dir, "environments")
	if err := os.MkdirAll(environments, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(d.dir, "config.yaml"), fmt.Appendf(nil, d.settings, cache, d.origin, environments), 0o644)
}

// run deploys. Both programs can exit with 0 and without a tree.
func (d deployer) run() error {
	args := append(append(append([]string{}, d.before...), filepath.Join(d.dir, "config.yaml")), d.then...)
	out, err := output(d.program, args...)
	if err == nil {
		if _, missing := os.Stat(d.tree()); missing != nil {
			err = fmt.Errorf("%s exited with 0, and wrote no tree: %w\n%s", d.program, missing, out)
		}
	}
	return err
}

func (d deployer) begin() error {
	if err := d.configure(); err != nil {
		return err
	}
	return d.run()
}

// cold returns the peers that fill an empty folder below dir with the published commit.
func (p *peers) cold(dir string) []job {
	at := func(name string) func(int) string {
		return func(round int) string { return filepath.Join(dir, fmt.Sprintf("%s-%d", name, round)) }
	}
	plain := func(label, name string, run func(to string) error) job {
		tree := at(name)
		return job{name: label, tree: tree, prepare: func(round int) error { return os.Mkdir(tree(round), 0o755) }, run: func(round int) error { return run(tree(round)) }}
	}
	deploy := func(label, name string, make func(dir string) deployer) job {
		base := at(name)
		return job{
			name: label, tree: func(round int) string { return make(base(round)).tree() },
			prepare: func(round int) error { return make(base(round)).configure() },
			run:     func(round int) error { return make(base(round)).run() },
		}
	}
	clone := func(to string, more ...string) error {
		return command("git", append(append([]string{"clone", "-q", "--branch", "main"}, more...), "file://"+p.h.origin, to)...)
	}
	return []job{
		plain("`tar -x` of a local file", "tar", func(to string) error { return command("tar", "-xf", p.tar, "-C", to) }),
		deploy("g10k", "g10k", p.g10k),
		deploy("r10k", "r10k", p.r10k),
		plain("`git clone`", "clone", func(to string) error { return clone(to) }),
		plain("`git clone --depth 1`", "shallow", func(to string) error { return clone(to, "--depth", "1") }),
		plain("`casync extract`", "casync", func(to string) error { return p.extract(to) }),
		plain("`rsync -a`", "rsync", func(to string) error { return command("rsync", "-a", p.source()+"/", to+"/") }),
	}
}

// update returns the peers that follow a repository from commit first on. Round n updates them to the n-th commit after
// it, which is published then. Initially, they have commit first, which is published now.
func (p *peers) update(dir string) []job {
	in := func(name string) string { return filepath.Join(dir, name) }
	g10k, r10k, clone := p.g10k(in("g10k")), p.r10k(in("r10k")), in("git")
	seeded := func(round int) string { return in(fmt.Sprintf("casync-%d", round)) }
	linked := func(round int) string { return in(fmt.Sprintf("linked-%d", round)) }
	fixed := func(tree string) func(int) string { return func(int) string { return tree } }
	return []job{
		{name: "g10k, in place", failed: g10k.begin(), tree: fixed(g10k.tree()), run: func(int) error { return g10k.run() }},
		{name: "r10k, in place", failed: r10k.begin(), tree: fixed(r10k.tree()), run: func(int) error { return r10k.run() }},
		{name: "`git fetch`, `git checkout`, in place", failed: command("git", "clone", "-q", "--branch", "main", "file://"+p.h.origin, clone), tree: fixed(clone), run: func(int) error {
			if err := command("git", "-C", clone, "fetch", "-q", "origin", "main"); err != nil {
				return err
			}
			return command("git", "-C", clone, "checkout", "-q", "--force", "--detach", "FETCH_HEAD")
		}},
		{name: "`casync extract --seed`, beside", failed: p.extract(seeded(-1)), tree: seeded, run: func(round int) error {
			return p.extract(seeded(round), "--seed="+seeded(round-1))
		}},
		{name: "`rsync -a --link-dest`, beside", failed: command("rsync", "-a", p.source()+"/", linked(-1)+"/"), tree: linked, run: func(round int) error {
			return command("rsync", "-a", "--delete", "--link-dest="+linked(round-1), p.source()+"/", linked(round)+"/")
		}},
		{name: "`rsync -a --delete`, in place", failed: command("rsync", "-a", p.source()+"/", in("rsync")+"/"), tree: fixed(in("rsync")), run: func(int) error {
			return command("rsync", "-a", "--delete", p.source()+"/", in("rsync")+"/")
		}},
	}
}

// versions returns Debian's versions of the measured programs.
func versions() string {
	out, err := output("dpkg-query", "-W", "-f", "${Package} ${Version}, ", "g10k", "r10k", "casync", "rsync", "git", "tar")
	if err != nil {
		return "of unknown versions (no dpkg-query)"
	}
	return strings.TrimSuffix(strings.TrimSpace(out), ",")
}
