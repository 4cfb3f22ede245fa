package userdata

import (
	"bytes"
	_ "embed"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"text/template"

	"pulley/internal/firstboot"
	"pulley/internal/shellquote"
)

// The places of the parts on the machine.
const (
	planPath    = "/" + firstboot.PlanPath
	signersPath = "/etc/pulley/allowed_signers"
	caPath      = "/etc/pulley/ca.pem"
	stepsPath   = "/etc/pulley/first-boot" // with pre.d and post.d
	scriptPath  = "/var/lib/pulley/first-boot.sh"
)

// parts are the contents that all forms share.
type parts struct {
	firstboot.Plan
	files []file // the form writes them, or the script
}

type file struct {
	Path string
	Mode string // as an argument of chmod
	Text string // ends with a line break
}

// End returns a line that does not occur in the file.
func (f file) End() string {
	end := "PULLEY"
	for slices.Contains(strings.Split(f.Text, "\n"), end) {
		end += "_"
	}
	return end
}

// newParts checks a plan, and moves the contents of its files to separate files.
func newParts(plan firstboot.Plan) (*parts, error) {
	if all := plan.Problems(); len(all) > 0 {
		return nil, all[0]
	}
	if err := plan.Missing(); err != nil {
		return nil, err
	}
	p := &parts{Plan: plan}
	own := plan // the plan on the machine
	own.Pre, own.Post, own.AgentURLs, own.AgentSHA256 = nil, nil, nil, nil
	if roleInName(plan.Role, plan.Node, plan.Environment) {
		own.Role = ""
	}
	ca, err := firstboot.Certificates(plan.CACert)
	if err != nil {
		return nil, err
	}
	if ca != "" {
		own.CACert = caPath
		p.files = append(p.files, file{caPath, "644", ca})
	}
	signers, err := firstboot.SignerLines(plan.AllowedSigners)
	if err != nil {
		return nil, err
	}
	if signers != "" {
		own.AllowedSigners = signersPath // named: a node that lost the file must refuse new releases
		p.files = append(p.files, file{signersPath, "644", signers})
	}
	addScripts := func(folder string, scripts []string) {
		for i, text := range scripts {
			path := fmt.Sprintf("%s/%s/%03d", stepsPath, folder, i+1)
			p.files = append(p.files, file{path, "755", strings.TrimRight(text, "\n") + "\n"})
		}
	}
	addScripts("pre.d", plan.Pre)
	addScripts("post.d", plan.Post)
	text, err := own.Encode()
	p.files = append([]file{{planPath, "600", string(text)}}, p.files...)
	return p, err
}

// roleInName reports whether node is <role><num>[_<stack>] without ambiguity. A role that contains digits is always
// written: "web21" may be number 1 of web2 or number 21 of web.
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
	return rest != "" && rest[0] != '0' && strings.Trim(rest, "0123456789") == ""
}

//go:embed first-boot.sh.tmpl
var scriptText string

// script returns the script that starts a first boot. With whole, the script also writes the other files.
func (p *parts) script(whole bool) ([]byte, error) {
	t, err := template.New("first-boot.sh").Funcs(template.FuncMap{"sh": shellquote.Word}).Parse(scriptText)
	if err != nil {
		return nil, err
	}
	data := struct {
		firstboot.Plan
		Becomes string
		Files   []file
		NoProxy string
		Agents  []agent
		Sources []string

		AnyMachine bool // one of Agents is for any architecture
	}{Plan: p.Plan, Becomes: p.becomes(), NoProxy: p.noProxy(), Agents: p.agents(), Sources: p.sources()}
	_, data.AnyMachine = p.AgentSHA256[firstboot.AnyArch]
	if whole {
		data.Files = p.files
	}
	var out bytes.Buffer
	err = t.Execute(&out, data)
	return out.Bytes(), err
}

// becomes describes the future node. The names in it were checked: none contains a line break.
func (p *parts) becomes() string {
	if p.Node != "" {
		return fmt.Sprintf("node %s of %s", p.Node, p.Environment)
	}
	return fmt.Sprintf("the next free node of role %s of %s", p.Role, p.Environment)
}

// agent is the checksum of pulley-agent for an output of `uname -m`.
type agent struct{ Machine, SHA256 string }

// machines maps Go's architectures to Linux's names.
var machines = map[string]string{"amd64": "x86_64", "arm64": "aarch64", firstboot.AnyArch: "*"}

// agents lists the checksums, the one for any machine last.
func (p *parts) agents() []agent {
	var all []agent
	for _, arch := range []string{"arm64", "amd64", firstboot.AnyArch} {
		if sum, ok := p.AgentSHA256[arch]; ok {
			all = append(all, agent{machines[arch], sum})
		}
	}
	return all
}

// sources returns the sources of the agent as shell words; the script tries them in order.
func (p *parts) sources() []string {
	var all []string
	for _, address := range p.AgentURLs {
		all = append(all, shellquote.Word(address))
	}
	for _, base := range slices.Concat(p.Servers, p.Mirrors) {
		word := shellquote.Word(strings.TrimRight(base, "/")+"/agent/") + `"$sha256"`
		if !slices.Contains(all, word) {
			all = append(all, word)
		}
	}
	return all
}

// noProxy lists the hosts that the script reaches without a proxy: this machine, the servers, the mirrors, and those of the setting.
func (p *parts) noProxy() string {
	hosts := append([]string{"localhost", "127.0.0.1", "::1"}, p.NoProxy...)
	for _, s := range slices.Concat(p.Servers, p.Mirrors) {
		if u, err := url.Parse(s); err == nil && !slices.Contains(hosts, u.Hostname()) {
			hosts = append(hosts, u.Hostname())
		}
	}
	return strings.Join(hosts, ",")
}

// sizes lists the files of the userdata with their sizes.
func (p *parts) sizes() string {
	words := make([]string, len(p.files))
	for i, f := range p.files {
		words[i] = fmt.Sprintf("%s: %d", f.Path, len(f.Text))
	}
	return strings.Join(words, ", ")
}
