//go:build e2e

package source

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// modules creates two git repositories with one module each, and returns their URLs.
func modules(t *testing.T) (ntp, motd string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"ntp", "motd"} {
		write(t, dir, map[string]string{
			name + "/manifests/init.pp": "class " + name + " { }\n", name + "/files/run.sh": "#!/bin/sh\n",
			name + "/metadata.json": `{"name": "me-` + name + `", "version": "1.0.0"}`,
		})
		if err := os.Chmod(filepath.Join(dir, name, "files/run.sh"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("run.sh", filepath.Join(dir, name, "files/link")); err != nil {
			t.Fatal(err)
		}
		commit(t, filepath.Join(dir, name), "one")
		git(t, filepath.Join(dir, name), "tag", "v1")
		write(t, dir, map[string]string{name + "/manifests/init.pp": "class " + name + " { $two = 2 }\n"})
		commit(t, filepath.Join(dir, name), "two")
	}
	return "file://" + filepath.Join(dir, "ntp"), "file://" + filepath.Join(dir, "motd")
}

var tools = []Resolver{G10k, R10k}

// home keeps r10k's cache out of the home of the user.
func home(t *testing.T) {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
}

func text(t *testing.T, f *Folder, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(f.Root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// With any tool, the release contains the modules of the Puppetfile and the folder's own modules. Without Pulley, both
// tools remove the latter.
func TestPuppetfileIsResolved(t *testing.T) {
	home(t)
	ntp, motd := modules(t)
	for _, tool := range tools {
		t.Run(string(tool), func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, map[string]string{
				"Puppetfile":                       "mod 'me/ntp',\n  :git => '" + ntp + "',\n  :tag => 'v1'\nmod 'motd', :git => '" + motd + "', :branch => 'main', :install_path => 'ext'\n",
				"modules/profile/manifests/own.pp": "class profile::own { }\n", "manifests/site.pp": "node default { }\n", "ext/own/x": "x",
			})
			commit(t, dir, "begin")
			write(t, dir, map[string]string{".gitignore": "/modules/ntp\n/modules/gone\n"})
			commit(t, dir, "modules are resolved")
			write(t, dir, map[string]string{ // left by an earlier run and changed by a user
				"modules/ntp/manifests/init.pp": "class ntp { fail('changed') }\n", "modules/gone/x": "x", "modules/ntp/metadata.json": `{"name": "me-ntp", "version": "1.0.0"}`,
			})
			before := snapshot(t, dir)
			var shown []string
			f := open(t, dir, Options{Modules: tool, Progress: func(line string) { shown = append(shown, line) }})
			same(t, "published", published(t, f), ".gitignore", "Puppetfile", "ext/", "ext/motd/", "ext/motd/files/", "ext/motd/files/link → run.sh", "ext/motd/files/run.sh*",
				"ext/motd/manifests/", "ext/motd/manifests/init.pp", "ext/motd/metadata.json", "ext/own/", "ext/own/x", "manifests/", "manifests/site.pp",
				"modules/", "modules/ntp/", "modules/ntp/files/", "modules/ntp/files/link → run.sh", "modules/ntp/files/run.sh*", "modules/ntp/manifests/",
				"modules/ntp/manifests/init.pp", "modules/ntp/metadata.json", "modules/profile/", "modules/profile/manifests/", "modules/profile/manifests/own.pp")
			if got := text(t, f, "modules/ntp/manifests/init.pp"); got != "class ntp { }\n" {
				t.Errorf("ntp: %q", got)
			}
			if got := text(t, f, "ext/motd/manifests/init.pp"); !strings.Contains(got, "two") {
				t.Errorf("motd: %q", got)
			}
			if f.Facts.Modules != tool || f.Facts.Dirty || f.Facts.Subject != "modules are resolved" {
				t.Errorf("%+v", f.Facts)
			}
			if len(shown) < 3 {
				t.Errorf("progress: %q", shown)
			}
			same(t, "the operator's folder", snapshot(t, dir), before...)
		})
	}
}

// The moduledir of the Puppetfile is used. One folder may contain an install_path and the folder's own modules.
func TestModuledirIsHonoured(t *testing.T) {
	home(t)
	ntp, motd := modules(t)
	for _, tool := range tools {
		dir := t.TempDir()
		write(t, dir, map[string]string{
			"Puppetfile":        "moduledir 'site'\nmod 'ntp', :git => '" + ntp + "', :tag => 'v1'\nmod 'motd', :git => '" + motd + "', :tag => 'v1', :install_path => 'site/ext'\nmod 'local', :local => true\n",
			"site/profile/a.pp": "a", "site/ext/own/b.pp": "b", "site/local/c.pp": "c", "modules/x/d.pp": "d",
			"site/local/.git/HEAD": "ref: refs/heads/main\n", "site/ntp/.git/HEAD": "ref: refs/heads/main\n", "site/stale/.latest_commit": "0123", "site/stale/x.pp": "x",
		})
		f := open(t, dir, Options{Modules: tool})
		var own []string
		for _, name := range published(t, f) {
			if strings.HasSuffix(name, ".pp") {
				own = append(own, name)
			}
		}
		same(t, string(tool), own, "modules/x/d.pp", "site/ext/motd/manifests/init.pp", "site/ext/own/b.pp", "site/local/c.pp", "site/ntp/manifests/init.pp", "site/profile/a.pp")
		if f.Facts != (Facts{Modules: tool}) {
			t.Errorf("%+v", f.Facts)
		}
	}
}

// A module at the root of the repository must not cost the repository's own files.
func TestInstallPathAtTheRoot(t *testing.T) {
	home(t)
	ntp, motd := modules(t)
	for i, tool := range append(tools, tools...) {
		ref := ":tag => 'v1'"
		if i >= len(tools) { // then the tool reads another file than the folder's Puppetfile
			ref = ":branch => :control_branch, :default_branch => 'main'"
		}
		dir := t.TempDir()
		write(t, dir, map[string]string{
			"Puppetfile":  "mod 'ntp', :git => '" + ntp + "', :tag => 'v1'\nmod 'motd', :git => '" + motd + "', " + ref + ", :install_path => '.'\n",
			"hiera.yaml":  "version: 5\n",
			"site/p/a.pp": "a",
		})
		before := snapshot(t, dir)
		f := open(t, dir, Options{Modules: tool, Branch: "main"})
		if text(t, f, "motd/manifests/init.pp") == "" || text(t, f, "modules/ntp/manifests/init.pp") == "" || text(t, f, "site/p/a.pp") != "a" || text(t, f, "hiera.yaml") != "version: 5\n" {
			t.Errorf("%s: %v", tool, published(t, f))
		}
		same(t, string(tool), snapshot(t, dir), before...)
	}
}

// CI publishes with --git-ref and a Puppetfile: from a subfolder of a bare clone, with modules as of that commit.
func TestPuppetfileOfARef(t *testing.T) {
	home(t)
	ntp, _ := modules(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"control/Puppetfile": "mod 'ntp', :git => '" + ntp + "', :tag => 'v1'\n", "control/modules/own/x": "x"})
	commit(t, dir, "tagged")
	write(t, dir, map[string]string{"control/Puppetfile": "garbage ("})
	for _, tool := range append(tools, Auto) {
		f := open(t, filepath.Join(dir, "control"), Options{Ref: "main", Modules: tool})
		if got := text(t, f, "modules/ntp/manifests/init.pp"); got != "class ntp { }\n" || text(t, f, "modules/own/x") != "x" {
			t.Errorf("%s: %q", tool, got)
		}
		want := tool
		if tool == Auto {
			want = R10k
		}
		if f.Facts.Modules != want || f.Facts.Ref != "main" {
			t.Errorf("%s: %+v", tool, f.Facts)
		}
	}
}

// r10k executes a Puppetfile as Ruby. g10k refuses this line, and publish must not choose it where r10k is installed.
func TestPuppetfileInRubyOfToday(t *testing.T) {
	home(t)
	ntp, _ := modules(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"Puppetfile": "mod 'ntp', git: '" + ntp + "', tag: 'v1'\n"})
	if f := open(t, dir, Options{}); text(t, f, "modules/ntp/manifests/init.pp") == "" {
		t.Error(published(t, f))
	}
	refused(t, dir, Options{Modules: G10k}, "cannot resolve the Puppetfile with g10k: ", "--puppetfile r10k")
}

// Where r10k succeeds in the folder, publish has its result: nobody rewrites a Puppetfile for another program.
func TestPuppetfileIsRuby(t *testing.T) {
	home(t)
	ntp, motd := modules(t)
	x, y := "mod 'ntp', :git => '"+ntp+"', :branch => 'main'", "mod 'motd', :git => '"+motd+"', :branch => "
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"Puppetfile.d/base": x + "\n", "versions.json": `{"motd": "v1"}`, "modules/own/x": "x", ".pulleyignore": "Puppetfile.d\nversions.json\n",
		"ruby.rb": "moduledir 'a'\n" + x + "\n" + y + "'none' if ENV['NEVER_SET']\nunless true\n  " + y + "'none'\nend\n=begin\n" + y + "'none'\n=end\nnotes = <<T\n" + y + "'none'\nT\n" +
			"moduledir File.join(File.dirname(__FILE__), 'b')\nmod 'own', :local => true\n" + y + "'main', :install_path => File.expand_path('c/d', __dir__)\n__END__\n" + y + "'none'\n",
		"root.rb": "moduledir '.'\n" + x + "\nmoduledir @librarian.basedir + '/modules'\nmod 'own', local: true\n",
		"beside.rb": "instance_eval(File.read(File.join(__dir__, 'Puppetfile.d/base')))\nrequire 'json'\nJSON.parse(File.read('versions.json')).each { |name, tag| " +
			"mod name, git: '" + motd + "', tag: tag }\n",
		"git.rb":   "branch = `git rev-parse --abbrev-ref HEAD`.strip\n" + y + "branch\nmod 'ntp', git: `git config remote.origin.url`.strip, branch: :control_branch\n",
		"twice.rb": "mod \"m#{Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)}\", :git => '" + ntp + "'\n",
		"none.rb":  "[].each { |m| mod m }\n",
		"out.rb":   "moduledir '/etc/puppet'\n" + x + "\n",
	})
	git(t, dir, "init", "-q", "-b", "main")
	git(t, dir, "remote", "add", "origin", ntp)
	for name, want := range map[string]string{
		"ruby": "a/ntp c/d/motd modules/own", "root": "modules/own ntp", "beside": "modules/motd modules/ntp modules/own", "git": "modules/motd modules/ntp modules/own", "none": "modules/own",
	} {
		write(t, dir, map[string]string{"Puppetfile": text(t, &Folder{Root: dir}, name+".rb")})
		commit(t, dir, name)
		before, refs := snapshot(t, dir), []string{""}
		if name == "git" {
			refs = []string{"", "main"}
		}
		for _, ref := range refs {
			var got []string
			for _, file := range published(t, open(t, dir, Options{Ref: ref, Modules: R10k})) {
				if path.Base(file) == "metadata.json" || path.Base(file) == "x" {
					got = append(got, path.Dir(file))
				}
			}
			same(t, name, got, strings.Fields(want)...)
		}
		same(t, name, snapshot(t, dir), before...)
	}
	for name, want := range map[string]string{"out": `its folder for ntp "../`, "twice": "it names other modules each time that it is read"} {
		write(t, dir, map[string]string{"Puppetfile": text(t, &Folder{Root: dir}, name+".rb")})
		refused(t, dir, Options{Modules: R10k}, "cannot resolve the Puppetfile with r10k: ", want)
	}
}

// r10k keeps a tag that it has seen, g10k does not. Two operators would publish two trees of one commit.
func TestMovedTagsAreFollowed(t *testing.T) {
	home(t)
	ntp, _ := modules(t)
	dir, cache := t.TempDir(), t.TempDir()
	write(t, dir, map[string]string{"Puppetfile": "mod 'ntp', :git => '" + ntp + "', :tag => 'v1'\n"})
	for _, tool := range tools {
		open(t, dir, Options{Modules: tool, CacheDir: cache})
		write(t, strings.TrimPrefix(ntp, "file://"), map[string]string{"manifests/init.pp": "# moved\n# for " + string(tool) + "\n"})
		at := commit(t, strings.TrimPrefix(ntp, "file://"), "moved")
		git(t, strings.TrimPrefix(ntp, "file://"), "tag", "-f", "v1")
		f := open(t, dir, Options{Modules: tool, CacheDir: cache})
		if len(f.Resolved) != 1 || f.Resolved[0].SHA != at || !strings.Contains(text(t, f, "modules/ntp/manifests/init.pp"), string(tool)) {
			t.Errorf("%s: %+v, want %s", tool, f.Resolved, at)
		}
	}
}

// A missing module must stop the release, with the tool's output. Both tools may exit with success without it.
func TestPuppetfileThatFails(t *testing.T) {
	home(t)
	ntp, _ := modules(t)
	for _, tool := range tools {
		dir := t.TempDir()
		write(t, dir, map[string]string{"Puppetfile": "mod 'ntp', :git => '" + ntp + "-gone', :tag => 'v1'\n"})
		refused(t, dir, Options{Modules: tool}, "cannot resolve the Puppetfile with "+string(tool)+": module ntp: '"+strings.TrimPrefix(ntp, "file://")+"-gone' does not appear to be a git repository\n", "--puppetfile ignore")
		write(t, dir, map[string]string{"Puppetfile": "mod 'ntp', :git => '" + ntp + "', :tag => 'no-such-tag'\n"})
		refused(t, dir, Options{Modules: tool}, "cannot resolve the Puppetfile with "+string(tool))
		write(t, dir, map[string]string{"Puppetfile": "mod 'ntp', :local => true\n"})
		same(t, string(tool), open(t, dir, Options{Modules: tool}).Notes, "modules that the Puppetfile calls local are not in the folder: modules/ntp")
		outside := t.TempDir()
		write(t, outside, map[string]string{"theirs": "x", "modules/theirs": "x"})
		before := snapshot(t, outside)
		write(t, dir, map[string]string{"Puppetfile": "mod 'ntp', :git => '" + ntp + "', :tag => 'v1'\n"})
		if err := os.Symlink(outside, filepath.Join(dir, "modules")); err != nil {
			t.Fatal(err)
		}
		refused(t, dir, Options{Modules: tool}, "modules, the folder of its modules, is not a folder")
		write(t, dir, map[string]string{"Puppetfile": "moduledir 'out/modules'\nmod 'ntp', :git => '" + ntp + "', :tag => 'v1'\n"})
		if err := os.Symlink(outside, filepath.Join(dir, "out")); err != nil {
			t.Fatal(err)
		}
		refused(t, dir, Options{Modules: tool}, "cannot resolve the Puppetfile: ", "escapes")
		same(t, "behind a link", snapshot(t, outside), before...)
	}
}

// A release of a feature branch with the modules of main would be tested and promoted, and be another one after the
// merge. r10k run by hand takes the default branch, and says it where nobody looks.
func TestPuppetfileFollowsBranch(t *testing.T) {
	home(t)
	ntp, motd := modules(t)
	at := map[string]string{}
	for name, dir := range map[string]string{"ntp": strings.TrimPrefix(ntp, "file://"), "motd": strings.TrimPrefix(motd, "file://")} {
		at[name] = git(t, dir, "rev-parse", "main")
		if name == "ntp" {
			git(t, dir, "checkout", "-q", "-b", "feature/x")
			write(t, dir, map[string]string{"manifests/init.pp": "class ntp { $three = 3 }\n"})
			at["feature"] = commit(t, dir, "three")
			git(t, dir, "checkout", "-q", "main")
		}
	}
	dir := t.TempDir()
	puppetfile := "mod 'ntp',\n  :git => '" + ntp + "',\n  :branch => :control_branch,\n  :default_branch => 'main'\n" +
		"mod 'motd', :git => '" + motd + "', :branch => :control_branch, :default_branch => 'main'\n"
	write(t, dir, map[string]string{"Puppetfile": puppetfile, "site.pp": "x"})
	commit(t, dir, "begin")
	git(t, dir, "checkout", "-q", "-b", "feature/x")
	detached := filepath.Join(t.TempDir(), "detached")
	git(t, dir, "worktree", "add", "-q", "--detach", detached)
	for _, tool := range tools {
		for what, c := range map[string]struct {
			dir string
			o   Options
			ntp string
		}{
			"the branch of the work tree": {dir, Options{}, at["feature"]},
			"another branch":              {dir, Options{Branch: "main"}, at["ntp"]},
			"a ref":                       {detached, Options{Ref: "feature/x"}, at["feature"]},
			"a given branch":              {detached, Options{Branch: "feature/x"}, at["feature"]},
			"a branch of no module":       {dir, Options{Branch: "feature/y"}, at["ntp"]},
		} {
			c.o.Modules = tool
			f := open(t, c.dir, c.o)
			if len(f.Resolved) != 2 || f.Resolved[0].SHA != at["motd"] || f.Resolved[1].SHA != c.ntp || f.Resolved[1].Name != "ntp" {
				t.Errorf("%s, %s: %+v, want ntp %s", tool, what, f.Resolved, c.ntp)
			}
			if text(t, f, "Puppetfile") != puppetfile {
				t.Errorf("%s, %s: the Puppetfile of the release was changed", tool, what)
			}
			if !strings.Contains(string(f.Added[DeployFile]), `"sha": "`+c.ntp+`"`) {
				t.Errorf("%s, %s: %s", tool, what, f.Added[DeployFile])
			}
		}
	}
	f := open(t, detached, Options{Modules: R10k})
	if notes := strings.Join(f.Notes, "\n"); f.Resolved[1].SHA != at["ntp"] || !strings.Contains(notes, "give --branch") || !strings.Contains(notes, "r10k: Cannot track control repo branch for content 'ntp'") {
		t.Errorf("%+v %q", f.Resolved, f.Notes)
	}
	refused(t, dir, Options{Modules: G10k, Branch: "a'b"}, "cannot resolve the Puppetfile with g10k: branch \"a'b\" has a quote")
	if f := open(t, dir, Options{Modules: R10k, Branch: "a'b#{x}"}); f.Resolved[1].SHA != at["ntp"] {
		t.Errorf("%+v", f.Resolved)
	}
	write(t, dir, map[string]string{"Puppetfile": "mod 'ntp', :git => '" + ntp + "', :branch => 'vanished'\n"})
	for _, tool := range tools {
		refused(t, dir, Options{Modules: tool}, "cannot resolve the Puppetfile with "+string(tool)+": module ntp: ", "'vanished'")
	}
}
