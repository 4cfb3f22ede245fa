//go:build bench

package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// packages are those of Debian's Puppet modules that can be published unchanged. Some others export resources, which
// validate refuses. Only those in this machine's release of Debian are used.
var packages = strings.Fields(`ironic cinder swift nova neutron keystone glance manila heat octavia designate barbican horizon ceph magnum
	sahara ceilometer aodh murano mistral gnocchi cloudkitty placement oslo openstacklib openstack-extras tempest vswitch puppetlabs-apt
	puppetlabs-stdlib puppetlabs-concat puppetlabs-firewall puppetlabs-inifile puppetlabs-mysql puppetlabs-ntp puppetlabs-postgresql
	puppetlabs-rabbitmq puppetlabs-vcsrepo puppetlabs-xinetd puppetlabs-rsync arioch-redis camptocamp-postfix camptocamp-systemd
	pcfens-filebeat rodjek-logrotate saz-rsyslog voxpupuli-collectd voxpupuli-corosync voxpupuli-alternatives theforeman-dns
	deric-zookeeper aboe-chrony`)

const (
	leastFiles = 3000
	commits    = 60 // of the generated history; the last of them are measured
)

// debianTree returns a control repository of Debian's modules, without a history. The packages are downloaded once, and
// never installed.
func debianTree(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "pulley-bench")
	tree := filepath.Join(dir, "tree")
	if _, err := os.Stat(tree); err != nil {
		if err := unpackPackages(dir, tree); err != nil {
			t.Fatalf("cannot get Debian's Puppet modules: %v\nthis needs a Debian with its archive in /etc/apt; with REPO=PATH a git repository is measured instead", err)
		}
	}
	if _, files := walk(t, tree); len(files) < leastFiles {
		t.Fatalf("cannot measure with %s: it has %d files, and %d are wanted\nremove the folder, and it is made anew", dir, len(files), leastFiles)
	}
	return tree
}

func unpackPackages(dir, tree string) error {
	debs, unpacked, made := filepath.Join(dir, "packages"), filepath.Join(dir, "unpacked"), tree+".new"
	for _, d := range []string{debs, unpacked, made} {
		if err := errors.Join(os.RemoveAll(d), os.MkdirAll(d, 0o755)); err != nil {
			return err
		}
	}
	known, err := output("apt-cache", "pkgnames", "puppet-module-")
	if err != nil {
		return err
	}
	download := []string{"-c", `cd "$1" && shift && exec apt-get -qq -o APT::Sandbox::User=root download "$@"`, "sh", debs}
	for _, p := range packages {
		if name := "puppet-module-" + p; slices.Contains(strings.Fields(known), name) {
			download = append(download, name)
		}
	}
	if err := command("sh", download...); err != nil {
		return fmt.Errorf("%w\n`apt-get update` may help", err)
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	for _, f := range files {
		err = errors.Join(err, command("dpkg-deb", "-x", f, unpacked))
	}
	modules, globErr := filepath.Glob(filepath.Join(unpacked, "usr/share/puppet/modules.available/*"))
	if err := errors.Join(err, globErr); err != nil {
		return err
	}
	if err := errors.Join(os.Mkdir(filepath.Join(made, "modules"), 0o755), os.Mkdir(filepath.Join(made, "manifests"), 0o755)); err != nil {
		return err
	}
	for _, m := range modules {
		_, name, _ := strings.Cut(filepath.Base(m), "-")
		if name == "" { // openstacklib and similar have no author in their name
			name = filepath.Base(m)
		}
		if err := command("cp", "-r", "--preserve=mode,links", m, filepath.Join(made, "modules", name)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(made, "manifests/site.pp"), []byte("node default { }\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(made, tree)
}

// history contains the commits of a control repository, oldest first, and a work tree that moves between them. As for a
// publisher, only changed files get a new time.
type history struct {
	name    string
	origin  string // bare; the peers follow its branch main
	work    string
	commits []string
	hashes  []string // treeHash of each commit that was checked out
	debian  bool
}

// newHistory returns the history of REPO, or a generated one over Debian's modules.
func newHistory(t *testing.T, dir string) *history {
	t.Helper()
	h := &history{origin: filepath.Join(dir, "origin.git"), work: filepath.Join(dir, "work")}
	repo := os.Getenv("REPO")
	if h.debian = repo == ""; h.debian {
		repo = filepath.Join(dir, "made")
		h.name = fmt.Sprintf("Debian's puppet-module-* packages, %d commits that change one file each", commits)
		if err := makeUp(debianTree(t), repo); err != nil {
			t.Fatalf("cannot make a history: %v", err)
		}
	}
	err := command("git", "clone", "-q", "--bare", "--no-hardlinks", repo, h.origin)
	var log string
	if err == nil {
		log, err = output("git", "-C", h.origin, "log", "--first-parent", "--format=%H", fmt.Sprintf("-%d", commits+1), "HEAD")
	}
	h.commits = strings.Fields(log)
	slices.Reverse(h.commits)
	if err == nil && len(h.commits) < commits+1 {
		err = fmt.Errorf("it has %d commits, and %d are replayed", len(h.commits), commits+1)
	}
	if err == nil && !h.debian {
		err = h.withoutPuppetfile()
	}
	if err = errors.Join(err, command("git", "clone", "-q", "--no-checkout", h.origin, h.work)); err != nil {
		t.Fatalf("cannot measure %s: %v", repo, err)
	}
	h.hashes = make([]string, len(h.commits))
	if !h.debian {
		h.name = fmt.Sprintf("%s at %.12s, its last %d first-parent commits, without its Puppetfile", filepath.Base(strings.TrimSuffix(filepath.Clean(repo), "/repo")), strings.Fields(log)[0], commits)
	}
	return h
}

// withoutPuppetfile recreates the commits, on top of the previous one, without a Puppetfile. Otherwise only g10k and
// r10k would fetch its modules from the Forge.
func (h *history) withoutPuppetfile() error {
	const rewrite = `cd "$1" && git ls-tree "$2" | grep -v '	Puppetfile$' | git mktree`
	parent, err := output("git", "-C", h.origin, "rev-parse", h.commits[0]+"^")
	for i := 0; i < len(h.commits) && err == nil; i++ {
		var tree string
		if tree, err = output("sh", "-c", rewrite, "sh", h.origin, h.commits[i]); err == nil {
			parent, err = output("git", "-C", h.origin, "commit-tree", "-m", "rewritten", "-p", parent, tree)
			h.commits[i] = parent
		}
	}
	return err
}

// makeUp commits the tree, and then changes of a few lines in one file at a time, as in a real history.
func makeUp(tree, repo string) error {
	if err := errors.Join(command("cp", "-r", tree, repo), command("git", "-C", repo, "init", "-q", "-b", "main"),
		command("git", "-C", repo, "add", "-A", "-f"), command("git", "-C", repo, "commit", "-q", "-m", "all modules")); err != nil {
		return err
	}
	manifests, err := filepath.Glob(filepath.Join(repo, "modules/*/manifests/*.pp"))
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(1, 2))
	for n := range commits {
		file := manifests[random.IntN(len(manifests))]
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		lines := strings.SplitAfter(string(b), "\n")
		at := random.IntN(len(lines))
		lines = slices.Insert(lines, at, fmt.Sprintf("# Change %d: %x, and %x.\n", n, random.Uint64(), random.Uint64()))
		if err := os.WriteFile(file, []byte(strings.Join(lines, "")), 0o644); err != nil {
			return err
		}
		if err := command("git", "-C", repo, "commit", "-q", "-a", "-m", fmt.Sprintf("change %d", n)); err != nil {
			return err
		}
	}
	return nil
}

// checkout moves the work tree, and the branch that the peers follow, to commit i.
func (h *history) checkout(i int) error {
	err := command("git", "-C", h.origin, "update-ref", "refs/heads/main", h.commits[i])
	if err == nil {
		err = command("git", "-C", h.work, "checkout", "-q", "--force", "--detach", h.commits[i])
	}
	if err == nil && h.hashes[i] == "" {
		h.hashes[i], err = treeHash(h.work)
	}
	return err
}

// names lists the work tree without git's own files.
func (h *history) names(t *testing.T) (folders, files []string) {
	t.Helper()
	folders, files = walk(t, h.work)
	gits := func(name string) bool { return name == ".git" || strings.HasPrefix(name, ".git/") }
	return slices.DeleteFunc(folders, gits), slices.DeleteFunc(files, gits)
}

// version returns the release version of commit i.
func (h *history) version(i int) string { return fmt.Sprintf("1.0.%d", i) }
