package applications

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const lampCatalog = `{
  "environment": "production",
  "applications": {
    "Lamp[app2]": {
      "Lamp::Mysql[app2]": {"produces": ["Sql[app2]"], "consumes": [], "node": "dev1"},
      "Lamp::Webapp[app2-1]": {"produces": [], "consumes": ["Sql[app2]"], "node": "dev2"},
      "Lamp::Webapp[app2-2]": {"produces": [], "consumes": ["Sql[app2]"], "node": "dev3"},
      "Lamp::Webapp[app2-3]": {"produces": [], "consumes": ["Sql[app2]"], "node": "dev4"}
    },
    "Lamp[app1]": {
      "Lamp::Mysql[app1]": {"produces": ["Sql[app1]"], "consumes": [], "node": "dev1"},
      "Lamp::Webapp[app1-1]": {"produces": [], "consumes": ["Sql[app1]"], "node": "dev2"},
      "Lamp::Webapp[app1-2]": {"produces": [], "consumes": ["Sql[app1]"], "node": "dev3"},
      "Lamp::Webapp[app1-3]": {"produces": [], "consumes": ["Sql[app1]"], "node": "dev4"}
    }
  }
}`

func TestReadCatalog(t *testing.T) {
	t.Parallel()
	environment, got, err := ReadCatalog([]byte(lampCatalog))
	if err != nil || environment != "production" {
		t.Fatalf("%q, %v", environment, err)
	}
	if want := lamp(); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// Half a catalog, or another file, must not become a plan.
func TestWrongCatalogs(t *testing.T) {
	t.Parallel()
	component := func(text string) string {
		return `{"environment": "dev", "applications": {"A[a]": {"x": ` + text + `}}}`
	}
	for text, want := range map[string]string{
		"":                              "it ends too early",
		"[]":                            "line 1, column 1: a site catalog is no object",
		"{}":                            "it needs the keys environment and applications",
		`{"environment": "dev"}`:        "it needs the keys environment and applications",
		`{"environment": 1}`:            "line 1, column 17: environment is no text",
		`{"environment": "dev"`:         "it ends too early",
		"{\n \"environments\": []}":     `line 2, column 15: a site catalog has the key "environments"; its keys are environment, applications`,
		lampCatalog + "{":               "line 17, column 2: something follows the catalog",
		lampCatalog[:100]:               "it ends too early",
		"{\xff}":                        "it is not UTF-8",
		strings.Repeat("[", 100_000):    "line 1, column 1: a site catalog is no object",
		component(`{}`):                 "line 1, column 56: A[a] -> x has no node",
		component(`{"node": "n1"`)[:70]: "it ends too early",
		component(`{"node": ["n1"]}`):   "line 1, column 64: node is no text",
		component(`{"node": ""}`):       "line 1, column 65: a name is empty, or begins or ends with a space",
		component(`{"node": "n1", "node": "n2"}`):                `line 1, column 75: x has "node" twice`,
		component(`{"node": "n1", "exports": []}`):               `line 1, column 78: x has the key "exports"; its keys are produces, consumes, node`,
		component(`{"node": "n1", "produces": "a"}`):             "line 1, column 84: produces is no list",
		component(`{"node": "n1", "consumes": [1]}`):             "line 1, column 83: consumes is no text",
		component(`{"node": "\u001b[31m"}`):                      `line 1, column 75: the name "\x1b[31m" has characters that cannot be printed`,
		component(`{"node": "` + strings.Repeat("n", 256) + `"`): "line 1, column 321: a name has more than 255 characters",
		`{"environment": "dev", "applications": {"Lamp": {}}}`:   `line 1, column 46: "Lamp" is no application: it is not like Lamp[app1]`,
	} {
		if _, all, err := ReadCatalog([]byte(text)); fmt.Sprint(err) != want || all != nil {
			t.Errorf("%.90s:\n  got  %v\n  want %s", text, err, want)
		}
	}
	if _, _, err := ReadCatalog(make([]byte, MaxCatalog+1)); fmt.Sprint(err) != "it has 16777217 bytes, at most 16777216 are read" {
		t.Error(err)
	}
}

// Any file is a catalog whose components have nodes and printable names, or an error.
func FuzzReadCatalog(f *testing.F) {
	for _, text := range []string{lampCatalog, "{}", `{"environment":"a","applications":{"A[b]":{"c":{"node":"d","consumes":["e"]}}}}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, all, err := ReadCatalog(data)
		if err != nil {
			if all != nil {
				t.Fatalf("an error with components: %v", err)
			}
			return
		}
		for _, c := range all {
			if len(c.Nodes) != 1 || c.Application == "" || c.Instance == "" || c.Name.Component == "" || strings.ContainsAny(c.String(), "\n\x1b") {
				t.Errorf("%+v", c)
			}
		}
		if _, err := Make(slices.Clone(all), nil); err != nil && err.Error() == "" {
			t.Error("an error without words")
		}
	})
}
