package hieradata

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func generationOf(t *testing.T, layers map[Layer]string) (Generation, map[string][]byte) {
	t.Helper()
	changes, contents := map[Layer][]byte{}, map[string][]byte{}
	for layer, text := range layers {
		changes[layer] = []byte(text)
		contents[Digest([]byte(text))] = []byte(text)
	}
	return mustNext(t, Generation{}, changes), contents
}

func levelsOf(role, node string) Levels { return Hierarchy{}.Levels(role, node, "") }

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// Without it, Puppet would read data of another node, of an incomplete generation, or none.
func TestMaterialise(t *testing.T) {
	root := filepath.Join(t.TempDir(), "data")
	g, contents := generationOf(t, map[Layer]string{
		Common: "a: 1\n", ForRole("compute"): "a: 2\n", ForRole("controller"): "a: 3\n", ForNode("compute1"): "a: 4\n"})
	dir, err := Materialise(root, g, "compute1", levelsOf("compute", "compute1"), contents)
	if err != nil {
		t.Fatal(err)
	}
	if dir != filepath.Join(root, NodeDigest(g, levelsOf("compute", "compute1"))) {
		t.Errorf("the folder is %s", dir)
	}
	for name, want := range map[string]string{"node.yaml": "a: 4\n", "role.yaml": "a: 2\n", "environment.yaml": "{}\n", "common.yaml": "a: 1\n"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(data) != want {
			t.Errorf("%s is %q, %v", name, data, err)
		}
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", name, info.Mode(), err)
		}
	}
	if got := names(t, dir); !slices.Equal(got, []string{"common.yaml", "environment.yaml", "node.yaml", "role.yaml"}) {
		t.Errorf("files are %v", got)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder has mode %v, %v", info.Mode(), err)
	}

	again, err := Materialise(root, g, "compute1", levelsOf("compute", "compute1"), contents)
	if err != nil || again != dir {
		t.Errorf("the second time: %s, %v", again, err)
	}
	after, err := os.Stat(dir)
	if err != nil || !os.SameFile(info, after) {
		t.Errorf("a complete folder was written again: %v", err)
	}
	if left := names(t, root); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// Without it, Puppet would keep reading damaged or hand-edited data.
func TestMaterialiseRepairsDamage(t *testing.T) {
	root := t.TempDir()
	g, contents := generationOf(t, map[Layer]string{Common: "a: 1\n"})
	dir, err := Materialise(root, g, "n1", levelsOf("", "n1"), contents)
	if err != nil {
		t.Fatal(err)
	}
	damages := map[string]func() error{
		"missing": func() error { return os.Remove(filepath.Join(dir, "common.yaml")) },
		"edited":  func() error { return os.WriteFile(filepath.Join(dir, "common.yaml"), []byte("a: 2\n"), 0o600) },
		"added":   func() error { return os.WriteFile(filepath.Join(dir, "extra.yaml"), nil, 0o600) },
		"a link": func() error {
			return os.Rename(filepath.Join(dir, "common.yaml"), filepath.Join(root, "away"))
		},
	}
	for name, damage := range damages {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if name == "a link" {
			if err := os.Symlink(filepath.Join(root, "away"), filepath.Join(dir, "common.yaml")); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Materialise(root, g, "n1", levelsOf("", "n1"), contents); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		data, err := os.ReadFile(filepath.Join(dir, "common.yaml"))
		info, statErr := os.Lstat(filepath.Join(dir, "common.yaml"))
		if err != nil || statErr != nil || string(data) != "a: 1\n" || !info.Mode().IsRegular() || len(names(t, dir)) != 4 {
			t.Errorf("%s: not repaired: %q, %v", name, data, names(t, dir))
		}
	}
}

// Without it, unverified bytes would configure machines.
func TestMaterialiseChecksHashes(t *testing.T) {
	root := t.TempDir()
	g, contents := generationOf(t, map[Layer]string{Common: "a: 1\n"})
	digest := g.Layers[Common]
	for name, bad := range map[string]map[string][]byte{
		"is missing":                {},
		"does not match its digest": {digest: []byte("a: 2\n")},
	} {
		if _, err := Materialise(root, g, "n1", levelsOf("", "n1"), bad); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if left := names(t, root); len(left) != 0 {
		t.Errorf("written nevertheless: %v", left)
	}
	blocked := filepath.Join(root, "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Materialise(blocked, g, "n1", levelsOf("", "n1"), contents); err == nil || !strings.Contains(err.Error(), "cannot write data of n1") {
		t.Errorf("below a file: %v", err)
	}
}

// Without it, old data would fill the disk, or data in use would be deleted.
func TestCollect(t *testing.T) {
	root := t.TempDir()
	var all []string
	for _, text := range []string{"a: 1\n", "a: 2\n", "a: 3\n"} {
		g, contents := generationOf(t, map[Layer]string{Common: text})
		dir, err := Materialise(root, g, "n1", levelsOf("", "n1"), contents)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, filepath.Base(dir))
	}
	for _, other := range []string{stagingPrefix + "1", "notes"} {
		if err := os.Mkdir(filepath.Join(root, other), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := Collect(root, all[1:2])
	if err != nil || len(removed) != 3 {
		t.Errorf("removed %v, %v", removed, err)
	}
	left := map[string]bool{}
	for _, n := range names(t, root) {
		left[n] = true
	}
	if want := map[string]bool{all[1]: true, "notes": true}; !maps.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
	if removed, err := Collect(filepath.Join(root, "nowhere"), nil); err != nil || removed != nil {
		t.Errorf("of no folder: %v, %v", removed, err)
	}
}
