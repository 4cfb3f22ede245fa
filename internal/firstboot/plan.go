package firstboot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// PlanPath is where userdata writes the plan, below the machine's root. It holds the join token: mode 0600.
const PlanPath = "etc/pulley/first-boot.yaml"

// MaxPlanBytes is what a plan may take; userdata as a whole has 16 KiB.
const MaxPlanBytes = 64 << 10

// Plan is what a first boot is told: the file /etc/pulley/first-boot.yaml. A key that is not here is an error.
type Plan struct {
	Node           string       `yaml:"node,omitempty"`            // "controller1"; empty: the token's, or the hostname says it
	Role           string       `yaml:"role,omitempty"`            // of a machine of another name, or whose next free number is claimed
	Environment    string       `yaml:"environment,omitempty"`     // "dev" or "dev@t42"
	Servers        []string     `yaml:"servers,omitempty"`         // https URLs of `pulley serve`; none: no join, etcd as it is
	CA             []string     `yaml:"ca,omitempty"`              // pins of the CAs that servers may be of: "sha256:" and 64 hex digits
	Token          string       `yaml:"token,omitempty"`           // that the node joins with
	Endpoints      []string     `yaml:"endpoints,omitempty"`       // of etcd; none: what the join answers
	Prefix         string       `yaml:"prefix,omitempty"`          // of the keys in etcd
	CACert         string       `yaml:"cacert,omitempty"`          // file; only where nothing is joined
	AllowedSigners string       `yaml:"allowed_signers,omitempty"` // file
	Mirrors        []string     `yaml:"mirrors,omitempty"`
	Hostname       string       `yaml:"hostname,omitempty"` // NodeHostname: what the node is called; empty: the machine keeps its name
	Proxy          string       `yaml:"proxy,omitempty"`    // of packages and scripts; servers and etcd are reached directly
	Puppet         PuppetPlan   `yaml:"puppet,omitempty"`
	Schedule       string       `yaml:"schedule,omitempty"` // five cron fields
	Leave          Leave        `yaml:"leave,omitempty"`
	Steps          Replacements `yaml:"steps,omitempty"`
}

// PuppetPlan says which Puppet is installed where there is none, in the package manager's own words.
type PuppetPlan struct {
	Package    string `yaml:"package,omitempty"`
	Version    string `yaml:"version,omitempty"`
	Repository string `yaml:"repository,omitempty"`
}

// NodeHostname as a plan's hostname names the machine after the node that it becomes.
const NodeHostname = "node"

// Leave says when a machine leaves the fleet by itself.
type Leave string

// The times of leaving.
const (
	LeaveNever    Leave = ""         // only when it is told to
	LeavePoweroff Leave = "poweroff" // when it is powered off, not when it is rebooted
)

// Replacements are steps that are done otherwise: Off, or the absolute path of a program that runs instead.
type Replacements map[Name]string

// Off as a replacement leaves the step out.
const Off = "off"

// planKeys are the keys of the file as an error lists them.
const planKeys = "node, role, environment, servers, ca, token, endpoints, prefix, cacert, allowed_signers, mirrors, hostname, proxy, " +
	"puppet: {package, version, repository}, schedule, leave and steps"

// ParsePlan reads a plan; file is what errors call it. They name the line.
func ParsePlan(file string, b []byte) (Plan, error) {
	var p Plan
	if len(b) > MaxPlanBytes {
		return Plan{}, fmt.Errorf("cannot read %s: it is larger than %d bytes", file, MaxPlanBytes)
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	err := dec.Decode(&p)
	if errors.Is(err, io.EOF) {
		return Plan{}, fmt.Errorf("cannot read %s: it is empty\nits keys are %s", file, planKeys)
	}
	if err == nil && dec.Decode(new(any)) == nil {
		err = errors.New("it has a second document, which would be left out")
	}
	if err != nil {
		return Plan{}, fmt.Errorf("cannot read %s: %s\nits keys are %s", file, yamlProblem(err), planKeys)
	}
	if key, flaw := p.flaw(); flaw != "" {
		return Plan{}, fmt.Errorf("cannot use %s: %s%s", file, lineOf(b, key), flaw)
	}
	return p, nil
}

// Encode writes the plan as ParsePlan reads it.
func (p Plan) Encode() ([]byte, error) {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(p); err != nil {
		return nil, fmt.Errorf("cannot encode the plan of a first boot: %w", err)
	}
	return out.Bytes(), enc.Close()
}

// Check says what of a plan makes no sense, as ParsePlan does.
func (p Plan) Check() error {
	if _, flaw := p.flaw(); flaw != "" {
		return errors.New(flaw)
	}
	return nil
}

var (
	pin        = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	hostname   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)
	cronFields = regexp.MustCompile(`^(@[a-z]+|[0-9A-Za-z*/,-]+( +[0-9A-Za-z*/,-]+){4})$`)
	yamlTypes  = regexp.MustCompile(` in(?:to)? (?:type )?firstboot\.([A-Z]\w+)`)
)

// flaw is the first thing that a first boot could not work with, and the key of the file that it is about. Names of nodes,
// roles and environments are judged where they are used.
func (p Plan) flaw() (key, problem string) {
	for _, s := range p.Servers {
		if u, err := url.Parse(s); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return "servers", fmt.Sprintf("server %q is not like https://pulley.example:8443", s)
		}
	}
	for _, f := range p.CA {
		if !pin.MatchString(f) {
			return "ca", fmt.Sprintf("the CA's pin %q is not like sha256:… with 64 hex digits; `pulley ca show` prints it", f)
		}
	}
	switch {
	case len(p.Servers) > 0 && len(p.CA) == 0:
		return "servers", "there are servers to join at, and no pin of their CA (`ca: [sha256:…]`)"
	case len(p.Servers) == 0 && len(p.CA) > 0:
		return "ca", "there is a pin of a CA, and no server to join at (`servers: [https://…]`)"
	case len(p.Servers) == 0 && p.Token != "":
		return "token", "there is a token, and no server to join at (`servers: [https://…]`)"
	case strings.ContainsAny(p.Token, " \t\r\n"):
		return "token", "the token is more than one word"
	case len(p.Servers) > 0 && p.CACert != "":
		return "cacert", "cacert is what etcd is checked against where nothing is joined; the join answers it"
	case p.Hostname != "" && (!hostname.MatchString(p.Hostname) || len(p.Hostname) > 64):
		return "hostname", fmt.Sprintf("%q cannot be a hostname", p.Hostname)
	case p.Schedule != "" && !cronFields.MatchString(p.Schedule):
		return "schedule", fmt.Sprintf("%q is not five fields of a crontab, like '*/5 * * * *'", p.Schedule)
	case p.Leave != LeaveNever && p.Leave != LeavePoweroff:
		return "leave", fmt.Sprintf("leave is %q; it may be %q", p.Leave, LeavePoweroff)
	case p.Leave != LeaveNever && len(p.Servers) == 0:
		return "leave", "a machine leaves at a server, and there is none (`servers: [https://…]`)"
	}
	for name, instead := range p.Steps {
		if !slices.Contains(steps, name) {
			return string(name), fmt.Sprintf("there is no step %q; the steps are %s", name, listed(steps))
		}
		if instead != Off && (!path.IsAbs(instead) || strings.ContainsAny(instead, "\x00\r\n")) {
			return string(name), fmt.Sprintf("step %s is %q; it may be %q, or the absolute path of a program that runs instead", name, instead, Off)
		}
	}
	return "", ""
}

// lineOf is "line N: " where the file has the key, in any depth; "" when it has none.
func lineOf(b []byte, key string) string {
	var root yaml.Node
	if yaml.Unmarshal(b, &root) != nil {
		return ""
	}
	var find func(n *yaml.Node) int
	find = func(n *yaml.Node) int {
		for i, c := range n.Content {
			if n.Kind == yaml.MappingNode && i%2 == 0 && c.Value == key {
				return c.Line
			}
			if line := find(c); line > 0 {
				return line
			}
		}
		return 0
	}
	if line := find(&root); line > 0 {
		return fmt.Sprintf("line %d: ", line)
	}
	return ""
}

// yamlProblem is what yaml.v3 says, as a person would.
func yamlProblem(err error) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n  ")
	text = strings.ReplaceAll(text, "\n  ", "; ")
	text = strings.ReplaceAll(text, "field ", "key ")
	text = yamlTypes.ReplaceAllStringFunc(text, func(s string) string {
		switch {
		case strings.HasSuffix(s, "PuppetPlan"):
			return " in puppet"
		case strings.HasSuffix(s, "Replacements"):
			return " as steps: {NAME: off or /a/program}"
		}
		return ""
	})
	return strings.Join(strings.Fields(text), " ")
}

func listed(names []Name) string {
	words := make([]string, len(names))
	for i, n := range names {
		words[i] = string(n)
	}
	return strings.Join(words, ", ")
}
