package pulley_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"gopkg.in/yaml.v3"
)

// module is the path of this module as a prefix.
const module = "pulley/"

// rules is imports.yaml.
type rules struct {
	Leaves     []string
	Packages   map[string]imports
	Restricted []restriction
	Unlinked   map[string][]string
	Clockless  struct{ Packages, Waits []string }
}

// imports are the patterns that a package may import.
type imports struct {
	any      bool
	patterns []string
}

func (i *imports) UnmarshalYAML(n *yaml.Node) error {
	if n.Value == "any" {
		i.any = true
		return nil
	}
	return n.Decode(&i.patterns)
}

type restriction struct {
	Import []string
	Only   []string
	Never  []string
	Tests  bool
	Why    string
}

// allows reports whether a package may have the imports of the rule.
func (r restriction) allows(pkg string) bool {
	if r.Never != nil {
		return !matches(pkg, r.Never)
	}
	return matches(pkg, r.Only)
}

// matches reports whether a path is one of the patterns; "x/..." is x and everything below it.
func matches(path string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		tree, isTree := strings.CutSuffix(p, "/...")
		return path == p || isTree && (path == tree || strings.HasPrefix(path, tree+"/"))
	})
}

// listed is one package of `go list`.
type listed struct {
	ImportPath, Dir, Doc, Export             string
	Imports, TestImports, XTestImports, Deps []string
	GoFiles                                  []string
}

func (p listed) path() string { return strings.TrimPrefix(p.ImportPath, module) }

// list returns the packages of the module, with the files of all build tags.
var list = sync.OnceValues(func() ([]listed, error) {
	// The cache of `go test` must see that a file changed, which it does not for files that another process reads.
	err := filepath.WalkDir(".", func(string, fs.DirEntry, error) error { return nil })
	if err != nil {
		return nil, err
	}
	return goList("list", "-tags", "e2e failpoint bench", "-json=ImportPath,Dir,Imports,TestImports,XTestImports,Deps,Doc,GoFiles", "./...")
})

// goList runs `go list -json` with these arguments.
func goList(args ...string) ([]listed, error) {
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		return nil, err
	}
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
}

func packages(t *testing.T) []listed {
	t.Helper()
	all, err := list()
	if err != nil {
		t.Fatalf("cannot list packages: %v", err)
	}
	return all
}

func readRules(t *testing.T) rules {
	t.Helper()
	b, err := os.ReadFile("imports.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var r rules
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&r); err != nil {
		t.Fatalf("cannot read imports.yaml: %v", err)
	}
	return r
}

// of returns what a package may import: its own rule, or that of the nearest tree.
func (r rules) of(pkg string) (imports, bool) {
	if i, ok := r.Packages[pkg]; ok {
		return i, true
	}
	for tree := pkg; tree != ""; {
		if i, ok := r.Packages[tree+"/..."]; ok {
			return i, true
		}
		cut := strings.LastIndexByte(tree, '/')
		tree = tree[:max(cut, 0)]
	}
	return imports{}, false
}

// ours reports whether an import is neither of the standard library nor "C".
func ours(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return strings.Contains(first, ".") || strings.HasPrefix(path, module)
}

// Layers that leak into each other can't be understood, tested or replaced one by one.
func TestPackagesImportOnlyWhatTheyMay(t *testing.T) {
	t.Parallel()
	rules, used := readRules(t), map[string]bool{}
	for _, p := range packages(t) {
		pkg := p.path()
		allowed, ok := rules.of(pkg)
		leaf := slices.Contains(rules.Leaves, pkg)
		used[pkg] = true
		if len(p.GoFiles) > 0 && !ok && !leaf {
			t.Errorf("imports.yaml has no rule for %s", pkg)
			continue
		}
		for _, full := range p.Imports {
			imported := strings.TrimPrefix(full, module)
			if ours(full) && !allowed.any && !matches(imported, rules.Leaves) && !matches(imported, allowed.patterns) {
				t.Errorf("%s imports %s: imports.yaml does not allow it", pkg, imported)
			}
		}
		for _, r := range rules.Restricted {
			all := p.Imports
			if r.Tests {
				all = slices.Concat(all, p.TestImports, p.XTestImports)
			}
			for _, full := range all {
				if imported := strings.TrimPrefix(full, module); matches(imported, r.Import) && !r.allows(pkg) {
					t.Errorf("%s imports %s: %s", pkg, imported, r.Why)
				}
			}
		}
	}
	for _, pkg := range slices.Concat(rules.Leaves, slices.Collect(maps.Keys(rules.Packages))) {
		if !used[pkg] && !strings.HasSuffix(pkg, "/...") {
			t.Errorf("imports.yaml has a rule for %s, which does not exist", pkg)
		}
	}
	var named []string
	for _, r := range rules.Restricted {
		named = append(named, slices.Concat(r.Only, r.Never)...)
	}
	for _, patterns := range rules.Unlinked {
		named = append(named, patterns...)
	}
	all := slices.Collect(maps.Keys(used))
	for _, pattern := range named {
		folder, _, _ := strings.Cut(pattern, "/")
		own := slices.Contains([]string{"agent", "cmd", "e2e", "environments", "internal"}, folder)
		if own && !slices.ContainsFunc(all, func(pkg string) bool { return matches(pkg, []string{pattern}) }) {
			t.Errorf("imports.yaml names %s in a rule, and no package is called so", pattern)
		}
	}
}

// Who changes a room has to know the rooms that it imports: rooms that import each other cannot be changed alone.
func TestRoomsImportDownward(t *testing.T) {
	t.Parallel()
	below := map[string]map[string]bool{}
	for _, p := range packages(t) {
		for _, to := range p.Imports {
			to, own := strings.CutPrefix(to, module)
			from := room(p.path())
			if below[from] == nil {
				below[from] = map[string]bool{}
			}
			if own && room(to) != from {
				below[from][room(to)] = true
			}
		}
	}
	for middle := range below { // Warshall's closure
		for from := range below {
			if below[from][middle] {
				maps.Copy(below[from], below[middle])
			}
		}
	}
	knot := slices.DeleteFunc(slices.Sorted(maps.Keys(below)), func(r string) bool { return !below[r][r] })
	if len(knot) > 0 {
		t.Errorf("the rooms %q import each other", knot)
	}
}

// room returns the folder that contains all packages of a subject.
func room(pkg string) string {
	parts := strings.Split(pkg, "/")
	if len(parts) > 1 && (parts[0] == "internal" || parts[0] == "cmd") {
		return parts[0] + "/" + parts[1]
	}
	return parts[0]
}

// A target of the Makefile that CI does not run would fail for a package that moved.
func TestMakefileNamesPackagesThatExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`\s\./([a-z][\w/]*)`).FindAllStringSubmatch(string(text), -1) {
		if s, err := os.Stat(strings.TrimSuffix(m[1], "/")); err != nil || !s.IsDir() {
			t.Errorf("the Makefile names ./%s: there is no such package", m[1])
		}
	}
}

// An agent with a server, a listener or code for tests would be larger, slower to start, and a target.
func TestProgramsLinkNothingForbidden(t *testing.T) {
	t.Parallel()
	rules := readRules(t)
	for _, p := range packages(t) {
		for _, dep := range p.Deps {
			if dep := strings.TrimPrefix(dep, module); matches(dep, rules.Unlinked[p.path()]) {
				t.Errorf("%s links %s", p.path(), dep)
			}
		}
	}
}

// A second way to start processes, or to ask over HTTP, leaves children behind, hands on the keys of serve, and takes a login page for
// an answer.
func TestProcessesAndRequestsStartInOnePlace(t *testing.T) {
	t.Parallel()
	starts := regexp.MustCompile(`\b(exec\.Command(Context)?|os\.StartProcess|syscall\.ForkExec|http\.(DefaultClient|DefaultTransport|Get|Head|Post|PostForm))\b`)
	may := []string{"internal/child/child.go", "internal/machines/drivers/local/run.go", "internal/machines/drivers/local/command.go", "internal/machines/drivers/nspawn/boot.go", "internal/notify/sender.go"}
	for _, p := range packages(t) {
		if matches(p.path(), []string{"e2e/...", "internal/testbed/...", "cmd/testdata/..."}) {
			continue
		}
		for _, name := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				code, _, _ := strings.Cut(line, "//")
				if found := starts.FindString(code); found != "" && !slices.Contains(may, filepath.ToSlash(filepath.Join(p.path(), name))) {
					t.Errorf("%s/%s: %s: use internal/child, or a client that decides about redirects and proxies", p.path(), name, found)
				}
			}
		}
	}
}

// A decision that reads the clock cannot be repeated, and does not follow the clock that serve checked.
func TestDecisionsReadNoClock(t *testing.T) {
	t.Parallel()
	rules, calls := readRules(t).Clockless, regexp.MustCompile(`\btime\.(Now|Since|Until)\b`)
	var seen []string
	for _, p := range packages(t) {
		if !matches(p.path(), rules.Packages) {
			continue
		}
		seen = append(seen, p.path())
		for _, name := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.ToSlash(filepath.Join(p.path(), name))
			if reads := calls.Match(text); reads != slices.Contains(rules.Waits, file) {
				t.Errorf("%s reads the clock: %t; it gets the time from its caller or from a field, unless it only waits and is listed", file, reads)
			}
		}
	}
	for _, pattern := range rules.Packages {
		if !slices.ContainsFunc(seen, func(p string) bool { return matches(p, []string{pattern}) }) {
			t.Errorf("imports.yaml names %s as clockless, and no package is called so", pattern)
		}
	}
}

// A package that does not name what it owns and what it must never do collects everything.
func TestEveryPackageHasComment(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		if p.Doc == "" && len(p.GoFiles) > 0 && !matches(p.path(), []string{"e2e/..."}) {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}
