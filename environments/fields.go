package environments

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"pulley/environments/settings"
	"pulley/internal/model"
)

// field is one key of a mapping in the file, and its Go value.
type field struct {
	index                     int // in the struct
	key                       string
	value                     any // pointer to the value
	help, form, like, drivers string
	long                      bool
}

// fieldsOf returns the keys of a struct in its order; v points to it.
func fieldsOf(v any) []field {
	s := reflect.ValueOf(v).Elem()
	known, ok := tagged.Load(s.Type())
	if !ok {
		known, _ = tagged.LoadOrStore(s.Type(), readTags(s.Type()))
	}
	fields := slices.Clone(known.([]field))
	for i := range fields {
		fields[i].value = s.Field(fields[i].index).Addr().Interface()
	}
	return fields
}

// tagged has the fields of each struct type, without values: a plan needs them for every node, and reading tags is slow.
var tagged sync.Map

func readTags(t reflect.Type) []field {
	var fields []field
	for i := range t.NumField() {
		tag := t.Field(i).Tag
		if tag.Get("help") == "" {
			continue
		}
		key, _, _ := strings.Cut(tag.Get("json"), ",")
		fields = append(fields, field{
			index: i, key: key, help: tag.Get("help"), form: tag.Get("form"), like: tag.Get("like"),
			drivers: tag.Get("drivers"), long: tag.Get("long") != "",
		})
	}
	return fields
}

// cloudFields returns the keys of a cloud file, which environment files have, too.
func cloudFields(e *Environment) []field {
	return slices.DeleteFunc(shownFields(e), func(f field) bool {
		return f.key == "trusted" || f.key == "layers" || f.key == "nodes" || f.key == "puppet" || f.key == "hosts" || f.key == "rollout" || f.key == "applications" || f.key == "enc" || f.key == "silence"
	})
}

// shownFields returns the keys whose values Settings and Diff list.
func shownFields(e *Environment) []field {
	return slices.DeleteFunc(fieldsOf(e), func(f field) bool {
		return f.key == "stack" || f.key == "signatures" || f.key == "statement" || f.key == "roles"
	})
}

// fields returns the keys of a mapping with known keys; nil for any other value.
func (f field) fields() []field {
	switch f.value.(type) {
	case *Provider, *RolloutPolicy, *PreviewPolicy, *UnreadyPolicy, *replace, *settings.PuppetSettings, *settings.PuppetCA, *settings.PuppetProvision, *HostSettings, *Userdata:
		return fieldsOf(f.value)
	}
	return nil
}

func keysOf(fields []field) []string {
	keys := make([]string, len(fields))
	for i, f := range fields {
		keys[i] = f.key
	}
	return keys
}

// find returns the field with this key, or nil.
func find(fields []field, key string) *field {
	if i := slices.IndexFunc(fields, func(f field) bool { return f.key == key }); i >= 0 {
		return &fields[i]
	}
	return nil
}

// tidy makes empty lists and maps nil, as parsing a file does: equal environments are equal values.
func tidy(fields []field) {
	for _, f := range fields {
		switch v := f.value.(type) {
		case *[]string:
			if len(*v) == 0 {
				*v = nil
			}
		case *map[string]string:
			if len(*v) == 0 {
				*v = nil
			}
		case *map[string]NodeSettings:
			tidyEach(v)
		case *map[string]RoleRollout:
			tidyEach(v)
		case *map[string]settings.PuppetServer:
			tidyEach(v)
		case *map[string]int:
			if len(*v) == 0 {
				*v = nil
			}
		case *Applications:
			*v = v.tidy()
		case *Classification:
			v.tidy()
		case *[]Role:
			if len(*v) == 0 {
				*v = nil
			}
			for i := range *v {
				tidy(fieldsOf(&(*v)[i]))
			}
		default:
			tidy(f.fields())
		}
	}
}

func tidyEach[T any](all *map[string]T) {
	for name, own := range *all {
		tidy(fieldsOf(&own))
		(*all)[name] = own
	}
	if len(*all) == 0 {
		*all = nil
	}
}

// setting is one value as text, with its path in the file as in --set: "replace.batch".
type setting struct{ path, text string }

// settingsOf returns all values that are set, besides roles and cardinalities.
func settingsOf(prefix string, fields []field) []setting {
	var out []setting
	for _, f := range fields {
		path, text := prefix+f.key, ""
		switch v := f.value.(type) {
		case *string:
			text = f.shown(*v)
			if path == "provider.driver" {
				path = "provider"
			}
		case *bool:
			if *v {
				text = "true"
			}
		case *int:
			if *v != 0 && f.key != "cardinality" {
				text = strconv.Itoa(*v)
			}
		case *model.Duration:
			if *v != 0 {
				text = v.String()
			}
		case *[]string:
			text = f.shown(joined(*v))
		case *map[string]string:
			for _, key := range slices.Sorted(maps.Keys(*v)) {
				out = append(out, setting{path + "." + key, (*v)[key]})
			}
		case *map[string]int:
			for _, key := range slices.Sorted(maps.Keys(*v)) {
				out = append(out, setting{path + "." + key, strconv.Itoa((*v)[key])})
			}
		case *Classification:
			out = append(out, v.settings(path)...)
		case *map[string]NodeSettings:
			out = append(out, settingsOfEach(path, *v)...)
		case *map[string]RoleRollout:
			out = append(out, settingsOfEach(path, *v)...)
		case *map[string]settings.PuppetServer:
			out = append(out, settingsOfEach(path, *v)...)
		case *Applications:
			v.each(func(name, _, _, _ string, c Component) {
				out = append(out, settingsOf(path+"."+name+".", fieldsOf(&c))...)
			})
		default:
			out = append(out, settingsOf(path+".", f.fields())...)
		}
		if text != "" {
			out = append(out, setting{path, text})
		}
	}
	return out
}

func settingsOfEach[T any](path string, all map[string]T) (out []setting) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		own := all[name]
		out = append(out, settingsOf(path+"."+name+".", fieldsOf(&own))...)
	}
	return out
}

// shown returns the size and the checksum of a long text, and any other text as it is.
func (f field) shown(text string) string {
	if !f.long || text == "" {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return fmt.Sprintf("%d bytes (sha256 %x…)", len(text), sum[:4])
}

// joined joins texts such that different lists have different results.
func joined(texts []string) string {
	if slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, ",") }) {
		return fmt.Sprintf("%q", texts)
	}
	return strings.Join(texts, ", ")
}

// Settings returns the values of a role besides its name, cardinality and flavor: "image debian", "after db".
func (r Role) Settings() []string {
	return lines(slices.DeleteFunc(settingsOf("", fieldsOf(&r)), func(s setting) bool { return s.path == "flavor" }))
}

// Settings returns the values of the environment besides its roles: "provider openstack", "flavors.small m1.small".
func (e *Environment) Settings() []string { return lines(settingsOf("", shownFields(e))) }

func lines(settings []setting) []string {
	var out []string
	for _, s := range settings {
		out = append(out, s.path+" "+s.text)
	}
	return out
}
