package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A path that an operator excluded, such as a vault's key or a build folder, must not be in a release. A path that an
// exception includes must be there, because nodes need it.
func TestIgnoreFileExcludesMatchingPaths(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		ignoreFile:  "\xef\xbb\xbf# what is for us\n\n*.md\n  /notes  \nspec/**\n!spec/**/keep.pp\nvendor\n!vendor/one/data.yaml\n**/*.tmp\n!README.md\nempty\n!empty/none\n",
		"README.md": "x", "CHANGES.md": "x", "notes": "x", "modules/notes": "x", "modules/a.tmp": "x", "a.tmp": "x",
		"spec/a.pp": "x", "spec/deep/er/keep.pp": "x", "spec/deep/other.pp": "x", "spec/dead/x": "x",
		"vendor/one/data.yaml": "x", "vendor/one/more.yaml": "x", "vendor/two/x": "x",
		"empty/some": "x", "kept/": "", "manifests/site.pp": "x", "manifests/site.pp~": "x", "manifests/.site.pp.swp": "x",
		".DS_Store": "x", "modules/m/.latest_commit": "x", "modules/m/.git": "gitdir: elsewhere", ".g10k-deploy.json": "x", ".r10k-deploy.json": "x",
	})
	f := open(t, dir, Options{})
	same(t, "published", published(t, f), "README.md", "kept/", "manifests/", "manifests/site.pp", "modules/", "modules/m/", "modules/notes",
		"spec/", "spec/deep/", "spec/deep/er/", "spec/deep/er/keep.pp", "vendor/", "vendor/one/", "vendor/one/data.yaml")
	left, err := f.LeftOut()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, l := range left {
		lines = append(lines, l.Path+" "+l.Why)
	}
	same(t, "left out", lines,
		".DS_Store left by an editor or a desktop", ".g10k-deploy.json left by g10k or r10k", ".pulleyignore says what is left out",
		".r10k-deploy.json left by g10k or r10k", "CHANGES.md .pulleyignore:3: *.md", "a.tmp .pulleyignore:9: **/*.tmp", "empty/ .pulleyignore:11: empty",
		"manifests/.site.pp.swp left by an editor or a desktop", "manifests/site.pp~ left by an editor or a desktop",
		"modules/a.tmp .pulleyignore:9: **/*.tmp", "modules/m/.git Git's own files", "modules/m/.latest_commit left by g10k or r10k",
		"notes .pulleyignore:4: notes", "spec/a.pp .pulleyignore:5: spec/**", "spec/dead/ .pulleyignore:5: spec/**", "spec/deep/other.pp .pulleyignore:5: spec/**",
		"vendor/one/more.yaml .pulleyignore:7: vendor", "vendor/two/ .pulleyignore:7: vendor")
}

// Ignoring an invalid pattern would publish the files that it should exclude.
func TestBadPatternIsAnErrorWithItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"a\n[b\n":                             "line 2: \"[b\" is not a pattern",
		"!\n":                                 "line 1: \"!\" is not a pattern",
		"# x\n\n  ! \n":                       "line 3: \"!\" is not a pattern",
		"![\n":                                "line 1: \"![\" is not a pattern",
		"a\n# \xff\n":                         "line 2: \"# \\xff\" is not a pattern: it is not UTF-8",
		"a[z-a]\n":                            "line 1: \"a[z-a]\" is not a pattern",
		strings.Repeat("x", maxIgnoreBytes+1): "it is larger than",
	} {
		dir := t.TempDir()
		write(t, dir, map[string]string{ignoreFile: text})
		refused(t, dir, Options{}, "cannot read .pulleyignore: ", want)
	}
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(t.TempDir(), "elsewhere"), filepath.Join(dir, ignoreFile)); err != nil {
		t.Fatal(err)
	}
	refused(t, dir, Options{}, "cannot read .pulleyignore: ")
}

// For any patterns, publish must finish. An exception must include exactly the paths that it matches, even if a parent
// folder could have been skipped.
func FuzzIgnore(f *testing.F) {
	for _, text := range []string{"*.md\n!README.md", "a\n!a/b", "**\n!**/c", "a/*\n!a/b/c", "[a-c]\n!\\a", "/a/\n!a/b/", "?\n!a/?/c*", "..", ".", "\\", "a\\"} {
		f.Add(text)
	}
	root := f.TempDir()
	var names []string
	for _, a := range []string{"a", "b", "c"} {
		for _, b := range []string{"a", "b.md", "c"} {
			dir := filepath.Join(root, a, b)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				f.Fatal(err)
			}
			for _, c := range []string{"c", "README.md"} {
				if err := os.WriteFile(filepath.Join(dir, c), nil, 0o600); err != nil {
					f.Fatal(err)
				}
				names = append(names, a+"/"+b+"/"+c)
			}
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		lines, patterns, err := parseIgnore(text)
		if err != nil {
			return
		}
		folder := &Folder{Root: root, rules: rules{root: root, lines: lines, patterns: patterns}}
		for _, name := range names {
			if walked, alone := folder.leftOut(name, false), folder.rules.matches(name); walked != alone {
				t.Errorf("%s with %q: left out is %t on the way down to it, and %t by itself", name, text, walked, alone)
			}
		}
	})
}
