package userdata

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"text/template"
)

// Where the parts lie on the machine.
const (
	planPath    = "/etc/pulley/first-boot.yaml"
	signersPath = "/etc/pulley/allowed_signers"
	caPath      = "/etc/pulley/ca.pem"
	stepsPath   = "/etc/pulley/first-boot" // with pre.d and post.d
	scriptPath  = "/var/lib/pulley/first-boot.sh"
)

// parts is what every form is made of.
type parts struct {
	Options
	files []file // what the script finds on the machine, or writes itself
}

type file struct {
	Path string
	Mode string // as chmod takes it
	Text string // ends with a line break
	kind string // what it is called where sizes are told
}

// End is a line that does not occur in the file.
func (f file) End() string {
	end := "PULLEY"
	for slices.Contains(strings.Split(f.Text, "\n"), end) {
		end += "_"
	}
	return end
}

func (o Options) parts() (*parts, error) {
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
	plan, err := Plan(o)
	if err != nil {
		return nil, err
	}
	p := &parts{Options: o, files: []file{{planPath, "600", string(plan), "the plan"}}}
	if ca != "" {
		p.files = append(p.files, file{caPath, "644", ca, "CA certificates"})
	}
	if signers != "" {
		p.files = append(p.files, file{signersPath, "644", signers, "allowed signers"})
	}
	for _, d := range []struct {
		name  string
		steps []Step
	}{{"pre.d", o.Pre}, {"post.d", o.Post}} {
		for _, s := range d.steps {
			text := strings.TrimRight(string(s.Text), "\n") + "\n"
			p.files = append(p.files, file{stepsPath + "/" + d.name + "/" + s.Name, "755", text, "own steps"})
		}
	}
	return p, nil
}

//go:embed first-boot.sh.tmpl
var scriptText string

// script returns the script that starts a first boot; whole: and that writes the other files itself.
func (p *parts) script(whole bool) ([]byte, error) {
	t, err := template.New("first-boot.sh").Funcs(template.FuncMap{"sh": shellQuote}).Parse(scriptText)
	if err != nil {
		return nil, err
	}
	data := struct {
		Options
		Becomes string
		Files   []file
		NoProxy string
		Agents  []agent
		Sources []string

		AnyMachine bool // one of Agents is for any
	}{Options: p.Options, Becomes: p.becomes(), NoProxy: p.noProxy(), Agents: p.agents(), Sources: p.sources()}
	_, data.AnyMachine = p.AgentSHA256[""]
	if whole {
		data.Files = p.files
	}
	var out bytes.Buffer
	err = t.Execute(&out, data)
	return out.Bytes(), err
}

// becomes is what the machine turns into. Names were checked: none holds a line break.
func (p *parts) becomes() string {
	if p.Node != "" {
		return fmt.Sprintf("node %s of %s", p.Node, p.Environment)
	}
	return fmt.Sprintf("the next free node of role %s of %s", p.Role, p.Environment)
}

// agent is the checksum of pulley-agent for what `uname -m` says.
type agent struct{ Machine, SHA256 string }

// machines are the names that Linux has for Go's architectures.
var machines = map[string]string{"amd64": "x86_64", "arm64": "aarch64", "": "*"}

// agents lists the checksums, the one for any machine last.
func (p *parts) agents() []agent {
	var all []agent
	for _, arch := range slices.Backward(slices.Sorted(maps.Keys(p.AgentSHA256))) {
		all = append(all, agent{machines[arch], p.AgentSHA256[arch]})
	}
	return all
}

// sources are, as words of the shell, where the agent is fetched from, one after the other.
func (p *parts) sources() []string {
	var all []string
	for _, address := range p.AgentURLs {
		all = append(all, shellQuote(address))
	}
	for _, base := range slices.Concat(p.Servers, p.Mirrors) {
		word := shellQuote(strings.TrimRight(base, "/")+"/agent/") + `"$sha256"`
		if !slices.Contains(all, word) {
			all = append(all, word)
		}
	}
	return all
}

// noProxy lists the hosts that the agent is fetched from directly: this machine and the servers.
func (p *parts) noProxy() string {
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	for _, s := range p.Servers {
		if u, err := url.Parse(s); err == nil && !slices.Contains(hosts, u.Hostname()) {
			hosts = append(hosts, u.Hostname())
		}
	}
	return strings.Join(hosts, ",")
}

// sizes says what makes the userdata large.
func (p *parts) sizes() string {
	bytesOf, kinds := map[string]int{}, []string{}
	for _, f := range p.files {
		if bytesOf[f.kind] == 0 {
			kinds = append(kinds, f.kind)
		}
		bytesOf[f.kind] += len(f.Text)
	}
	var words []string
	for _, kind := range kinds {
		words = append(words, fmt.Sprintf("%s %d", kind, bytesOf[kind]))
	}
	return strings.Join(words, ", ")
}

// shellQuote returns s as one word of POSIX sh that stands for exactly s.
func shellQuote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
