// Package boots makes the plans of new machines from an environment, an operator's flags and the operator's connection
// to etcd.
//
// It must never talk to etcd, and never return a plan whose machine could not verify its servers, or could accept no
// release.
package boots

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"pulley/environments"
	"pulley/internal/bounded"
	"pulley/internal/firstboot"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/release/trust"
)

// PlaceholderToken has the length of a token. Pulley checks a plan with it before it creates a token.
const PlaceholderToken = "plt_00000000_0000000000000000000000000000000000000000000000000000000000000000"

// howToPin tells an operator how to find the pins of the servers' CA.
const howToPin = "give their pins: --cacert or PULLEY_CACERT with their CA's certificates, --ca sha256:…, or `ca:` in the environment's userdata; `pulley ca show` prints them"

// Connection contains the values of an operator's connection that are added to the plans of an environment's machines.
type Connection struct {
	Prefix    string
	Endpoints []string // of etcd, for machines that do not join
	CACert    string   // certificates of etcd's CA
	Pins      []string // of the servers' CA, from the same certificates
}

// ReadCACert reads the certificates of etcd's CA, and their pins.
func (c *Connection) ReadCACert(file string) error {
	text, err := bounded.ReadFile(file, 1<<20)
	if err != nil {
		return fmt.Errorf("cannot read the CA certificate: %w", err)
	}
	certs, err := pki.ParseCertificates(text)
	if err != nil {
		return fmt.Errorf("cannot read the CA certificate %s: %w", file, err)
	}
	c.CACert = string(text)
	for _, cert := range certs[max(0, len(certs)-2):] { // older CAs no longer sign
		c.Pins = append(c.Pins, pki.Fingerprint(cert))
	}
	return nil
}

// ForMachine returns the plan of a machine that becomes a node of a role. The token of a plan that joins is
// PlaceholderToken.
func (c Connection) ForMachine(e *environments.Environment, r environments.Role, node, hostname string, now time.Time) (firstboot.Plan, error) {
	p := firstboot.Plan{
		Node: node, Role: r.Name, Hostname: hostname, Environment: e.Ref().String(), Prefix: c.Prefix, Settings: e.UserdataOf(r),
	}
	if err := checkSigners("the allowed signers", p.AllowedSigners, e.Name, now); err != nil {
		return p, err
	}
	if len(p.Servers) == 0 {
		if len(p.Endpoints) == 0 {
			p.Endpoints = c.Endpoints
		}
		p.CA, p.CACert = nil, c.CACert
		return p, nil
	}
	p.Token = PlaceholderToken
	p.CA = slices.Concat(p.CA, c.Pins) // also those of the connection: the CA may have been replaced since the apply
	if len(p.CA) == 0 {
		return p, errors.New("the machine could not verify its servers\n" + howToPin)
	}
	slices.Sort(p.CA)
	p.CA = slices.Compact(p.CA)
	return p, nil
}

// ParsePins returns pins in the format of plans.
func ParsePins(texts []string) ([]string, error) {
	pins := make([]string, len(texts))
	for i, text := range texts {
		var err error
		if pins[i], err = pki.ParseFingerprint(text); err != nil {
			return nil, err
		}
	}
	return pins, nil
}

// Given contains the settings of first boots that an environment's file may leave out.
type Given struct {
	Flags    firstboot.Settings
	Replaced []string                  // settings whose flag is given, perhaps without a value
	Stored   *environments.Environment // the environment in etcd, with the flags of earlier applies; nil for none
	Servers  []string                  // of the operator's context
}

// Complete adds to an environment the settings that its file does not have: of the flags, of the flags of earlier applies, and the
// servers that the operator knows. It also adds the pins of servers without one. The environment is stored with them: later
// machines boot like the first ones, and the next apply needs no flag. Other tools make the machines of driver none, which need
// only the pins.
func (c Connection) Complete(e *environments.Environment, g Given) error {
	flags, pins := g.Flags, c.Pins
	if e.Driver() == environments.DriverNone {
		flags = firstboot.Settings{CA: flags.CA}
	}
	if g.Stored != nil {
		flags = flags.Over(g.Stored.Given.Without(append(flags.Names(), g.Replaced...)))
		if len(pins) == 0 {
			pins = g.Stored.Userdata.CA
		}
	}
	e.Given = flags.Without(e.Userdata.Replaced())
	if e.Driver() == environments.DriverNone {
		if len(e.Given.CA) > 0 {
			pins = e.Given.CA
		}
		return addPins(e, pins)
	}
	file := e.Userdata
	if e.Userdata = file.Over(e.Given); allNeedJoin(e) && reaches(e.Driver(), g.Servers) {
		e.Given.Servers = g.Servers
		e.Userdata = file.Over(e.Given)
	}
	return addPins(e, pins)
}

// allNeedJoin reports whether the machines of every role have no way to etcd.
func allNeedJoin(e *environments.Environment) bool {
	return len(e.Roles) > 0 && !slices.ContainsFunc(e.Roles, func(r environments.Role) bool { return !NeedsJoin(e, r.Name) })
}

// reaches reports whether machines of a driver reach these servers. Only local machines share the loopback of the operator's
// machine.
func reaches(driver string, servers []string) bool {
	return len(servers) > 0 && (driver == environments.DriverLocal || !slices.ContainsFunc(servers, func(s string) bool {
		u, err := url.Parse(s)
		if err != nil {
			return true
		}
		ip := net.ParseIP(u.Hostname())
		return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	}))
}

// addPins sets `ca` beside each `servers` without one.
func addPins(e *environments.Environment, pins []string) error {
	if len(e.Userdata.Servers) > 0 && len(e.Userdata.CA) == 0 {
		e.Userdata.CA = pins
	}
	for i := range e.Roles {
		r := &e.Roles[i]
		u := e.UserdataOf(*r)
		switch {
		case len(u.Servers) == 0 || len(u.CA) > 0:
		case len(pins) > 0:
			r.Userdata.CA = pins
		case r.Cardinality > 0:
			return fmt.Errorf("cannot make userdata of role %s: its machines could not verify their servers\n%s", r.Name, howToPin)
		}
	}
	return nil
}

// UnsignedRole returns the first role whose machines had allowed signers before the change and would have none after
// it; "" for none. A new role counts as having had those of its environment.
func UnsignedRole(was, want *environments.Environment) string {
	if was == nil {
		return ""
	}
	for _, r := range want.Roles {
		old, there := was.Role(r.Name)
		if !there {
			old = environments.Role{Name: r.Name}
		}
		if was.UserdataOf(old).AllowedSigners != "" && want.UserdataOf(r).AllowedSigners == "" {
			return r.Name
		}
	}
	return ""
}

// NeedsJoin reports whether machines of a role have neither a server nor an etcd endpoint, and no program replaces the
// join.
func NeedsJoin(e *environments.Environment, role string) bool {
	r, ok := e.Role(role)
	u := e.UserdataOf(r)
	return ok && len(u.Servers)+len(u.Endpoints) == 0 && u.Steps[string(firstboot.Join)] == ""
}

// checkSigners refuses a list of signers without a valid key for an environment: its machines would accept no release.
func checkSigners(name, allowed, environment string, now time.Time) error {
	if strings.TrimSpace(allowed) == "" {
		return nil
	}
	signers, err := trust.ParseSigners([]byte(allowed), nil)
	if err != nil {
		return fmt.Errorf("cannot use %s: %w", name, err)
	}
	if !signers.Anybody(trust.Release, environment, now) {
		return fmt.Errorf("cannot use %s: none of its keys may sign a release for %s now\nrun `pulley key list`: it shows who may sign, where and when", name, environment)
	}
	return nil
}

// ReadSigners reads a file of allowed signers for an environment.
func ReadSigners(file, environment string, now time.Time) (string, error) {
	text, err := bounded.ReadFile(file, 1<<20)
	if err != nil {
		return "", fmt.Errorf("cannot read the allowed signers: %w", err)
	}
	return string(text), checkSigners(file, string(text), environment, now)
}

// ForNode returns the plan of one machine: of the node called name or, with a role, of a machine of any name. Without a
// name, the machine claims the next free number of the role. With keep, the machine exists and keeps its name, even if
// it looks like a node of another role. The returned environment has the stack of the name.
func ForNode(ref model.Ref, name, role string, keep bool) (firstboot.Plan, model.Ref, error) {
	p := firstboot.Plan{Role: role, Hostname: firstboot.NodeHostname}
	if name == "" {
		p.Environment = ref.String()
		return p, ref, model.CheckRole(role)
	}
	n, err := model.ParseNode(name)
	switch {
	case role != "" && (err != nil || role != n.Role && keep):
		p.Node, p.Hostname = name, ""
		err = model.CheckMember(name)
	case err != nil:
		err = fmt.Errorf("%w\nfor a machine of another name, give its role: --role ROLE", err)
	case role != "" && role != n.Role:
		err = fmt.Errorf("%s is of role %s, not of %s\nfor a machine that exists and keeps this name, give --hostname keep", n, n.Role, role)
	default:
		p.Node, p.Role, p.Hostname = n.String(), n.Role, n.Hostname()
		ref, err = ref.Of(n)
	}
	p.Environment = ref.String()
	return p, ref, err
}

// Checksums returns the checksums of pulley-agent by architecture, from ARCH=HEX or HEX (any architecture), and from
// programs.
func Checksums(given, programs []string) (map[string]string, error) {
	sums := map[string]string{}
	add := func(arch, sum, from string) error {
		if other, there := sums[arch]; there && other != sum {
			return fmt.Errorf("cannot use %q as the agent: there is a second one for architecture %s", from, arch)
		}
		sums[arch] = sum
		return nil
	}
	for _, text := range given {
		arch, sum, named := strings.Cut(text, "=")
		if !named {
			arch, sum = firstboot.AnyArch, text
		}
		if err := add(arch, strings.ToLower(strings.TrimPrefix(sum, "sha256:")), text); err != nil {
			return nil, err
		}
	}
	for _, file := range programs {
		arch, sum, err := checksum(file)
		if err == nil {
			err = add(arch, sum, file)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(sums) == 0 {
		return nil, nil
	}
	return sums, nil
}

// checksum reads a program for Linux.
func checksum(file string) (arch, sum string, err error) {
	text, err := bounded.ReadFile(file, 1<<30)
	if err != nil {
		return "", "", fmt.Errorf("cannot read the agent: %w", err)
	}
	program, err := elf.NewFile(bytes.NewReader(text))
	if err != nil {
		return "", "", fmt.Errorf("cannot use %s as the agent: it is not a program for Linux", file)
	}
	switch program.Machine {
	case elf.EM_X86_64:
		arch = "amd64"
	case elf.EM_AARCH64:
		arch = "arm64"
	default:
		return "", "", fmt.Errorf("cannot use %s as the agent: it is for %s, and Pulley has agents for amd64 and arm64", file, program.Machine)
	}
	digest := sha256.Sum256(text)
	return arch, hex.EncodeToString(digest[:]), nil
}
