//go:build e2e

package content

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// large20000 is a tree of 20,000 files and of the other kinds of entries.
func large20000(t *testing.T, root string) {
	t.Helper()
	r := rand.New(rand.NewPCG(20, 0))
	write := func(p, content string, mode os.FileMode) {
		p = filepath.Join(root, p)
		if err := os.WriteFile(p, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"init.pp", "größe %d.pp", "with space %d", "日本語-%d.yaml", "a-%d", "a.%d", ".hidden%d", "plain%d.epp", "🐙 %d", "-%d"}
	for d := range 200 {
		dir := fmt.Sprintf("modules/m%d/mit Umlaut ä/sub-%d", d%50, d)
		for _, sub := range []string{"", "/empty", "/empty too/inside"} {
			if err := os.MkdirAll(filepath.Join(root, dir+sub), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 100 {
			name := names[i%len(names)]
			if strings.Contains(name, "%") {
				name = fmt.Sprintf(name, i)
			} else {
				name = fmt.Sprint(i, name)
			}
			mode := os.FileMode(0o644)
			if i%7 == 0 {
				mode = 0o755
			}
			content := fmt.Sprintf("%d of %d\n%s", i, d, text(r, r.IntN(300)))
			switch i % 20 {
			case 3:
				content = ""
			case 5:
				content = "the same everywhere\n"
			}
			write(dir+"/"+name, content, mode)
		}
		for target, name := range map[string]string{"empty": "to a folder", "0init.pp": "to a file", "../nowhere": "dangling ä"} {
			if err := os.Symlink(target, filepath.Join(root, dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("modules/large", noise(3, 3<<20), 0o755)
}

// independently compares two folders with standard programs.
func independently(t *testing.T, published, installed string) {
	t.Helper()
	run := func(dir, line string) string {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "LC_ALL=C", "OTHER="+published)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s in %s: %v\n%.2000s", line, dir, err, out)
		}
		return string(out)
	}
	if out := run(installed, `diff -r --no-dereference "$OTHER" .`); out != "" {
		t.Errorf("diff: %s", out)
	}
	for _, list := range []string{
		`find . -printf '%y %P -> %l\n' | sort`,               // names, types, link targets
		`find . -type f -perm -100 -printf '%P\n' | sort`,     // executable files
		`find . -type f -printf '%s %P\n' | sort | sha256sum`, // sizes
	} {
		if want, got := run(published, list), run(installed, list); want != got || want == "" {
			t.Errorf("%s: differs", list)
		}
	}
	for _, none := range []string{`find . -type d ! -perm 0755`, `find . -type f ! -perm 0444 ! -perm 0555`} {
		if out := run(installed, none); out != "" {
			t.Errorf("%s: %.1000s", none, out)
		}
	}
}

// A large control repository is published and installed from nothing, by delta, and back, with identical bytes and
// modes. The installed tree can be published again with the same tree hash.
func TestTwentyThousandFiles(t *testing.T) {
	t.Parallel()
	dir := quick(t)
	published := filepath.Join(dir, "published")
	large20000(t, published)
	src := objects{}
	one := src.build(t, published, Record{}, "1.0.0")
	if one.Files != 20_001 {
		t.Fatalf("%d files", one.Files)
	}
	s := newStore(t, filepath.Join(dir, "state"))
	mustInstall(t, s, src, one)
	independently(t, published, s.Path(one.Tree))

	again := objects{}
	r := again.build(t, s.Path(one.Tree), Record{}, "2.0.0")
	if r.Tree != one.Tree || r.Base != one.Base {
		t.Errorf("published again it is %+v, not %+v", r, one)
	}

	change := exec.CommandContext(t.Context(), "sh", "-c", `
		mv 'modules/m1' 'modules/umbenannt ü' && rm -r modules/m2 && chmod -R a+x modules/m3 && cp -r modules/m4 'modules/m4 copy' &&
		rm 'modules/m5/mit Umlaut ä/sub-5/to a folder' && mkdir 'modules/m5/mit Umlaut ä/sub-5/to a folder' &&
		ln -s m6 'modules/link' && echo new > modules/new`)
	change.Dir = published
	if out, err := change.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	two := src.build(t, published, one, "")
	if two.Chain.Seq != 1 || two.Chain.Delta.Size > 100_000 {
		t.Errorf("%+v", two)
	}
	asked := &counting{objects: src}
	mustInstall(t, s, asked, two)
	if asked.requests != 1 {
		t.Errorf("%d requests", asked.requests)
	}
	independently(t, published, s.Path(two.Tree))

	// Back: publish the tree that was changed above from the first release on the node.
	first := filepath.Join(dir, "first")
	if err := os.Rename(s.Path(one.Tree), first); err != nil {
		t.Fatal(err)
	}
	mustInstall(t, s, src, one)
	independently(t, first, s.Path(one.Tree))
}
