package userdata

import (
	"bytes"
	"strings"

	"gopkg.in/yaml.v3"
)

// plan is /etc/pulley/first-boot.yaml as `pulley-agent bootstrap` reads it.
type plan struct {
	Node        string            `yaml:"node,omitempty"`
	Role        string            `yaml:"role,omitempty"`
	Environment string            `yaml:"environment"`
	Servers     []string          `yaml:"servers,omitempty"`
	CA          []string          `yaml:"ca,omitempty"`
	Token       string            `yaml:"token,omitempty"`
	Endpoints   []string          `yaml:"endpoints,omitempty"`
	Prefix      string            `yaml:"prefix,omitempty"`
	CACert      string            `yaml:"cacert,omitempty"`
	Signers     string            `yaml:"allowed_signers,omitempty"`
	Mirrors     []string          `yaml:"mirrors,omitempty"`
	Hostname    string            `yaml:"hostname,omitempty"`
	Proxy       string            `yaml:"proxy,omitempty"`
	Puppet      puppet            `yaml:"puppet,omitempty"`
	Schedule    string            `yaml:"schedule,omitempty"`
	Leave       string            `yaml:"leave,omitempty"`
	Steps       map[string]string `yaml:"steps,omitempty"`
}

type puppet struct {
	Package    string `yaml:"package,omitempty"`
	Version    string `yaml:"version,omitempty"`
	Repository string `yaml:"repository,omitempty"`
}

// Plan returns /etc/pulley/first-boot.yaml as every form writes it.
func Plan(o Options) ([]byte, error) {
	p := plan{
		Node: o.Node, Role: o.Role, Environment: o.Environment,
		Servers: o.Servers, CA: o.CA, Token: o.Token, Endpoints: o.Endpoints, Prefix: o.Prefix,
		Mirrors: o.Mirrors, Hostname: o.Hostname, Proxy: o.Proxy,
		Puppet: puppet{o.PuppetPackage, o.PuppetVersion, o.PackageRepo}, Schedule: o.Schedule, Leave: o.Leave, Steps: o.Steps,
	}
	if roleInName(o.Role, o.Node, o.Environment) {
		p.Role = ""
	}
	if len(o.CACert) > 0 {
		p.CACert = caPath
	}
	if len(o.AllowedSigners) > 0 {
		p.Signers = signersPath // said, so that a node that lost the file refuses what is new
	}
	var text bytes.Buffer
	enc := yaml.NewEncoder(&text)
	enc.SetIndent(2)
	if err := enc.Encode(p); err != nil {
		return nil, err
	}
	return text.Bytes(), enc.Close()
}

// roleInName reports whether node is <role><num>[_<stack>] beyond doubt. A role with digits of its own is always
// written down: "web21" may be number 1 of web2 or number 21 of web.
func roleInName(role, node, environment string) bool {
	rest, ok := strings.CutPrefix(node, role)
	if role == "" || !ok || strings.ContainsAny(role, "0123456789_") {
		return false
	}
	if _, stack, ok := strings.Cut(environment, "@"); ok {
		if rest, ok = strings.CutSuffix(rest, "_"+stack); !ok {
			return false
		}
	}
	return number.MatchString(rest)
}
