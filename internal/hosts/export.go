package hosts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"pulley/internal/clip"
	"pulley/internal/facts"
	"pulley/internal/model"
)

// The limits of the facts that a node shows to others. They are checked where they are published and again where they are read.
const (
	maxExports = 32      // facts of one node
	maxExport  = 8 << 10 // bytes of all of them, as JSON
	maxPath    = 200     // of the name of a fact
	maxText    = 2048    // of one text or name in a fact
	maxDepth   = 8       // of lists and hashes in each other
)

// ExportOf returns those facts that environments/<environment>.yaml of the release shows to other nodes, and its hosts.alive. packed
// are the facts in published form; nil: there are none. left are the facts that cannot be shown, with the reason; a fact that the machine lacks is none of them.
func ExportOf(tree, environment string, packed []byte) (e model.Export, left []string, err error) {
	name, data, err := EnvironmentFile(tree, environment)
	if err != nil || !exporting().Match(data) {
		return e, nil, err
	}
	f, err := decode(data)
	if err == nil {
		err = f.Hosts.check()
	}
	if err == nil {
		e.Alive, err = f.Hosts.alive()
	}
	if err != nil {
		return model.Export{}, nil, fmt.Errorf("cannot read what nodes export: %s of the release: %w", name, err)
	}
	e.Facts = map[string]json.RawMessage{}
	if packed == nil {
		return e, nil, nil
	}
	published, err := facts.Decode(packed)
	if err != nil {
		return e, nil, err
	}
	size := 0
	for _, path := range f.Hosts.exported() {
		raw := published.Find(path)
		if raw == nil {
			continue
		}
		value, err := plain(raw)
		if size += len(path) + len(value); err == nil && size > maxExport {
			err = fmt.Errorf("with it, the exported facts have more than %d bytes", maxExport)
		}
		if err != nil {
			left = append(left, path+": "+err.Error())
			size -= len(path) + len(value)
			continue
		}
		e.Facts[path] = value
	}
	return e, left, nil
}

// usable returns those exported facts of a node that may reach Hiera.
func usable(e model.Export) map[string]json.RawMessage {
	if len(e.Facts) == 0 || len(e.Facts) > maxExports {
		return nil
	}
	kept, size := make(map[string]json.RawMessage, len(e.Facts)), 0
	for _, path := range slices.Sorted(maps.Keys(e.Facts)) {
		value, err := plain(e.Facts[path])
		if size += len(path) + len(value); err == nil && size <= maxExport && len(path) <= maxPath && isPlain(path) {
			kept[path] = value
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return kept
}

// plain returns a fact as canonical JSON, or an error if it is no plain value: numbers, truth values and texts of plain
// characters, also in lists and hashes. Hiera interpolates data, and Puppet writes it into files that root reads.
func plain(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) > maxExport {
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(raw), maxExport)
	}
	if n := len(raw) - 1; n > 0 && n <= maxText && raw[0] == '"' && raw[n] == '"' && isPlain(string(raw[1:n])) {
		return raw, nil // most exports are one text, such as a key: decoding them takes longer than all else
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil || d.More() {
		return nil, fmt.Errorf("it is no JSON value")
	}
	if err := check(value, maxDepth); err != nil {
		return nil, err
	}
	return json.Marshal(value)
}

func check(value any, depth int) error {
	if depth == 0 {
		return fmt.Errorf("its lists and hashes are more than %d deep", maxDepth)
	}
	switch v := value.(type) {
	case string:
		return checkText(v)
	case json.Number:
		if f, err := strconv.ParseFloat(v.String(), 64); err != nil || math.IsInf(f, 0) || len(v) > 32 {
			return fmt.Errorf("the number %s is too large", clip.Line(v.String(), 32))
		}
	case []any:
		for _, one := range v {
			if err := check(one, depth-1); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if err := checkText(name); err != nil {
				return err
			}
			if err := check(v[name], depth-1); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkText(s string) error {
	if len(s) > maxText {
		return fmt.Errorf("a text has %d bytes, more than %d", len(s), maxText)
	}
	if !isPlain(s) {
		return fmt.Errorf("a text has other characters than letters, digits, blanks and %s", plainSigns)
	}
	return nil
}

// plainSigns are the signs of exported texts. None of them has a meaning for Hiera, a shell between quotes, or most files.
const plainSigns = "._:/@+=,~()[]-"

func isPlain(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != ' ' && !isDigit(c) && (c|0x20 < 'a' || c|0x20 > 'z') && !strings.ContainsRune(plainSigns, rune(c)) {
			return false
		}
	}
	return true
}
