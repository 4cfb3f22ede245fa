package firstboot

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// Settings are the settings of the first boots of many machines: from `userdata:` in an environment file, from flags,
// and in the plan of a machine. A setting has the same name in all of them; a flag has a dash for each underscore.
//
// To add a setting, add a field here, and use it. Its type is string, []string or map[string]string; its tags are
//
//	yaml, json  its name
//	shape       the pattern of its values, in shapes
//	like        an example of a value, without a comma
//	help        its description, in the help of the flag and in the schema
//	merge       how Over joins two values: "append", "keys", or absent to replace
//	long        "true": a value is a text of many lines, which no message repeats
type Settings struct {
	Servers        []string          `yaml:"servers,omitempty" json:"servers,omitempty" shape:"base" like:"https://pulley.example:8443" help:"https URLs of pulley serve, where the machine joins"`
	CA             []string          `yaml:"ca,omitempty" json:"ca,omitempty" shape:"pin" help:"pins of the servers' CA, sha256:…, as pulley ca show prints them"`
	Endpoints      []string          `yaml:"endpoints,omitempty" json:"endpoints,omitempty" shape:"endpoint" like:"https://etcd1.example:2379" help:"URLs of etcd; a join returns them, too"`
	AllowedSigners string            `yaml:"allowed_signers,omitempty" json:"allowed_signers,omitempty" long:"true" help:"content of the allowed_signers file of ssh-keygen(1): who may sign releases and data"`
	Mirrors        []string          `yaml:"mirrors,omitempty" json:"mirrors,omitempty" shape:"mirror" like:"https://mirror.example" help:"https URLs of mirrors, where the machine fetches releases before it asks etcd"`
	AgentURLs      []string          `yaml:"agent_urls,omitempty" json:"agent_urls,omitempty" shape:"url" like:"https://downloads.example/pulley-agent" help:"URLs of pulley-agent, beside the servers and mirrors"`
	AgentSHA256    map[string]string `yaml:"agent_sha256,omitempty" json:"agent_sha256,omitempty" shape:"sha256" help:"checksum of pulley-agent by architecture: amd64, arm64 or any"`
	PuppetPackage  string            `yaml:"puppet_package,omitempty" json:"puppet_package,omitempty" shape:"package" like:"openvox-agent" help:"package of Puppet (default: the first that the machine's repositories have)"`
	PuppetVersion  string            `yaml:"puppet_version,omitempty" json:"puppet_version,omitempty" shape:"version" like:"8.19.0-1+debian12" help:"version of the package, as the package manager spells it (default: the newest)"`
	PackageRepo    string            `yaml:"package_repo,omitempty" json:"package_repo,omitempty" shape:"repo" like:"deb https://apt.example stable main" help:"URL of a .deb or .rpm that sets up a package repository, or an apt line 'deb …'"`
	Proxy          string            `yaml:"proxy,omitempty" json:"proxy,omitempty" shape:"url" like:"http://proxy.example:3128" help:"HTTP proxy of downloads and packages; etcd, servers and mirrors are reached directly"`
	NoProxy        []string          `yaml:"no_proxy,omitempty" json:"no_proxy,omitempty" shape:"direct" like:".example.net" help:"hosts, domains and addresses of downloads and packages that need no proxy"`
	Schedule       string            `yaml:"schedule,omitempty" json:"schedule,omitempty" shape:"schedule" like:"*/5 * * * *" help:"when cron starts the agent: five fields, or @hourly (default: */5 * * * *)"`
	Pre            []string          `yaml:"pre,omitempty" json:"pre,omitempty" shape:"script" merge:"append" long:"true" help:"scripts to run before anything is installed"`
	Post           []string          `yaml:"post,omitempty" json:"post,omitempty" shape:"script" merge:"append" long:"true" help:"scripts to run at the end"`
	Steps          map[string]string `yaml:"steps,omitempty" json:"steps,omitempty" shape:"program" merge:"keys" help:"steps to leave out (NAME=off) or to replace by a program of the machine (NAME=/PROGRAM)"`
}

// Plan is the future node of one machine and the settings of its first boot: the file /etc/pulley/first-boot.yaml. An
// unknown key is an error.
//
// In the plan on a machine, AllowedSigners and CACert are absolute paths of files with the contents. Pre, Post and the
// download of the agent are empty, because userdata has unpacked them.
type Plan struct {
	Node        string `yaml:"node,omitempty" shape:"name" like:"controller1" help:"name of the node (default: that of the token, or of the hostname)"`
	Role        string `yaml:"role,omitempty" shape:"name" like:"controller" help:"role of a machine with another name, or of the node whose number is claimed"`
	Environment string `yaml:"environment,omitempty" shape:"fleet" like:"dev or dev@t42" help:"environment of the node"`
	Hostname    string `yaml:"hostname,omitempty" shape:"hostname" like:"controller1" help:"hostname of the machine; node: the node's name (default: unchanged)"`
	Token       string `yaml:"token,omitempty" help:"token to join with"`
	Leave       string `yaml:"leave,omitempty" help:"poweroff: the machine leaves the fleet when it is powered off"`
	Prefix      string `yaml:"prefix,omitempty" help:"prefix of the keys in etcd"`
	CACert      string `yaml:"cacert,omitempty" long:"true" help:"certificates of etcd's CA, for machines that do not join"`

	Settings `yaml:",inline"`
}

// NodeHostname is the value of a plan's hostname that names the machine after its node.
const NodeHostname = "node"

// LeavePoweroff is the value of a plan's Leave by which the machine leaves the fleet when it is powered off, not when
// it reboots.
const LeavePoweroff = "poweroff"

// Off is the replacement that skips a step.
const Off = "off"

// AnyArch is the architecture of an agent's checksum that is valid on every machine.
const AnyArch = "any"

// Field is one setting and its value.
type Field struct {
	Name  string // "puppet_package"
	Value any    // *string, *[]string or *map[string]string
	Help  string
	Like  string
	Long  bool
	shape string
	merge string
}

// Flag returns the name of the setting's flag.
func (f Field) Flag() string { return strings.ReplaceAll(f.Name, "_", "-") }

// Pattern returns the regular expression that all values match; "" without one.
func (f Field) Pattern() string { return shapes()[f.shape].text }

// MaxLength returns the maximum number of bytes of a value, or of characters of a program's path.
func (f Field) MaxLength() int {
	switch {
	case f.Long:
		return maxText
	case f.shape == "program":
		return maxPath
	}
	return maxLine
}

// Keys returns the allowed keys of a map.
func (f Field) Keys() []string {
	if f.Name != "steps" {
		return []string{"amd64", "arm64", AnyArch}
	}
	return stepKeys()
}

// Fields returns the settings in their order; each Value points into s.
func (s *Settings) Fields() []Field { return fieldsOf(reflect.ValueOf(s).Elem()) }

// Fields returns the fields of one machine, then the settings.
func (p *Plan) Fields() []Field {
	return append(fieldsOf(reflect.ValueOf(p).Elem()), p.Settings.Fields()...)
}

func fieldsOf(v reflect.Value) []Field {
	known, ok := tagged.Load(v.Type())
	if !ok {
		known, _ = tagged.LoadOrStore(v.Type(), readTags(v.Type()))
	}
	all := slices.Clone(known.([]Field))
	next := 0
	for i := range v.NumField() {
		if v.Field(i).Kind() != reflect.Struct {
			all[next].Value = v.Field(i).Addr().Interface()
			next++
		}
	}
	return all
}

// tagged has the fields of each struct type, without values: a plan needs them for every node, and reading tags is slow.
var tagged sync.Map

func readTags(t reflect.Type) []Field {
	var all []Field
	for i := range t.NumField() {
		if t.Field(i).Type.Kind() == reflect.Struct {
			continue
		}
		tag := t.Field(i).Tag
		name, _, _ := strings.Cut(tag.Get("yaml"), ",")
		all = append(all, Field{name, nil, tag.Get("help"), tag.Get("like"), tag.Get("long") != "", tag.Get("shape"), tag.Get("merge")})
	}
	return all
}

// Over returns s, with the values of below for settings that s does not have. Scripts of below run first. Each step is
// merged separately.
func (s Settings) Over(below Settings) Settings {
	merge(s.Fields(), below.Fields())
	s.Tidy() // flags that are not set are empty lists
	return s
}

// Over is Settings.Over for plans.
func (p Plan) Over(below Plan) Plan {
	merge(p.Fields(), below.Fields())
	p.Tidy()
	return p
}

func merge(above, below []Field) {
	for i, f := range above {
		switch to := f.Value.(type) {
		case *string:
			if *to == "" {
				*to = *below[i].Value.(*string)
			}
		case *[]string:
			under := *below[i].Value.(*[]string)
			if f.merge == "append" {
				*to = slices.Concat(under, *to)
			} else if len(*to) == 0 {
				*to = under
			}
		case *map[string]string:
			under := *below[i].Value.(*map[string]string)
			if f.merge == "keys" && len(*to) > 0 && len(under) > 0 {
				both := maps.Clone(under)
				maps.Copy(both, *to)
				*to = both
			} else if len(*to) == 0 {
				*to = under
			}
		}
	}
}

// Names returns the names of the settings that have a value.
func (s Settings) Names() (names []string) {
	for _, f := range s.Fields() {
		if !reflect.ValueOf(f.Value).Elem().IsZero() {
			names = append(names, f.Name)
		}
	}
	return names
}

// Without returns s without the settings of these names.
func (s Settings) Without(names []string) Settings {
	for _, f := range s.Fields() {
		if slices.Contains(names, f.Name) {
			reflect.ValueOf(f.Value).Elem().SetZero()
		}
	}
	return s
}

// Replaced returns the names of the settings of which below loses its value under s: s has one, and they do not merge.
func (s Settings) Replaced() (names []string) {
	for _, f := range s.Fields() {
		if f.merge == "" && !reflect.ValueOf(f.Value).Elem().IsZero() {
			names = append(names, f.Name)
		}
	}
	return names
}

// Tidy makes empty lists and maps nil: equal settings are equal values.
func (s *Settings) Tidy() {
	for _, f := range s.Fields() {
		switch to := f.Value.(type) {
		case *[]string:
			if len(*to) == 0 {
				*to = nil
			}
		case *map[string]string:
			if len(*to) == 0 {
				*to = nil
			}
		}
	}
}

// FlagSet is the part of pflag's type that AddFlags needs.
type FlagSet interface {
	StringVar(p *string, name, value, usage string)
	StringSliceVar(p *[]string, name string, value []string, usage string)
	StringToStringVar(p *map[string]string, name string, value map[string]string, usage string)
}

// AddFlags adds flags for the settings with these names. A list has commas, or repeats the flag.
func (p *Plan) AddFlags(to FlagSet, names ...string) {
	for _, f := range p.Fields() {
		if !slices.Contains(names, f.Name) {
			continue
		}
		switch v := f.Value.(type) {
		case *string:
			to.StringVar(v, f.Flag(), "", f.Help)
		case *[]string:
			to.StringSliceVar(v, f.Flag(), nil, f.Help)
		case *map[string]string:
			to.StringToStringVar(v, f.Flag(), nil, f.Help)
		}
	}
}
