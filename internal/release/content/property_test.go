package content

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// For any published tree, nodes get the same hash and the same files.
func TestAnyTreeRoundTrips(t *testing.T) {
	t.Parallel()
	base := quick(t)
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(base, "")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		f := anyFolder().Draw(rt, "tree")
		root := filepath.Join(dir, "tree")
		if err := os.Mkdir(root, 0o755); err != nil {
			rt.Fatal(err)
		}
		f.write(t, root)
		r, src := mustBuild(t, root)
		s := newStore(t, filepath.Join(dir, "state"))
		mustInstall(t, s, src, r)
		again := mustRead(t, s.Path(r.Tree))
		if again.Tree() != r.Tree || again.Files() != r.Files || again.Bytes() != r.Bytes {
			rt.Errorf("published %+v, installed %s with %d files", r, again.Tree(), again.Files())
		}
		files, err := ReadFiles(rt.Context(), src, r, func(string) bool { return true })
		if err != nil {
			rt.Fatal(err)
		}
		for p, content := range f {
			if strings.HasSuffix(p, "/") || strings.HasPrefix(content, "-> ") {
				continue
			}
			if got, ok := files[p]; !ok || string(got) != content {
				rt.Errorf("%q: read %d bytes, want %d", p, len(got), len(content))
			}
		}
	})
}

// anyFolder returns trees with unusual sort orders and with contents that repeat, span packs or are empty.
func anyFolder() *rapid.Generator[folder] {
	name := rapid.SampledFrom([]string{"a", "b", "a-b", "a.b", "a0", "é", "x y", "~", "-", "..x", "A", "e\u0301", `\x2d`, "\t", "\n", "\xff", "\xfe\xff"})
	target := rapid.SampledFrom([]string{"/etc/passwd", "../../../../../../tmp", "gone", "a", "b/../a", "a/b/a-b", "\xff", `\`, "."})
	content := rapid.OneOf(
		rapid.SampledFrom([]string{"", "same", "#!/bin/sh\n", "#!/bin/sh\nexit\n"}),
		rapid.String(),
		rapid.Custom(func(t *rapid.T) string {
			return noise(rapid.Uint64Range(0, 3).Draw(t, "seed"), rapid.IntRange(0, 1<<20+10).Draw(t, "size"))
		}),
	)
	return rapid.Custom(func(t *rapid.T) folder {
		f := folder{}
		dirs := []string{"."}
		taken := map[string]bool{".": true}
		for range rapid.IntRange(0, 12).Draw(t, "entries") {
			p := path.Join(rapid.SampledFrom(dirs).Draw(t, "in"), name.Draw(t, "name"))
			if taken[p] {
				continue
			}
			taken[p] = true
			switch rapid.IntRange(0, 6).Draw(t, "kind") {
			case 0, 1:
				dirs = append(dirs, p)
				f[p+"/"] = ""
			case 2:
				f[p] = "-> " + strings.Repeat("../", strings.Count(p, "/")) + "target" // up to the root and down again
			case 3:
				f[p] = "-> " + target.Draw(t, "target")
			default:
				f[p] = content.Draw(t, "content")
			}
		}
		return f
	})
}
