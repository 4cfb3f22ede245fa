package userdata

import (
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
	pin         = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	word        = regexp.MustCompile(`^[A-Za-z0-9_.:=+/-]+$`)
	stepName    = regexp.MustCompile(`^[a-z]+$`)
	cronFields  = regexp.MustCompile(`^[0-9A-Za-z*/,-]+( [0-9A-Za-z*/,-]+){4}$`)
)

// linuxNameMax is Linux's HOST_NAME_MAX: sethostname(2) refuses more.
const linuxNameMax = 64

// nodeHostname as a hostname names the machine as the node is called.
const nodeHostname = "node"

// check returns the first thing that a first boot could not work with.
func (o Options) check() error {
	for _, v := range []struct {
		what, value string
		optional    bool
		shape       *regexp.Regexp
		like        string
	}{
		{"node", o.Node, true, name, "controller1"},
		{"environment", o.Environment, false, fleet, "dev or dev@t42"},
		{"role", o.Role, true, name, "controller"},
		{"hostname", o.Hostname, true, hostname, "controller1"},
		{"Puppet package", o.PuppetPackage, true, packageName, "puppet-agent"},
		{"Puppet version", o.PuppetVersion, true, packagePin, "7.34.0-1bookworm"},
		{"schedule", o.Schedule, true, cronFields, "*/5 * * * *"},
		{"time of leaving", o.Leave, true, regexp.MustCompile(`^poweroff$`), "poweroff"},
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
	for _, check := range []error{
		o.checkJoin(), checkEndpoints(o.Endpoints), checkMirrors(o.Mirrors), o.checkAgent(), checkProxy(o.Proxy),
		checkRepo(o.PackageRepo), o.checkSteps(),
	} {
		if check != nil {
			return check
		}
	}
	return nil
}

// checkJoin refuses half of what a join needs, and what nothing but a join can give.
func (o Options) checkJoin() error {
	if len(o.Servers) == 0 {
		switch {
		case o.Node == "" && o.Role == "":
			return errors.New("it has neither a node nor a role")
		case o.Node == "":
			return errors.New("a machine claims a node of its role by joining, and no server is given")
		case o.Token != "" || len(o.CA) > 0:
			return errors.New("a token or the pin of a CA is given, and no server to join at")
		case o.Leave != "":
			return errors.New("a machine leaves at a server, and none is given")
		case len(o.Endpoints) == 0:
			return errors.New("no etcd endpoint is given, and no server to join at")
		}
		return nil
	}
	for _, s := range o.Servers {
		if err := checkBase("server", s); err != nil {
			return err
		}
	}
	for _, p := range o.CA {
		if !pin.MatchString(p) {
			return fmt.Errorf("the CA's pin %q is not like sha256:… with 64 hex digits", p)
		}
	}
	switch {
	case o.Node == "" && o.Role == "":
		return errors.New("it has neither a node nor a role")
	case len(o.CA) == 0:
		return errors.New("servers are given without the pin of their CA: the machine could not tell them from others")
	case o.Token == "":
		return errors.New("servers are given without a token: they would not let the machine join")
	case !word.MatchString(o.Token):
		return errors.New("the token is not one word of letters and digits") // it is not repeated: this may end up in a log
	case len(o.CACert) > 0:
		return errors.New("with servers, the join answers the certificates of the CA; its pin is enough")
	}
	return nil
}

func checkEndpoints(endpoints []string) error {
	for _, e := range endpoints {
		if !isEndpoint(e) {
			return fmt.Errorf("endpoint %q is not like https://etcd1:2379", e)
		}
	}
	return nil
}

func checkMirrors(mirrors []string) error {
	for _, m := range mirrors {
		if err := checkBase("mirror", m); err != nil {
			return err
		}
	}
	return nil
}

// checkBase takes the https URL below which a server has its paths.
func checkBase(what, value string) error {
	const like = "https://pulley.example:8443"
	u, err := url.Parse(value)
	if err != nil || u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery {
		return fmt.Errorf("%s %q is not like %s", what, value, like)
	}
	return checkURL(what, value, like)
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

func (o Options) checkAgent() error {
	if len(o.AgentSHA256) == 0 {
		if len(o.AgentURLs) > 0 {
			return errors.New("an agent URL is given without the agent's checksum")
		}
		return nil
	}
	if len(o.AgentURLs)+len(o.Servers)+len(o.Mirrors) == 0 {
		return errors.New("a checksum of the agent is given without a URL to download it from")
	}
	for arch, sum := range o.AgentSHA256 {
		if _, known := machines[arch]; !known {
			return fmt.Errorf("architecture %q of the agent is neither amd64 nor arm64", arch)
		}
		if !sha256Hex.MatchString(sum) {
			return fmt.Errorf("agent checksum %q is not a SHA-256 of 64 lower-case hex digits", sum)
		}
	}
	for _, address := range o.AgentURLs {
		if err := checkURL("agent URL", address, "https://downloads.example/pulley-agent"); err != nil {
			return err
		}
	}
	return nil
}

// checkSteps leaves it to the agent which steps there are.
func (o Options) checkSteps() error {
	for step, instead := range o.Steps {
		if !stepName.MatchString(step) {
			return fmt.Errorf("%q is not the name of a step", step)
		}
		if instead != "off" && !path.IsAbs(instead) {
			return fmt.Errorf("step %s is %q; it may be \"off\", or the absolute path of a program that runs instead", step, instead)
		}
		if err := oneLine("step "+step, instead); err != nil {
			return err
		}
	}
	for _, own := range [][]Step{o.Pre, o.Post} {
		seen := map[string]bool{}
		for _, s := range own {
			if !name.MatchString(s.Name) {
				return fmt.Errorf("step %q is not called like 10-disks", s.Name)
			}
			if seen[s.Name] {
				return fmt.Errorf("two steps are called %s", s.Name)
			}
			seen[s.Name] = true
			if err := stepText(s.Name, s.Text); err != nil {
				return err
			}
		}
	}
	return nil
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
