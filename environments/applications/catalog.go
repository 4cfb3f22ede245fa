package applications

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The limits of a catalog.
const (
	MaxCatalog    = 16 << 20 // bytes
	maxComponents = 100_000
	maxName       = 255 // characters of a name
)

// ReadCatalog reads an environment catalog of Puppet 4 to 6, as its endpoint /puppet/v3/environment/NAME returned it:
//
//	{"environment": "production", "applications": {"Lamp[app1]": {"Lamp::Mysql[app1]":
//	  {"produces": ["Sql[app1]"], "consumes": [], "node": "dev1.devco.net"}}}}
//
// Its error names the line and the column.
func ReadCatalog(data []byte) (environment string, all []Component, err error) {
	r := catalog{data: data, dec: json.NewDecoder(bytes.NewReader(data))}
	r.dec.UseNumber()
	if err = r.read(&environment, &all); err != nil {
		return "", nil, err
	}
	return environment, all, nil
}

// catalog reads a catalog token by token: a decoder of values accepts keys twice.
type catalog struct {
	data []byte
	dec  *json.Decoder
}

func (r *catalog) read(environment *string, all *[]Component) error {
	switch {
	case len(r.data) > MaxCatalog:
		return fmt.Errorf("it has %d bytes, at most %d are read", len(r.data), MaxCatalog)
	case !utf8.Valid(r.data):
		return errors.New("it is not UTF-8")
	}
	seen, err := r.object("a site catalog", []string{"environment", "applications"}, func(key string) (err error) {
		if key == "environment" {
			*environment, err = r.name("environment")
			return err
		}
		_, err = r.object("applications", nil, func(application string) error { return r.application(application, all) })
		return err
	})
	if err != nil {
		return err
	}
	if !seen["environment"] || !seen["applications"] {
		return errors.New("it needs the keys environment and applications")
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		return r.wrong("something follows the catalog")
	}
	return nil
}

func (r *catalog) application(ref string, all *[]Component) error {
	application, instance, ok := strings.Cut(ref, "[")
	instance, closed := strings.CutSuffix(instance, "]")
	if !ok || !closed || application == "" || instance == "" {
		return r.wrong("%q is no application: it is not like Lamp[app1]", ref)
	}
	_, err := r.object(ref, nil, func(name string) error {
		if len(*all) == maxComponents {
			return r.wrong("there are more than %d components", maxComponents)
		}
		c := Component{Name: Name{application, instance, name}}
		seen, err := r.object(name, []string{"produces", "consumes", "node"}, func(key string) (err error) {
			switch key {
			case "produces":
				c.Produces, err = r.names(key)
			case "consumes":
				c.Consumes, err = r.names(key)
			case "node":
				c.Nodes = []string{""}
				c.Nodes[0], err = r.name(key)
			}
			return err
		})
		if err == nil && !seen["node"] {
			err = r.wrong("%s has no node", c.Name)
		}
		*all = append(*all, c)
		return err
	})
	return err
}

// object reads an object, and calls each for the value of each key. Without known keys, any name is one.
func (r *catalog) object(what string, known []string, each func(key string) error) (seen map[string]bool, err error) {
	token, err := r.token()
	if err != nil {
		return nil, err
	}
	if token != json.Delim('{') {
		return nil, r.wrong("%s is no object", what)
	}
	seen = map[string]bool{}
	for r.dec.More() {
		token, err := r.token()
		if err != nil {
			return nil, err
		}
		key, _ := token.(string) // the decoder accepts no other key
		switch {
		case seen[key]:
			return nil, r.wrong("%s has %q twice", what, key)
		case known == nil:
			err = r.check(key)
		case !slices.Contains(known, key):
			return nil, r.wrong("%s has the key %q; its keys are %s", what, key, strings.Join(known, ", "))
		}
		if err != nil {
			return nil, err
		}
		seen[key] = true
		if err := each(key); err != nil {
			return nil, err
		}
	}
	_, err = r.token()
	return seen, err
}

// names reads a list of different names.
func (r *catalog) names(what string) (all []string, err error) {
	token, err := r.token()
	if err != nil {
		return nil, err
	}
	if token != json.Delim('[') {
		return nil, r.wrong("%s is no list", what)
	}
	for r.dec.More() {
		name, err := r.name(what)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	_, err = r.token()
	return all, err
}

func (r *catalog) name(what string) (string, error) {
	token, err := r.token()
	if err != nil {
		return "", err
	}
	name, ok := token.(string)
	if !ok {
		return "", r.wrong("%s is no text", what)
	}
	return name, r.check(name)
}

// check refuses names that would damage a terminal or a message.
func (r *catalog) check(name string) error {
	switch {
	case strings.TrimSpace(name) != name || name == "":
		return r.wrong("a name is empty, or begins or ends with a space")
	case utf8.RuneCountInString(name) > maxName:
		return r.wrong("a name has more than %d characters", maxName)
	case strings.ContainsFunc(name, func(c rune) bool { return !unicode.IsGraphic(c) || c == utf8.RuneError }):
		return r.wrong("the name %q has characters that cannot be printed", name)
	}
	return nil
}

func (r *catalog) token() (json.Token, error) {
	token, err := r.dec.Token()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("it ends too early")
	}
	if err != nil {
		return nil, r.wrong("%w", err)
	}
	return token, nil
}

// wrong returns an error with the place of the token that was read last.
func (r *catalog) wrong(format string, args ...any) error {
	before := r.data[:min(int(r.dec.InputOffset()), len(r.data))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	return fmt.Errorf("line %d, column %d: %w", line, max(column, 1), fmt.Errorf(format, args...))
}
