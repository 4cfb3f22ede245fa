package firstboot

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"pulley/internal/clip"
	"pulley/internal/schedule"
)

// Problem is one problem of settings or of a plan.
type Problem struct {
	Field  string // "schedule", "servers.0", "steps.puppet"
	Value  string // "" if it is too long, or may be a secret
	Text   string // "minute \"99\" is not from 0 to 59"
	Advice string // the remedy, or ""
	Half   bool   // another setting is missing; the settings below these may contain it
}

// Error returns the problem in one line.
func (p *Problem) Error() string {
	text := p.Field
	if p.Value != "" {
		text += " " + quoted(p.Value)
	}
	return text + ": " + p.Text
}

// The limits of values. Complete userdata has at most 16 KiB.
const (
	maxLine = 2048     // bytes of a one-line value
	maxText = 12 << 10 // bytes of a script, or of a list of signers
	maxPath = 255      // characters of a program's path
)

// shape is the pattern of a kind of values.
type shape struct {
	text    string // of the pattern, with its anchors
	pattern *regexp.Regexp
	advice  string // beside the example
}

// shapes compiles the patterns at their first use. They allow only the characters that are safe where a machine uses
// the values: in names of files, keys, packages, and shell words.
var shapes = sync.OnceValue(func() map[string]shape {
	const host, port = `([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])`, `:[1-9][0-9]{0,4}`
	all := map[string]shape{
		"name":     {text: `[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?`},
		"fleet":    {text: `[a-z][a-z0-9_]*(@[A-Za-z0-9][A-Za-z0-9_-]*)?`},
		"hostname": {text: `[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*`},
		"base":     {text: `https://` + host + `(` + port + `)?(/[A-Za-z0-9._~/@:+,=%-]*)?`},
		"mirror":   {text: `(https://` + host + `|http://(localhost|127\.[0-9.]+|\[::1\]))(` + port + `)?(/[A-Za-z0-9._~/@:+,=%-]*)?`},
		"url":      {text: `https?://` + host + `(` + port + `)?(/[A-Za-z0-9._~/@:+,=?&%-]*)?`, advice: ", without a password"},
		"direct":   {text: `[A-Za-z0-9.*:/_-]+`},
		"endpoint": {text: `(https?://` + host + `(` + port + `)?|` + host + port + `)/?`},
		"token":    {text: `[A-Za-z0-9_.:=+/-]+`},
		"pin":      {text: `sha256:[0-9a-f]{64}`, advice: "sha256:… with 64 hex digits; `pulley ca show` prints it"},
		"sha256":   {text: `[0-9a-f]{64}`, advice: "64 hex digits, as sha256sum prints them"},
		"package":  {text: `[A-Za-z0-9][A-Za-z0-9.+_-]*`},
		"version":  {text: `[A-Za-z0-9][A-Za-z0-9.+:~^_-]*`},
		"repo":     {text: `(deb [^@\x00-\x1f\x7f]+|https?://[^@\s?\x00-\x1f\x7f]+\.(deb|rpm)(\?[^@\s\x00-\x1f\x7f]*)?)`, advice: ", or https://apt.example/release.deb; without a password"},
		"schedule": {text: schedule.Pattern()},
		"script":   {text: `#!/[^\r\x00]*`, advice: "a text that begins with a line such as #!/bin/sh, without line ends of Windows"},
		"program":  {text: `(off|/[\p{L}\p{M}\p{N}\p{P}\p{S} ]+)`, advice: "off, or the absolute path of a program"},
	}
	for name, s := range all {
		s.text = "^" + s.text + "$"
		s.pattern = regexp.MustCompile(s.text)
		all[name] = s
	}
	return all
})

// Problems returns all problems of the settings, in the order of the fields.
func (s Settings) Problems() []*Problem {
	var c checker
	for _, f := range s.Fields() {
		c.field(f)
	}
	if _, err := SignerLines(s.AllowedSigners); err != nil {
		c.add("allowed_signers", "", err.Error(), "")
	}
	c.relations(s)
	return c.problems
}

// Problems returns all problems of a plan as an operator writes it, with the contents of files.
func (p Plan) Problems() []*Problem {
	c := checker{problems: p.Settings.Problems()}
	c.machine(p)
	if _, err := Certificates(p.CACert); err != nil {
		c.add("cacert", "", err.Error(), "")
	}
	return c.problems
}

// problemsOnMachine returns all problems of the plan on a machine, with the paths of files.
func (p Plan) problemsOnMachine() []*Problem {
	var c checker
	for _, file := range []struct {
		name string
		path *string
	}{{"allowed_signers", &p.AllowedSigners}, {"cacert", &p.CACert}} {
		if *file.path != "" && (!path.IsAbs(*file.path) || strings.ContainsFunc(*file.path, unicode.IsControl)) {
			c.add(file.name, "", "it is not the absolute path of a file", "")
		}
	}
	signers, cacert := p.AllowedSigners, p.CACert
	p.AllowedSigners, p.CACert = "", ""
	c.problems = append(c.problems, p.Settings.Problems()...)
	p.AllowedSigners, p.CACert = signers, cacert
	c.machine(p)
	return c.problems
}

// Check returns the first problem of the plan on a machine, as ParsePlan does.
func (p Plan) Check() error {
	if all := p.problemsOnMachine(); len(all) > 0 {
		return all[0]
	}
	return nil
}

// Missing returns an error if a new machine cannot become a node by this plan. The plan must have no other problem.
func (p Plan) Missing() error {
	switch {
	case p.Node == "" && p.Role == "":
		return errors.New("it has neither a node nor a role")
	case p.Environment == "":
		return errors.New("it has no environment")
	case len(p.Servers) > 0 && p.Token == "":
		return errors.New("it has servers and no token: the machine could not join")
	case len(p.Servers) == 0 && p.Node == "":
		return errors.New("a machine claims a node of its role by joining, and it has no server")
	case len(p.Servers)+len(p.Endpoints) == 0:
		return errors.New("it has no endpoint of etcd, and no server to join at")
	case len(p.AgentSHA256) > 0 && len(p.AgentURLs)+len(p.Servers)+len(p.Mirrors) == 0:
		return errors.New("it has a checksum of the agent, and no URL to download it from")
	}
	return nil
}

// checker collects problems.
type checker struct{ problems []*Problem }

func (c *checker) add(field, value, text, advice string) {
	c.problems = append(c.problems, &Problem{Field: field, Value: value, Text: text, Advice: advice})
}

func (c *checker) half(field, text, advice string) {
	c.problems = append(c.problems, &Problem{Field: field, Text: text, Advice: advice, Half: true})
}

// field checks each value of a field.
func (c *checker) field(f Field) {
	switch v := f.Value.(type) {
	case *string:
		if *v != "" {
			c.value(f, f.Name, *v)
		}
	case *[]string:
		for i, value := range *v {
			c.value(f, f.Name+"."+strconv.Itoa(i), value)
		}
	case *map[string]string:
		for _, key := range slices.Sorted(maps.Keys(*v)) {
			at := f.Name + "." + key
			if !slices.Contains(f.Keys(), key) {
				c.add(at, "", fmt.Sprintf("%s has no key %s", f.Name, quoted(key)), "its keys are "+strings.Join(f.Keys(), ", "))
			}
			c.value(f, at, (*v)[key])
		}
	}
}

// value checks one value by its shape.
func (c *checker) value(f Field, at, value string) {
	shown, size := value, len(value)
	if f.Long {
		shown = ""
	}
	if f.shape == "program" {
		size = utf8.RuneCountInString(value)
	}
	s := shapes()[f.shape]
	switch {
	case value == "":
		c.add(at, "", "it is empty", "")
	case size > f.MaxLength():
		c.add(at, "", fmt.Sprintf("its length is %d, at most %d is allowed", size, f.MaxLength()), "")
	case !utf8.ValidString(value):
		c.add(at, shown, "it is not UTF-8", "")
	case f.Long && strings.ContainsRune(value, 0):
		c.add(at, "", "it has a NUL byte", "")
	case !f.Long && strings.ContainsFunc(value, unicode.IsControl):
		c.add(at, shown, "it has a line break or another control character", "")
	case f.shape == "schedule":
		if err := schedule.Check(value); err != nil {
			c.add(at, shown, err.Error(), "write it like "+schedule.Like)
		}
	case f.shape != "" && !s.pattern.MatchString(value) && strings.Contains(value, "@") && strings.Contains(value, "://"):
		c.add(at, "", "it holds a user or password, and every process on the node can read userdata", "write it like "+f.Like)
	case f.shape != "" && !s.pattern.MatchString(value):
		want := s.advice
		if f.Like != "" {
			want = "like " + f.Like + s.advice
		}
		c.add(at, shown, "it is not "+want, "")
	case f.shape == "url" || f.shape == "base" || f.shape == "mirror" || f.shape == "endpoint" && strings.Contains(value, "://"):
		if _, err := url.Parse(value); err != nil {
			c.add(at, shown, "it is not a URL", "write it like "+f.Like)
		}
	}
}

// relations refuses incomplete groups of settings. Servers without a pin are complete: `env apply` takes the pin from
// the operator's connection to etcd.
func (c *checker) relations(s Settings) {
	if len(s.CA) > 0 && len(s.Servers) == 0 {
		c.half("ca", "there is the pin of a CA, and no server to join at", "add `servers:`")
	}
	if len(s.AgentURLs) > 0 && len(s.AgentSHA256) == 0 {
		c.half("agent_urls", "there is a URL of the agent without agent_sha256", "add the checksum, as sha256sum prints it")
	}
}

// machine checks the values of a plan besides its settings.
func (c *checker) machine(p Plan) {
	for _, f := range fieldsOf(reflect.ValueOf(&p).Elem()) {
		if f.Name != "token" && f.Name != "cacert" {
			c.field(f)
		}
	}
	joins := len(p.Servers) > 0
	switch {
	case joins && len(p.CA) == 0:
		c.add("servers", "", "there are servers without the pin of their CA: the machine could not verify them", "add `ca: [sha256:…]`")
	case !joins && p.Token != "":
		c.add("token", "", "there is a token, and no server to join at: `pulley token create -e ENVIRONMENT` prints the complete command", "add `servers: [https://…]`")
	case p.Token != "" && !shapes()["token"].pattern.MatchString(p.Token):
		c.add("token", "", "the token is not one word of letters and digits", "") // not repeated: this may be logged
	case joins && p.CACert != "":
		c.add("cacert", "", "a join returns the certificates of etcd's CA; omit cacert if there are servers", "")
	case p.Leave != "" && p.Leave != LeavePoweroff:
		c.add("leave", p.Leave, "it may be "+LeavePoweroff, "")
	case p.Leave != "" && !joins:
		c.add("leave", p.Leave, "a machine leaves at a server, and there is none", "add `servers: [https://…]`")
	case len(p.Hostname) > linuxNameMax:
		c.add("hostname", p.Hostname, fmt.Sprintf("it is longer than %d characters", linuxNameMax), "")
	}
}

// linuxNameMax is Linux's HOST_NAME_MAX: sethostname(2) refuses more.
const linuxNameMax = 64

// publicKey matches the key in a line of an allowed_signers file: its type, and the key in base64.
var publicKey = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(^|\s)(ssh|ecdsa|sk-ssh|sk-ecdsa)-[a-z0-9@.-]+\s+[A-Za-z0-9+/]{16,}=*(\s|$)`)
})

// SignerLines returns the lines of an allowed_signers file without comments. Each must have the form of such a line:
// neither a private key nor the end of a here-document may get into a script. The agent parses the keys.
func SignerLines(text string) (string, error) {
	var out strings.Builder
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !publicKey().MatchString(line) || strings.HasPrefix(line, "-----") || strings.ContainsFunc(strings.ReplaceAll(line, "\t", " "), unicode.IsControl) {
			return "", fmt.Errorf("line %d is not like alice@production ssh-ed25519 AAAA…", n)
		}
		out.WriteString(line + "\n")
	}
	if text != "" && out.Len() == 0 {
		return "", errors.New("it names no signer: the node would refuse everything")
	}
	return out.String(), nil
}

// Certificates returns PEM certificates in their canonical form, without the text around them.
func Certificates(text string) (string, error) {
	var out strings.Builder
	found := 0
	for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return "", fmt.Errorf("it holds a %s; only certificates may be in userdata", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return "", fmt.Errorf("cannot read a certificate: %w", err)
		}
		out.Write(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes}))
		found++
	}
	// pem.Decode skips blocks that it cannot read: a truncated certificate would be lost silently.
	if text != "" && (found == 0 || found != bytes.Count([]byte(text), []byte("-----BEGIN "))) {
		return "", errors.New("it does not consist of complete PEM certificates")
	}
	return out.String(), nil
}

// quoted returns s quoted, cut to a length that does not flood a terminal.
func quoted(s string) string { return strconv.Quote(clip.Text(s, 70)) }
