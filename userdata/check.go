package userdata

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// These are no wider than what the values are used for on the machine: names of files, keys, packages and cron fields.
// Whether a node belongs to its environment is for the environments package to say.
var (
	name        = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	fleet       = regexp.MustCompile(`^[a-z][a-z0-9_]*(@[A-Za-z0-9][A-Za-z0-9_-]*)?$`)
	hostname    = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)
	number      = regexp.MustCompile(`^[1-9][0-9]*$`)
	sha256Hex   = regexp.MustCompile(`^[0-9a-f]{64}$`)
	packageName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.+_-]*$`)
	packagePin  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.+:~^_-]*$`)
	cronFields  = regexp.MustCompile(`^[0-9A-Za-z*/,-]+( [0-9A-Za-z*/,-]+){4}$`)
)

// linuxNameMax is Linux's HOST_NAME_MAX: sethostname(2) refuses more.
const linuxNameMax = 64

// check returns the first thing that a first boot could not work with.
func (o Options) check() error {
	for _, v := range []struct {
		what, value string
		optional    bool
		shape       *regexp.Regexp
		like        string
	}{
		{"node", o.Node, false, name, "controller1"},
		{"environment", o.Environment, false, fleet, "dev or dev@t42"},
		{"role", o.Role, true, name, "controller"},
		{"hostname", o.Hostname, true, hostname, "controller1"},
		{"Puppet package", o.PuppetPackage, true, packageName, "puppet-agent"},
		{"Puppet version", o.PuppetVersion, true, packagePin, "7.34.0-1bookworm"},
		{"schedule", o.Schedule, true, cronFields, "*/5 * * * *"},
	} {
		if v.value == "" && v.optional {
			continue
		}
		if !v.shape.MatchString(v.value) {
			return fmt.Errorf("%s %q is not like %s", v.what, v.value, v.like)
		}
	}
	if len(o.Hostname) > linuxNameMax {
		return fmt.Errorf("hostname %q is longer than %d characters", o.Hostname, linuxNameMax)
	}
	if err := oneLine("prefix", o.Prefix); err != nil {
		return err
	}
	return errors.Join(checkEndpoints(o.Endpoints), checkMirrors(o.Mirrors), checkAgent(o.AgentURL, o.AgentSHA256), checkProxy(o.Proxy),
		checkRepo(o.PackageRepo))
}

func checkEndpoints(endpoints []string) error {
	if len(endpoints) == 0 {
		return errors.New("no etcd endpoint is given")
	}
	for _, e := range endpoints {
		if !isEndpoint(e) {
			return fmt.Errorf("endpoint %q is not like https://etcd1:2379", e)
		}
	}
	return nil
}

func checkMirrors(mirrors []string) error {
	for _, m := range mirrors {
		u, err := url.Parse(m)
		if err != nil || u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery {
			return fmt.Errorf("mirror %q is not like https://pulley.example:8443", m)
		}
		if err := checkURL("mirror", m, "https://pulley.example:8443"); err != nil {
			return err
		}
	}
	return nil
}

func isEndpoint(s string) bool {
	if !strings.Contains(s, "://") {
		host, port, err := net.SplitHostPort(s)
		if err != nil || host == "" || !number.MatchString(port) {
			return false
		}
		s = "https://" + s
	}
	u, err := url.Parse(s)
	return err == nil && checkURL("", s, "") == nil && !strings.Contains(s, ",") &&
		strings.Trim(u.Path, "/") == "" && u.RawQuery == "" && u.Fragment == ""
}

func checkAgent(address, sha256 string) error {
	if address == "" && sha256 == "" {
		return nil
	}
	if address == "" {
		return errors.New("a checksum of the agent is given without the URL to download it from")
	}
	if !sha256Hex.MatchString(sha256) {
		return fmt.Errorf("agent checksum %q is not a SHA-256 of 64 lower-case hex digits", sha256)
	}
	return checkURL("agent URL", address, "https://downloads.example/pulley-agent")
}

func checkProxy(proxy string) error {
	if proxy == "" {
		return nil
	}
	return checkURL("proxy", proxy, "http://proxy:3128")
}

func checkRepo(repo string) error {
	const what = "package repository"
	if err := oneLine(what, repo); err != nil {
		return err
	}
	if repo == "" || strings.HasPrefix(repo, "deb ") {
		for word := range strings.FieldsSeq(repo) {
			if u, err := url.Parse(word); err == nil && u.User != nil {
				return publicPassword(what)
			}
		}
		return nil
	}
	if err := checkURL(what, repo, `https://apt.example/release.deb, or the apt line "deb https://apt.example stable main"`); err != nil {
		return err
	}
	if u, err := url.Parse(repo); err != nil || path.Ext(u.Path) != ".deb" && path.Ext(u.Path) != ".rpm" {
		return fmt.Errorf("package repository %q is neither a .deb or .rpm file nor an apt line", repo)
	}
	return nil
}

// checkURL takes what curl, wget, apt and dnf fetch alike.
func checkURL(what, value, like string) error {
	u, err := url.Parse(value)
	if err != nil || oneLine(what, value) != nil || strings.Contains(value, " ") ||
		u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return fmt.Errorf("%s %q is not like %s", what, value, like)
	}
	if u.User != nil {
		return publicPassword(what)
	}
	return nil
}

// publicPassword does not repeat the value, which may end up in a log.
func publicPassword(what string) error {
	return fmt.Errorf("the %s holds a user or password, and every process on the node can read userdata", what)
}

// oneLine refuses what would change its meaning in a script, in YAML or in a log.
func oneLine(what, value string) error {
	if !utf8.ValidString(value) {
		return fmt.Errorf("%s %q is not UTF-8", what, value)
	}
	if strings.ContainsFunc(value, unicode.IsControl) {
		return fmt.Errorf("%s %q holds a line break or another control character", what, value)
	}
	return nil
}

// publicKey is what makes a line one of an allowed_signers file: a type of key and, as base64, the key itself.
var publicKey = regexp.MustCompile(`(^|\s)(ssh|ecdsa|sk-ssh|sk-ecdsa)-[a-z0-9@.-]+\s+[A-Za-z0-9+/]{16,}=*(\s|$)`)

// allowedSigners returns the file's lines that count, without comments. Whether they can be read is for the agent to say;
// here a line has to look like one, so that neither a private key nor the end of a here-document gets into the script.
func allowedSigners(text []byte) (string, error) {
	var out strings.Builder
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !publicKey.MatchString(line) || strings.HasPrefix(line, "-----") {
			return "", fmt.Errorf("line %d of the allowed signers is not like alice@production ssh-ed25519 AAAA…", n)
		}
		if err := oneLine("a line of the allowed signers", strings.ReplaceAll(line, "\t", " ")); err != nil {
			return "", err
		}
		out.WriteString(line + "\n")
	}
	if len(text) > 0 && out.Len() == 0 {
		return "", errors.New("the file of allowed signers names none: the node would refuse everything")
	}
	return out.String(), nil
}

// certificates returns the PEM text in its canonical form: certificates only, without whatever stood around them.
func certificates(text []byte) (string, error) {
	var out strings.Builder
	found := 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return "", fmt.Errorf("the CA file holds a %s; only certificates may be in userdata", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return "", fmt.Errorf("cannot read the CA certificate: %w", err)
		}
		out.Write(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes}))
		found++
	}
	// pem.Decode passes over what it can't read: a cut certificate would be missing without a word.
	if len(text) > 0 && (found == 0 || found != bytes.Count(text, []byte("-----BEGIN "))) {
		return "", errors.New("the CA file is not made of whole PEM certificates")
	}
	return out.String(), nil
}
