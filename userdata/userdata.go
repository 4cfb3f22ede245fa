package userdata

import (
	"fmt"
	"strings"
)

// MaxSizeBytes is what every cloud accepts as userdata; EC2 allows the least.
const MaxSizeBytes = 16 << 10

// Form is how a machine is handed its userdata.
type Form string

// The forms. All of them lead to the same files on the machine.
const (
	Script      Form = "script"       // a shell script: for every cloud, and for a person at a terminal
	CloudConfig Form = "cloud-config" // cloud-init's own YAML, which can be merged with more of it
	Multipart   Form = "multipart"    // the script, and a part that cloud-init runs at every boot
)

// Forms are all of them, the usual one first.
var Forms = []Form{Script, CloudConfig, Multipart}

// Options is what a first boot needs to know. Environment must be given, Node or Role, and Servers or Endpoints.
type Options struct {
	Node        string // "controller1_t42"; empty: the join claims the next free number of Role
	Role        string // "controller"; left out of the plan where the node's name already says it
	Environment string // the fleet: "dev", or "dev@t42" for a stack of it
	Hostname    string // "controller1-t42"; "node": as the node is called; empty: the machine keeps the name that it has

	Servers   []string // https URLs of `pulley serve`, where the machine joins; none: there is nothing to join
	CA        []string // pins of the servers' CAs, "sha256:…"; must come with Servers
	Token     string   // that it joins with; must come with Servers
	Leave     string   // "poweroff": leaves the fleet when it is powered off
	Endpoints []string // of etcd: URLs, or host:port; may be left out with Servers, which know them
	Prefix    string   // of the keys in etcd; empty: the agent's default
	CACert    []byte   // PEM certificates that etcd's is checked against; with Servers, the join answers them

	AllowedSigners []byte   // who may sign what the node runs: the content of its allowed_signers file, see ssh-keygen(1)
	Mirrors        []string // https URLs that releases are fetched from before etcd is asked

	AgentSHA256 map[string]string // of pulley-agent, 64 hex digits, by architecture as Go calls it; "" is any; none: the image has it
	AgentURLs   []string          // where it is downloaded from, beside Servers; must come with AgentSHA256

	PuppetPackage string // empty: the agent takes the first that the machine's repositories have
	PuppetVersion string // empty: the newest that the package repository has
	PackageRepo   string // URL of the .deb or .rpm that sets up a package repository, or an apt line "deb …"
	Proxy         string // URL of the HTTP proxy of downloads and package installation; etcd and servers are reached directly
	Schedule      string // of the agent, five cron fields; empty: the agent's default

	Pre, Post []Step            // own scripts, run in this order before and after the steps
	Steps     map[string]string // steps by name that are done otherwise: "off", or the path of a program on the machine
}

// Step is a script of one's own.
type Step struct {
	Name string // "10-disks": of the file
	Text []byte // starts with #!
}

// Render returns the userdata in a form. A value that a first boot could not use is an error, as is a result above
// MaxSizeBytes.
func Render(o Options, form Form) ([]byte, error) {
	text, err := render(o, form)
	if err != nil {
		return nil, fmt.Errorf("cannot render userdata of %s: %w", o.subject(), err)
	}
	return text, nil
}

func render(o Options, form Form) ([]byte, error) {
	p, err := o.parts()
	if err != nil {
		return nil, err
	}
	var text []byte
	switch form {
	case Script:
		text, err = p.script(true)
	case CloudConfig:
		text, err = p.cloudConfig()
	case Multipart:
		text, err = p.multipart()
	default:
		return nil, fmt.Errorf("there is no form %q; there are %s", form, listed(Forms))
	}
	if err == nil && len(text) > MaxSizeBytes {
		err = fmt.Errorf("it would be %d bytes, and clouds take at most %d (%s)", len(text), MaxSizeBytes, p.sizes())
	}
	return text, err
}

// subject is what a machine becomes, in words.
func (o Options) subject() string {
	if o.Node != "" {
		return fmt.Sprintf("node %q", o.Node)
	}
	return fmt.Sprintf("a node of role %q", o.Role)
}

func listed(forms []Form) string {
	words := make([]string, len(forms))
	for i, f := range forms {
		words[i] = string(f)
	}
	return strings.Join(words, ", ")
}
