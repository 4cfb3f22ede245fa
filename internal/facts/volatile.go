package facts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Volatile are the facts that nodes do not publish, because they change without a change of the machine. A `*` is any
// name, or any index, at its place. Facts of Pulley itself are in the node's status.
var Volatile = []string{
	"_timestamp", "clientnoop", "pulley", "trusted",
	"system_uptime", "uptime", "uptime_seconds", "uptime_hours", "uptime_days", "load_averages",
	"memory.*.available", "memory.*.available_bytes", "memory.*.used", "memory.*.used_bytes", "memory.*.capacity",
	"memoryfree", "memoryfree_mb", "swapfree", "swapfree_mb",
	"mountpoints.*.available", "mountpoints.*.available_bytes", "mountpoints.*.used", "mountpoints.*.used_bytes", "mountpoints.*.capacity",
	"processors.speed", // of this moment
	"zfs_featurenumbers", "last_run",
}

// core are facts of Facter itself that selections and previews use most. They are cut last.
var core = set("os", "networking", "kernel", "kernelrelease", "kernelversion", "kernelmajversion", "virtual", "is_virtual", "processors", "memory", "dmi",
	"timezone", "identity", "ruby", "facterversion", "puppetversion", "aio_agent_version", "clientcert", "clientversion", "fips_enabled", "hypervisors", "cloud",
	"hostname", "fqdn", "domain", "osfamily", "operatingsystem", "operatingsystemrelease", "operatingsystemmajrelease", "architecture", "hardwaremodel")

func set(names ...string) map[string]bool {
	all := make(map[string]bool, len(names))
	for _, n := range names {
		all[n] = true
	}
	return all
}

// CheckPattern refuses a text that names no fact.
func CheckPattern(pattern string) error {
	for _, part := range strings.Split(pattern, ".") {
		if part == "" {
			return fmt.Errorf("%q names no fact: give names with dots, and * for any name, as in mountpoints.*.size", pattern)
		}
	}
	return nil
}

// patterns are the paths of volatile facts, by the name of the fact. A path of no parts is the complete fact.
type patterns map[string][][]string

func newPatterns(all []string) patterns {
	p := patterns{}
	for _, pattern := range all {
		parts := strings.Split(pattern, ".")
		p[parts[0]] = append(p[parts[0]], parts[1:])
	}
	return p
}

// without returns a fact in canonical form without its volatile parts; nil if all of it is volatile.
func (p patterns) without(name string, raw json.RawMessage) (json.RawMessage, error) {
	paths := append(append([][]string{}, p[name]...), p["*"]...)
	if len(paths) == 0 {
		return canonical(raw)
	}
	value, err := decode(raw)
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if len(path) == 0 {
			return nil, nil
		}
		remove(value, path)
	}
	return encode(value)
}

// remove deletes what a path names, in place.
func remove(value any, path []string) {
	object, ok := value.(map[string]any)
	if list, is := value.([]any); is && len(path) > 1 {
		for _, v := range list {
			remove(v, path[1:])
		}
	}
	if !ok {
		return
	}
	for key, v := range object {
		switch {
		case path[0] != "*" && path[0] != key:
		case len(path) == 1:
			delete(object, key)
		default:
			remove(v, path[1:])
		}
	}
}

// canonical returns JSON with sorted keys, without blanks. Numbers keep their digits.
func canonical(raw json.RawMessage) (json.RawMessage, error) {
	value, err := decode(raw)
	if err != nil {
		return nil, err
	}
	return encode(value)
}

func decode(raw json.RawMessage) (any, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one value")
	}
	return value, nil
}

func encode(value any) (json.RawMessage, error) { // in one line
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
