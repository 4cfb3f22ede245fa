package userdata

import (
	"bytes"
	_ "embed"
	"fmt"
	"net/url"
	"strings"
	"text/template"

	"gopkg.in/yaml.v3"
)

// MaxSizeBytes is what every cloud accepts as userdata; EC2 allows the least.
const MaxSizeBytes = 16 << 10

// Options is what a first boot needs to know. Node, Environment and Endpoints must be given.
type Options struct {
	Node        string   // "controller1_t42"
	Hostname    string   // "controller1-t42"; empty: the machine keeps the name that it has
	Role        string   // "controller"; left out of agent.yaml where the node's name already says it
	Environment string   // the fleet: "dev", or "dev@t42" for a stack of it
	Endpoints   []string // of etcd: URLs, or host:port
	Prefix      string   // of the keys in etcd; empty: the agent's default
	CACert      []byte   // PEM certificates that etcd's certificate is checked against; empty: the machine's own

	AllowedSigners []byte   // who may sign what the node runs: the content of its allowed_signers file, see ssh-keygen(1)
	Mirrors        []string // https URLs that releases are fetched from before etcd is asked

	AgentURL    string // where pulley-agent is downloaded from; empty: it is part of the image
	AgentSHA256 string // of the download, 64 hex digits; must come with AgentURL

	PuppetPackage string // empty: the agent takes the first that the machine's repositories have
	PuppetVersion string // empty: the newest that the package repository has
	PackageRepo   string // URL of the .deb or .rpm that sets up a package repository, or an apt line "deb …"
	Proxy         string // URL of the HTTP proxy of downloads and package installation; etcd is reached directly
	Schedule      string // of the agent, five cron fields; empty: the agent's default
}

// Render returns the script as cloud-init takes it. A value that a first boot could not use is an error, as is a script
// above MaxSizeBytes.
func Render(o Options) ([]byte, error) {
	script, err := render(o)
	if err != nil {
		return nil, fmt.Errorf("cannot render userdata of node %q: %w", o.Node, err)
	}
	return script, nil
}

//go:embed bootstrap.sh.tmpl
var scriptText string

func render(o Options) ([]byte, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	ca, err := certificates(o.CACert)
	if err != nil {
		return nil, err
	}
	signers, err := allowedSigners(o.AllowedSigners)
	if err != nil {
		return nil, err
	}
	config, err := agentConfig(o)
	if err != nil {
		return nil, err
	}
	script, err := template.New("bootstrap.sh").Funcs(template.FuncMap{"sh": shellQuote}).Parse(scriptText)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = script.Execute(&out, struct {
		Options
		CACert  string // canonical PEM, so that it can stand in the script as it is
		Signers string // lines of principals and keys, for the same reason
		Config  string // YAML without multi-line values, for the same reason
		NoProxy string
		Flags   []string
	}{o, ca, signers, config, noProxy(o.Endpoints), bootstrapFlags(o)})
	if err != nil {
		return nil, err
	}
	if out.Len() > MaxSizeBytes {
		return nil, fmt.Errorf("it would be %d bytes, and clouds take at most %d (%d of them are CA certificates, %d allowed signers)",
			out.Len(), MaxSizeBytes, len(ca), len(signers))
	}
	return out.Bytes(), nil
}

// agentConfig returns /etc/pulley/agent.yaml.
func agentConfig(o Options) (string, error) {
	config := struct {
		Node        string   `yaml:"node"`
		Environment string   `yaml:"environment"`
		Role        string   `yaml:"role,omitempty"`
		Endpoints   []string `yaml:"endpoints"`
		Prefix      string   `yaml:"prefix,omitempty"`
		CACert      string   `yaml:"cacert,omitempty"`
		Signers     string   `yaml:"allowed_signers,omitempty"`
		Mirrors     []string `yaml:"mirrors,omitempty"`
	}{Node: o.Node, Environment: o.Environment, Role: o.Role, Endpoints: o.Endpoints, Prefix: o.Prefix, Mirrors: o.Mirrors}
	if roleInName(o.Role, o.Node, o.Environment) {
		config.Role = ""
	}
	if len(o.CACert) > 0 {
		config.CACert = "/etc/pulley/ca.pem"
	}
	if len(o.AllowedSigners) > 0 {
		config.Signers = "/etc/pulley/allowed_signers" // said, so that a node that lost the file refuses what is new
	}
	text, err := yaml.Marshal(config)
	return string(text), err
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

// bootstrapFlags returns what `pulley-agent bootstrap` needs beyond its configuration. Flag and value are one word, so
// that no value is taken for a flag.
func bootstrapFlags(o Options) []string {
	var flags []string
	for _, f := range []struct{ name, value string }{
		{"puppet-package", o.PuppetPackage},
		{"puppet-version", o.PuppetVersion},
		{"package-repo", o.PackageRepo},
		{"schedule", o.Schedule},
	} {
		if f.value != "" {
			flags = append(flags, "--"+f.name+"="+f.value)
		}
	}
	return flags
}

// noProxy lists the hosts that are reached directly: this machine, the cloud's metadata service, and etcd, whose
// client would otherwise follow https_proxy too.
func noProxy(endpoints []string) string {
	hosts := []string{"localhost", "127.0.0.1", "::1", "169.254.169.254"}
	for _, e := range endpoints {
		if !strings.Contains(e, "://") {
			e = "https://" + e
		}
		if u, err := url.Parse(e); err == nil {
			hosts = append(hosts, u.Hostname())
		}
	}
	return strings.Join(hosts, ",")
}

// shellQuote returns s as one word of POSIX sh that stands for exactly s.
func shellQuote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
