package hieradata

import (
	"io/fs"
	"strings"
	"testing"
)

// Without it, `data set` would report the wrong merge strategy for a key.
func TestMergeOf(t *testing.T) {
	var options []Value // highest first
	for _, text := range []string{`{c: {merge: hash}}`, `{b: {merge: unique}, "^net::.*": {merge: {strategy: deep}}, "net::a": {merge: first}, c: {merge: unique}}`} {
		v, err := parseValue(text)
		if err != nil {
			t.Fatal(err)
		}
		options = append(options, v)
	}
	for key, want := range map[string]string{"a": "", "b": "unique", "c": "hash", "net::mtu": "deep", "net::a": "first"} {
		if got := mergeOf(key, options); got != want {
			t.Errorf("%s is merged by %q, want %q", key, got, want)
		}
	}
}

// Without it, `data set` would not report that it hides a value of the release.
func TestShadows(t *testing.T) {
	files := map[string][]byte{
		"hiera.yaml": []byte(`version: 5
defaults: {datadir: hieradata}
hierarchy:
  - {name: node, path: "nodes/%{trusted.certname}.yaml"}
  - {name: groups, globs: ["groups/*.yaml", "{a,b}/**/x[12].yaml"]}
  - {name: sites, mapped_paths: [sites, site, "sites/%{site}.yaml"]}
  - {name: elsewhere, datadir: other, paths: ["%{facts.os.family}.json", "fixed.yaml"]}
  - {name: common, path: common.yaml}
`),
		"hieradata/nodes/n1.yaml":      []byte("---\na: 1\nb: &x [1]\nc: *x\n"),
		"hieradata/nodes/deep/n.yaml":  []byte("x: 1\n"),
		"hieradata/groups/g.yaml":      []byte("# comment\n\n\na: 1\n"),
		"hieradata/groups/g/h.yaml":    []byte("a: not in the hierarchy\n"),
		"hieradata/b/c/x1.yaml":        []byte("a: 1\n"),
		"hieradata/b/c/x3.yaml":        []byte("a: not in the hierarchy\n"),
		"hieradata/sites/s.yaml":       []byte("a: 1\n"),
		"other/Debian.json":            []byte("{\n \"a\": 1\n}\n"),
		"other/unused.yaml":            []byte("a: not in the hierarchy\n"),
		"hieradata/common.yaml":        []byte("'a': 1\nlookup_options:\n  a: {merge: {strategy: deep}}\n  '^ntp::': {merge: unique}\n"),
		"hieradata/unused.yaml":        []byte("a: not in the hierarchy\n"),
		"modules/ntp/hiera.yaml":       []byte("version: 5\n"),
		"modules/ntp/data/common.yaml": []byte("ntp::servers: [x]\n"),
		"modules/web/hiera.yaml":       []byte("version: 5\n"),
		"modules/web/data/common.yaml": []byte("ntp::servers: [of no concern]\n"),
	}
	for _, c := range []struct{ key, places, merge string }{
		{"a", "hieradata/nodes/n1.yaml:2 hieradata/groups/g.yaml:4 hieradata/b/c/x1.yaml:1 hieradata/sites/s.yaml:1 other/Debian.json:2 hieradata/common.yaml:1", "deep"},
		{"c", "hieradata/nodes/n1.yaml:4", "first"},
		{"x", "hieradata/nodes/deep/n.yaml:1", "first"},
		{"ntp::servers", "modules/ntp/data/common.yaml:1", "unique"},
		{"none", "", "first"},
	} {
		places, merge, err := Shadows(files, c.key)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range places {
			got = append(got, p.String())
		}
		if strings.Join(got, " ") != c.places || merge != c.merge {
			t.Errorf("%s: got %v, %s", c.key, got, merge)
		}
	}
}

// Without it, a release without hiera.yaml, or with a broken file, would fail `data set` or hide a shadow silently.
func TestShadowsOfOddReleases(t *testing.T) {
	places, _, err := Shadows(map[string][]byte{"data/common.yaml": []byte("a: 1\n")}, "a")
	if err != nil || len(places) != 1 {
		t.Errorf("without hiera.yaml: %v, %v", places, err)
	}
	for name, text := range map[string]string{
		"version 3":   ":backends: [yaml]\n",
		"two levels":  "version: 5\nhierarchy: [{name: a, path: x}, {name: a, path: y}]\n",
		"has no name": "version: 5\nhierarchy: [{path: x}]\n",
		"cannot":      "version: [",
		"must be":     "version: 5\nhierarchy: [{name: a, mapped_paths: [x]}]\n",
	} {
		if _, _, err := Shadows(map[string][]byte{"hiera.yaml": []byte(text)}, "a"); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	places, merge, err := Shadows(map[string][]byte{
		"hiera.yaml":       []byte("version: 5\nhierarchy: [{name: a, paths: [x.yaml, y.yaml, z.yaml]}]\n"),
		"data/x.yaml":      []byte("a: [\n"),
		"data/y.yaml":      []byte("a: 1\n"),
		"data/z.yaml":      []byte("- a list\n"),
		"data/ignored.txt": []byte("["),
	}, "a")
	if len(places) != 1 || merge != "first" || err == nil || !strings.Contains(err.Error(), "data/x.yaml") {
		t.Errorf("got %v, %s, %v", places, merge, err)
	}
}

func TestWantFile(t *testing.T) {
	for name, want := range map[string]bool{
		"hiera.yaml": true, "hieradata/nodes/a.yml": true, "data/x.eyaml": true, "data/x.json": true,
		"manifests/site.pp": false, ".git/x.yaml": false, "modules/m/.fixtures.yml": false, "README.md": false,
	} {
		if got := WantFile(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Without it, `pulley init` could write data that Pulley refuses.
func TestSampleParses(t *testing.T) {
	count := 0
	err := fs.WalkDir(Sample(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		count++
		data, err := fs.ReadFile(Sample(), name)
		if err != nil {
			return err
		}
		if _, err := parseLayer(data); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return nil
	})
	if err != nil || count < 4 {
		t.Errorf("%d files, %v", count, err)
	}
}

// validate must judge exactly the files that Hiera reads.
func TestDataFiles(t *testing.T) {
	for name, c := range map[string]struct {
		config, base, reads, ignores string
	}{
		"no hiera.yaml":      {"", ".", "data/common.yaml", "data/nodes/a.yaml common.yaml"},
		"version 5":          {"version: 5\nhierarchy: [{name: a, datadir: d, paths: ['nodes/%{x}.yaml', c.yaml]}]\n", ".", "d/nodes/a.yaml d/c.yaml", "d/e.yaml data/common.yaml"},
		"in a module":        {"version: 5\n", "modules/m", "modules/m/data/common.yaml", "data/common.yaml"},
		"version 4":          {"version: 4\ndatadir: d\nhierarchy: [{name: a, backend: yaml, datadir: e}]\n", ".", "d/a.yaml e/b/c.json", "data/a.yaml d/a.txt"},
		"version 3":          {":backends: [yaml]\n", ".", "", "data/common.yaml"},
		"version 3, named":   {"version: 3\n", ".", "", "data/common.yaml"},
		"an unknown version": {"version: 6\n", ".", "", "data/common.yaml"},
	} {
		var data []byte
		if c.config != "" {
			data = []byte(c.config)
		}
		reads, err := DataFiles(data, c.base)
		if (err != nil) != (name == "an unknown version") {
			t.Errorf("%s: %v", name, err)
		}
		for _, file := range strings.Fields(c.reads) {
			if reads(file) == nil {
				t.Errorf("%s: %s is not read", name, file)
			}
		}
		for _, file := range strings.Fields(c.ignores) {
			if reads(file) != nil {
				t.Errorf("%s: %s is read", name, file)
			}
		}
	}
}
