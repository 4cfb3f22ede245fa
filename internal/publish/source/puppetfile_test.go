package source

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A tool empties the folders where it installs modules. These folders must be known before, or refused.
func TestPuppetfileIsReadAsFarAsNeeded(t *testing.T) {
	for name, c := range map[string]struct {
		text, folders, modules, local, refused string
	}{
		"plain":        {text: "forge 'https://forgeapi.puppet.com'\nmod 'puppetlabs/stdlib', '9.0.0'\nmod 'me-ntp',\n  :git => 'x'\nmod \"motd\", git: 'y'\n", folders: "modules", modules: "modules/stdlib modules/ntp modules/motd"},
		"moduledir":    {text: "moduledir 'site/lib/'\nmod('a/b')\n", folders: "site/lib", modules: "site/lib/b"},
		"install_path": {text: "mod 'a', git: 'x', install_path: 'ext'\nmod 'b',\n  :git => 'y',\n  :install_path => \"ext\" # why\nmod 'c'\n", folders: "ext modules", modules: "ext/a ext/b modules/c"},
		"at the root":  {text: "mod 'me-data', git: 'x', install_path: '.'\nmod 'b'\n", folders: "data modules", modules: "data modules/b"},
		"moduledirs":   {text: "mod 'x'\nmoduledir 'a'\nmod 'y'\nmoduledir 'b'\nmod 'z'\n", folders: "modules a b", modules: "modules/x a/y b/z"},
		"not Ruby":     {text: "mod 'x'\n=begin\nmod 'y'\n=end\n__END__\nmod 'z'\n", folders: "modules", modules: "modules/x"},
		"commented":    {text: "# mod 'a'\n  # moduledir '/'\nmod 'b'\n# install_path: '/'\n", folders: "modules", modules: "modules/b"},
		"local": {text: "mod 'a', local: true\nmod 'me/b',\n  :local => true\nmod 'c', type: 'local', install_path: 'x'\nmod 'd', git: 'x' # local: true\nmod 'e', 'local' => false\n",
			folders: "modules x", modules: "modules/a modules/b x/c modules/d modules/e", local: "modules/a modules/b x/c"},
		"no modules":    {text: "forge 'x'\nmoduledir 'lib'\n# mod 'a'\n"},
		"split":         {text: "moduledir 'lib'\nDir['Puppetfile.d/*'].each { |f| instance_eval(File.read(f)) }\n", folders: "lib"},
		"ruby":          {text: "%w[a b].each { |m| mod m, git: m }\n", folders: "modules"},
		"root":          {text: "moduledir '.'\nmod 'a'", refused: `its moduledir "." is not a folder below its own`},
		"absolute":      {text: "moduledir '/etc'\nmod 'a'", refused: `its moduledir "/etc" is not a folder below its own`},
		"out":           {text: "mod 'a', install_path: 'x/../..'", refused: `its install_path ".." is not a folder below its own`},
		"computed":      {text: "moduledir File.join('a', 'b')\nmod 'a'", refused: "its moduledir is not a plain string: File.join('a', 'b')"},
		"interpolated":  {text: "moduledir \"#{x}\"\nmod 'a'", refused: "is not a plain string"},
		"computed path": {text: "mod 'a', install_path: P", refused: "its install_path is not a plain string: P"},
	} {
		p := parsePuppetfile(c.text)
		if p == nil {
			p = &puppetfile{}
		}
		if c.refused != "" || p.unclear != nil {
			if p.unclear == nil || c.refused == "" || !strings.Contains(p.unclear.Error(), c.refused) {
				t.Errorf("%s: %v", name, p.unclear)
			}
			continue
		}
		if got := strings.Join(p.folders, " "); got != c.folders {
			t.Errorf("%s: folders %s", name, got)
		}
		if got := strings.Join(p.modules, " "); got != c.modules {
			t.Errorf("%s: modules %s", name, got)
		}
		if got := strings.Join(p.local, " "); got != c.local {
			t.Errorf("%s: local modules %s", name, got)
		}
	}
}

// g10k skips Ruby without an error: nodes would lack the modules.
func TestRubyIsNotForG10k(t *testing.T) {
	dir := t.TempDir()
	bin := fakeR10k(t, `{"title": "ntp", "folder": "modules"}`, "mkdir -p modules/ntp\necho new >modules/ntp/a.pp\n")
	write(t, bin, map[string]string{"g10k": "#!/bin/sh\nmkdir -p modules/a\necho new >modules/a/a.pp\n"})
	if err := os.Chmod(filepath.Join(bin, "g10k"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, ruby := range []string{
		"Dir['Puppetfile.d/*'].each { |f| instance_eval(File.read(f)) }", "instance_eval(File.read('Puppetfile.d/a'))", "%w[ntp].each { |m| mod m, :git => m }", "mod NAME, '1.0.0'",
	} {
		write(t, dir, map[string]string{"Puppetfile": "forge 'x' # why\n" + ruby + "\n"})
		refused(t, dir, Options{Modules: G10k}, "cannot resolve the Puppetfile with g10k: it skips line 2, which is Ruby: "+ruby+"\nr10k reads any Puppetfile (--puppetfile r10k)")
		same(t, ruby, published(t, open(t, dir, Options{Modules: R10k})), "Puppetfile", "modules/", "modules/ntp/", "modules/ntp/a.pp")
	}
	write(t, dir, map[string]string{"Puppetfile": "forge.cacheTtl 50m\nforge \"x\"\r\n  # a\r\nmoduledir 'modules'\n\nmod 'me/a',\n  :latest\nmod(\n  'a',\n  '1.0'\n)\nmod \"a\",\n  git: 'x',\n  'tag' => 'y' # why\n"})
	if f := open(t, dir, Options{Modules: G10k}); f.Facts.Modules != G10k {
		t.Errorf("%+v", f.Facts)
	}
}

// Without a tool, complete modules are published as they are. A missing module would be missing on every node.
func TestPuppetfileWithoutATool(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	dir := t.TempDir()
	write(t, dir, map[string]string{"Puppetfile": "mod 'a/ntp'\nmod 'b/motd'\n", "modules/ntp/x": "x", "modules/motd/": ""})
	refused(t, dir, Options{}, "neither r10k nor g10k is installed, and modules/motd is not in the folder", "\ninstall r10k (apt-get install r10k) or g10k", "--puppetfile ignore")
	refused(t, dir, Options{Modules: R10k}, "cannot resolve the Puppetfile: r10k is not installed\ninstall r10k")
	f := open(t, dir, Options{Modules: NoTool})
	same(t, "ignored", published(t, f), "Puppetfile", "modules/", "modules/motd/", "modules/ntp/", "modules/ntp/x")
	write(t, dir, map[string]string{"modules/motd/y": "y"})
	f = open(t, dir, Options{})
	if f.Root != dir || f.Facts.Modules != "" || len(f.Notes) != 1 || !strings.Contains(f.Notes[0], "in the folder are published unchanged") {
		t.Errorf("%+v", f)
	}
	for _, target := range []string{"../elsewhere/Puppetfile", "missing"} { // a release without its modules
		if err := errors.Join(os.Remove(filepath.Join(dir, "Puppetfile")), os.Symlink(target, filepath.Join(dir, "Puppetfile"))); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Dir(dir), map[string]string{"elsewhere/Puppetfile": "mod 'a/ntp'\n"})
		refused(t, dir, Options{}, "cannot read the Puppetfile: it is a link to "+target+", which is outside of the folder or missing\nreplace the link by the file")
		open(t, dir, Options{Modules: NoTool})
	}
	if _, err := ParseResolver("librarian"); err == nil {
		t.Error("an unknown tool was accepted")
	}
}

func FuzzPuppetfile(f *testing.F) {
	for _, text := range []string{"mod 'a', install_path: 'b'", "moduledir 'x'\nmod(\"y/z\",", "mod '-'", "mod 'a/'\n", "moduledir '\x00'\nmod 'a'"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p := parsePuppetfile(text)
		if p == nil {
			return
		}
		for _, folder := range append(p.folders, p.modules...) {
			if folder == "." || strings.HasPrefix(folder, "/") || folder == ".." || strings.HasPrefix(folder, "../") {
				t.Errorf("%q leads to %q", text, folder)
			}
		}
	})
}
