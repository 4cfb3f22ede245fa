package lookup

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Place is one place where Hiera looked for a key.
type Place struct {
	Depth int    `json:"depth,omitempty"` // 0; of an interpolation inside a value, one more
	Key   string `json:"key"`
	Level string `json:"level"`          // name of the level; "" for a merge; the text of an interpolation
	File  string `json:"file,omitempty"` // in the release, or "live data" or "host list"
	// Result is found, no_key, no_file, merged, interpolation, or Puppet's own code.
	Result string          `json:"result"`
	Value  json.RawMessage `json:"value,omitempty"`
}

// branch is a part of the explanation that Puppet writes (Puppet::Pops::Lookup::Explainer#to_hash).
type branch struct {
	Branches []branch        `json:"branches"`
	Type     string          `json:"type"` // root, data_provider, path, uri, merge, interpolate, …
	Name     string          `json:"name"`
	Path     string          `json:"path"`
	URI      string          `json:"uri"`
	Key      string          `json:"key"`
	Event    string          `json:"event"`
	Merge    json.RawMessage `json:"merge"`
	Value    json.RawMessage `json:"value"`
	Text     string          `json:"expression"` // of an interpolation
}

func (q asked) explain(a *Answer) error {
	out, err := q.run("--explain", "--render-as", "json")
	if err != nil {
		return err
	}
	var root branch
	if err := json.Unmarshal(out, &root); err != nil {
		return fmt.Errorf("cannot explain %s for %s: puppet printed no JSON: %w", q.query.Key, q.query.Node, err)
	}
	e := explanation{asked: q, sensitive: a.Sensitive}
	for _, b := range root.Branches {
		if b.Key != "lookup_options" || q.query.Key == b.Key { // Hiera reads it before every key
			e.walk(b, Place{Key: q.query.Key})
		}
	}
	a.Places = e.places
	return nil
}

type explanation struct {
	asked
	sensitive bool
	places    []Place
}

var results = map[string]string{"found": "found", "not_found": "no_key", "location_not_found": "no_file", "result": "merged"}

// walk adds the places of a branch. at has the level, key and depth around it.
func (e *explanation) walk(b branch, at Place) {
	if b.Key != "" {
		at.Key = b.Key
	}
	switch b.Type {
	case "data_provider":
		at.Level = strings.TrimSuffix(strings.TrimPrefix(b.Name, `Hierarchy entry "`), `"`)
	case "path":
		at.File = e.file(b.Path)
	case "uri":
		at.File = b.URI
	case "interpolate":
		e.add(b, Place{Depth: at.Depth, Key: at.Key, Level: b.Text, File: at.File, Result: "interpolation"})
		at.Depth++
		at.Level, at.File = "", ""
	}
	for _, inner := range b.Branches {
		e.walk(inner, at)
	}
	switch {
	case b.Type == "merge" && b.Event == "result":
		at.Level = "" // the levels below it have their own places
		at.File = ""
		e.add(b, at)
	case b.Event != "" && b.Type != "interpolate" && !(len(b.Branches) > 0 && b.Type == "data_provider"):
		e.add(b, at)
	}
}

func (e *explanation) add(b branch, p Place) {
	if p.Result == "" {
		p.Result = b.Event
		if known := results[b.Event]; known != "" {
			p.Result = known
		}
	}
	if p.Value = b.Value; e.sensitive && len(p.Value) > 0 {
		p.Value, _ = json.Marshal(redacted) // a text
	}
	e.places = append(e.places, p)
}

// file returns the name of a file of Hiera for the user.
func (e *explanation) file(path string) string {
	if rel, err := filepath.Rel(e.job.Data, path); e.job.Data != "" && err == nil && filepath.IsLocal(rel) {
		return "live data"
	}
	if path == e.job.Hosts {
		return "host list"
	}
	for _, root := range []string{e.releaseDir(), e.job.Tree} {
		if rel, err := filepath.Rel(root, path); err == nil && filepath.IsLocal(rel) {
			return rel
		}
	}
	return path
}

// Source returns the first place that has the key, and whether there is one.
func (a Answer) Source() (Place, bool) {
	i := slices.IndexFunc(a.Places, func(p Place) bool { return p.Depth == 0 && p.Result == "found" })
	if i < 0 {
		return Place{}, false
	}
	return a.Places[i], true
}
