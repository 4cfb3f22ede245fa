package hieradata

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const declared = `layers: [node, rack, role, site, environment, common]
provider: {unknown: to this program}
roles:
  web: {cardinality: 2, attributes: {site: ams, rack: r1}}
  db: {cardinality: 1}
nodes:
  web2: {attributes: {rack: r2}}
`

func layersOf(levels Levels) (all []string) {
	for _, l := range levels {
		all = append(all, l.Name+"="+string(l.Layer))
	}
	return all
}

// Without it, a node would read layers in another order than the declared one, or those of another rack.
func TestHierarchyGivesNodesTheirLevels(t *testing.T) {
	h, err := ReadHierarchy([]byte(declared))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ role, node, stack, want string }{
		{"web", "web1", "", "node=nodes/web1 rack=rack/r1 role=roles/web site=site/ams environment=environment common=common"},
		{"web", "web2", "", "node=nodes/web2 rack=rack/r2 role=roles/web site=site/ams environment=environment common=common"},
		{"web", "web2_t42", "t42", "node=nodes/web2_t42 rack=rack/r2 role=roles/web site=site/ams environment=environment common=common"},
		{"db", "db1", "", "node=nodes/db1 rack= role=roles/db site= environment=environment common=common"},
	} {
		if got := strings.Join(layersOf(h.Levels(c.role, c.node, c.stack)), " "); got != c.want {
			t.Errorf("%s has %s, want %s", c.node, got, c.want)
		}
	}
	if h.Rank(ForAttribute("rack", "r1")) >= h.Rank(ForRole("web")) || h.Rank(ForAttribute("zone", "a")) <= h.Rank(Common) {
		t.Error("the ranks are not those of the declared order")
	}
	plain, err := ReadHierarchy([]byte("roles: {web: {cardinality: 1}}\n"))
	if err != nil || !slices.Equal(plain.Order(), []string{"node", "role", "environment", "common"}) {
		t.Errorf("without the key the order is %v, %v", plain.Order(), err)
	}
}

// A name becomes a file on the node, and a value a part of a layer's name.
func TestReadHierarchyRefuses(t *testing.T) {
	base := "layers: [node, role, site, environment, common]\nroles: {web: {attributes: {site: VALUE}}}\n"
	for name, text := range map[string]string{
		"twice":           "layers: [node, role, site, site, environment, common]\n",
		"lacks common":    "layers: [node, role, environment]\n",
		"a path":          "layers: [node, role, ../site, environment, common]\n",
		"a reserved name": "layers: [node, role, roles, environment, common]\n",
		"two values":      strings.Replace(base, "site: VALUE", "site: ams, site: fra", 1),
		"a slash":         strings.Replace(base, "VALUE", "ams/1", 1),
		"interpolation":   strings.Replace(base, "VALUE", "'%{facts.site}'", 1),
		"a blank":         strings.Replace(base, "VALUE", "'a ms'", 1),
		"capitals":        strings.Replace(base, "VALUE", "AMS", 1),
		"a list":          strings.Replace(base, "VALUE", "[ams]", 1),
		"too long":        strings.Replace(base, "VALUE", strings.Repeat("a", 64), 1),
		"no mapping":      "layers: 7\n",
	} {
		if h, err := ReadHierarchy([]byte(text)); err == nil {
			t.Errorf("%s: accepted with the order %v", name, h.Order())
		}
	}
}

// Without it, a run would read its layers in the order of another release.
func TestMaterialiseWritesDeclaredLevels(t *testing.T) {
	root := t.TempDir()
	h, err := ReadHierarchy([]byte(declared))
	if err != nil {
		t.Fatal(err)
	}
	g, contents := generationOf(t, map[Layer]string{ForAttribute("site", "ams"): "a: 1\n", ForAttribute("site", "fra"): "a: 2\n", Common: "a: 3\n"})
	levels := h.Levels("web", "web1", "")
	dir, err := Materialise(root, g, "web1", levels, contents)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "site.yaml")); err != nil || string(data) != "a: 1\n" {
		t.Errorf("site.yaml is %q, %v", data, err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "rack.yaml")); err != nil || string(data) != "{}\n" {
		t.Errorf("rack.yaml is %q, %v", data, err)
	}
	read, err := ReadLevels(dir, "web", "web1")
	if err != nil || !slices.Equal(read, levels) {
		t.Errorf("the folder has the levels %v, %v", read, err)
	}

	other := mustNext(t, g, map[Layer][]byte{ForAttribute("site", "fra"): []byte("a: 4\n")})
	if NodeDigest(g, levels) != NodeDigest(other, levels) {
		t.Error("web1 sees a change of another site")
	}
	moved := strings.Replace(declared, "site: ams", "site: fra", 1)
	if h, err = ReadHierarchy([]byte(moved)); err != nil || NodeDigest(g, h.Levels("web", "web1", "")) == NodeDigest(g, levels) {
		t.Errorf("a node of another site has the same digest: %v", err)
	}
	if NodeDigest(g, levelsOf("web", "web1")) == NodeDigest(g, levels) {
		t.Error("another order has the same digest")
	}
}
