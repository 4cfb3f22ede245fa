package environments

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"pulley/internal/stablehash"
)

// The values of PuppetSettings.Enforce and of PuppetCA.How.
const (
	EnforceOff    = "off"
	EnforceDaemon = "daemon"

	CertificatesByCSR = "csr"
	CertificatesMade  = "presigned"
)

// DefaultPort is the TCP port of a Puppet server whose entry names none.
const DefaultPort = 8140

// ParsePuppetServer reads HOST or HOST:PORT.
func ParsePuppetServer(text string) (PuppetServer, error) {
	s := PuppetServer{Address: text}
	if host, port, err := net.SplitHostPort(text); err == nil && !strings.Contains(text, "/") {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return s, &Error{Problem: fmt.Sprintf("the port of %s is not a number from 1 to %d", quoted(text), maxPort)}
		}
		s.Address, s.Port = host, int(n)
	}
	flaw := formFlaw("address", "", s.Address)
	if flaw == nil {
		return s, nil
	}
	return s, &Error{Problem: fmt.Sprintf("%s is not the address of a server: %s", quoted(text), flaw.Problem), Advice: "write it like puppet.example.com or puppet.example.com:8140"}
}

// HostPort returns the address and the port of the server: "10.0.0.1:8140", "[fd00::1]:8140".
func (s PuppetServer) HostPort() string {
	port := strconv.Itoa(cmp.Or(s.Port, DefaultPort))
	if strings.Contains(s.Address, ":") {
		return "[" + s.Address + "]:" + port
	}
	return s.Address + ":" + port
}

// hostPort returns host and port of a URL; "" for a text that is none.
func hostPort(address, port string) string {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return ""
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
}

const defaultPuppetDBPort = 8081

// Uses reports whether a URL is that of a CA or of PuppetDB in these settings.
func (p *PuppetSettings) Uses(address string) bool {
	for _, of := range []struct {
		urls []string
		port int
	}{{append([]string{p.CA.URL}, p.CA.Also...), DefaultPort}, {[]string{p.PuppetDB}, defaultPuppetDBPort}} {
		port := strconv.Itoa(of.port)
		want := hostPort(address, port)
		for _, one := range of.urls {
			if want != "" && hostPort(one, port) == want {
				return true
			}
		}
	}
	return false
}

// NameAt returns the name in the certificate of the server at a URL; "" for a URL of no server, or without a name of its own.
func (p *PuppetSettings) NameAt(address string) string {
	host := hostPort(address, strconv.Itoa(DefaultPort))
	for _, of := range p.Servers {
		if of.HostPort() == host && of.Name != "" {
			return of.Name
		}
	}
	return ""
}

// IsServer reports whether a certname is that of a server, a CA or PuppetDB of these settings: its certificate is never cleaned.
func (p *PuppetSettings) IsServer(certname string) bool {
	for _, s := range p.Servers {
		if certname == s.CertificateName() || certname == s.Address {
			return true
		}
	}
	for _, address := range append([]string{p.CA.URL, p.PuppetDB}, p.CA.Also...) {
		if u, err := url.Parse(address); err == nil && u.Hostname() != "" && u.Hostname() == certname {
			return true
		}
	}
	return certname == "puppet"
}

// IP returns the address of the server if it is an IP address.
func (s PuppetServer) IP() (netip.Addr, bool) {
	a, err := netip.ParseAddr(s.Address)
	return a, err == nil
}

// CertificateName returns the name that the server's certificate must have.
func (s PuppetServer) CertificateName() string {
	if _, numeric := s.IP(); numeric {
		return cmp.Or(s.Name, "puppet")
	}
	return cmp.Or(s.Name, s.Address)
}

// ChoiceReason is why a node has its Puppet server. It is stored and compared.
type ChoiceReason string

// The reasons of a choice.
const (
	ChoiceMatched  ChoiceReason = "matched"   // the node has the server's value of a criterion
	ChoiceSpread   ChoiceReason = "spread"    // without criteria, nodes are spread over all servers
	ChoiceFallback ChoiceReason = "fallback"  // no criterion matched
	ChoiceNoServer ChoiceReason = "no_server" // no criterion matched, and there is no fallback
	ChoiceNoFile   ChoiceReason = "no_file"   // the release has no servers for the environment

	ChoiceRelease  ChoiceReason = "release"  // the reference release names the server
	ChoiceFailover ChoiceReason = "failover" // the node's own server did not answer
)

// Choice is the Puppet server of a node. Values of criteria come from the node's attributes and facts.
type Choice struct {
	Server    string       `json:"server,omitempty"` // its name; "" without one
	Reason    ChoiceReason `json:"reason"`
	Criterion string       `json:"criterion,omitempty"` // that matched
	Value     string       `json:"value,omitempty"`     // of the criterion

	// Others are the other servers in the order in which the node tries them: those that match an earlier criterion first.
	// It is empty without failover.
	Others []string `json:"others,omitempty"`
}

// ChooseServer chooses the server of a node. value returns the node's value of a criterion: an attribute, or else a published
// fact; "" without one. The first criterion whose value a server has decides. Among several servers, a stable hash of the
// node's name decides: a further server takes nodes from the others, and no other node changes its server.
func (p *PuppetSettings) ChooseServer(node string, value func(criterion string) string) Choice {
	if len(p.Servers) == 0 {
		return Choice{Reason: ChoiceNoFile}
	}
	values := make([]string, len(p.Choose))
	for i, criterion := range p.Choose {
		values[i] = value(criterion)
	}
	rank := func(name string) int { // the first criterion that matches
		for i, criterion := range p.Choose {
			if values[i] != "" && p.Servers[name].Attributes[criterion] == values[i] {
				return i
			}
		}
		if len(p.Choose) > 0 && name != p.Fallback {
			return len(p.Choose) + 1
		}
		return len(p.Choose)
	}
	order := slices.SortedFunc(maps.Keys(p.Servers), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(stablehash.Sum(node, a), stablehash.Sum(node, b)), cmp.Compare(a, b))
	})
	c := Choice{Server: order[0], Reason: ChoiceMatched}
	switch first := rank(order[0]); {
	case first < len(p.Choose):
		c.Criterion, c.Value = p.Choose[first], values[first]
	case len(p.Choose) == 0:
		c.Reason = ChoiceSpread
	case order[0] == p.Fallback:
		c.Reason = ChoiceFallback
	default:
		return Choice{Reason: ChoiceNoServer}
	}
	if p.Failover {
		c.Others = order[1:]
	}
	return c
}

// String describes the choice for people: `server eu1, because region is "eu"`.
func (c Choice) String() string {
	switch c.Reason {
	case ChoiceMatched:
		return fmt.Sprintf("server %s, because %s is %q", c.Server, c.Criterion, c.Value)
	case ChoiceSpread:
		return fmt.Sprintf("server %s: the nodes are spread over the servers", c.Server)
	case ChoiceFallback:
		return fmt.Sprintf("server %s: no criterion matches, and it is the fallback", c.Server)
	case ChoiceNoFile:
		return "no server: the release has no puppet.servers in the file of this environment"
	}
	return "no server: no criterion matches, and there is no fallback"
}

// checkServers checks the settings of Puppet servers together.
func (c checker) checkServers() {
	p := &c.Puppet
	if len(p.Servers) == 0 {
		c.withoutServers(p)
		return
	}
	names := slices.Sorted(maps.Keys(p.Servers))
	for _, name := range names {
		if p.Servers[name].Address == "" {
			c.add(spot{noRole, "puppet.servers." + name}, "write its IP address or host name: `address: 10.0.0.1`", "server %s has no address", quoted(name))
		}
	}
	if _, has := p.Servers[p.Fallback]; !has && p.Fallback != "" {
		hint := "the servers are " + listed(names)
		if near := SuggestName(p.Fallback, names); near != "" {
			hint = "did you mean " + near + "?"
		}
		c.add(spot{noRole, "puppet.fallback"}, hint, "puppet.fallback is %s, and there is no such server", quoted(p.Fallback))
	}
	c.checkCriteria(p, names)
	c.checkExtensions()
}

// checkCriteria refuses a criterion that can choose nothing.
func (c checker) checkCriteria(p *PuppetSettings, servers []string) {
	known := map[string]bool{}
	for _, name := range servers {
		for key := range p.Servers[name].Attributes {
			known[key] = true
		}
	}
	attributes := slices.Sorted(maps.Keys(known))
	for i, criterion := range p.Choose {
		at := spot{noRole, "puppet.choose." + strconv.Itoa(i)}
		switch near := SuggestName(criterion, attributes); {
		case slices.Contains(p.Choose[:i], criterion):
			c.add(at, "keep one of them", "puppet.choose has %s twice", quoted(criterion))
		case known[criterion]:
		case near != "":
			c.add(at, "did you mean "+near+"?", "puppet.choose has %s, and no server has this attribute", quoted(criterion))
		default:
			c.add(at, fmt.Sprintf("write `attributes: {%s: VALUE}` at the servers that it chooses", criterion), "puppet.choose has %s, and no server has this attribute", quoted(criterion))
		}
	}
}

// withoutServers refuses settings that have no meaning without a server.
func (c checker) withoutServers(p *PuppetSettings) {
	for _, of := range []struct {
		key string
		set bool
	}{
		{"choose", len(p.Choose) > 0}, {"fallback", p.Fallback != ""}, {"failover", p.Failover}, {"ca", p.CA.URL != "" || p.CA.How != "" || len(p.CA.Also) > 0},
		{"bootstrap", p.Bootstrap != ""}, {"provision", p.Provision != PuppetProvision{}}, {"enforce", p.Enforce == EnforceDaemon},
	} {
		if of.set {
			c.add(spot{noRole, "puppet." + of.key}, "write `servers: {eu1: {address: 10.0.0.1}}` beside it", "puppet.%s concerns Puppet servers, and puppet has none", of.key)
		}
	}
}

// checkExtensions refuses extensions that authorize at a Puppet server: its CA signs no request with them.
func (c checker) checkExtensions() {
	refuse := func(role int, field string, extensions map[string]string) {
		for _, name := range slices.Sorted(maps.Keys(extensions)) {
			if Authorizes(name) {
				c.add(spot{role, field + "." + name}, "grant rights in auth.conf of the server by the node's name", "%s.%s would give rights at the Puppet servers, and their CA signs no such request", field, name)
			}
		}
	}
	refuse(noRole, "trusted", c.Trusted)
	for i, r := range c.Roles {
		refuse(i, "trusted", r.Trusted)
	}
	for _, name := range slices.Sorted(maps.Keys(c.ByNode)) {
		refuse(noRole, "nodes."+name+".trusted", c.ByNode[name].Trusted)
	}
}

// Authorizes reports whether a certificate extension, by name or OID, gives rights at a Puppet server
// (https://www.puppet.com/docs/puppet/7/ssl_attributes_extensions.html).
func Authorizes(extension string) bool {
	return strings.HasPrefix(extension, "pp_auth_") || extension == "pp_authorization" || extension == "pp_cli_auth" ||
		extension == "1.3.6.1.4.1.34380.1.3" || strings.HasPrefix(extension, "1.3.6.1.4.1.34380.1.3.")
}

// addressFlaw refuses texts with digits that are no IP address, and whole URLs.
func addressFlaw(text string) *Error {
	if u, err := url.Parse(text); err == nil && u.Hostname() != "" {
		return &Error{Problem: "it is a URL", Advice: fmt.Sprintf("write `address: %s`; a port other than %d is the key port", u.Hostname(), DefaultPort)}
	}
	if ap, err := netip.ParseAddrPort(text); err == nil {
		return &Error{Problem: "it has a port", Advice: fmt.Sprintf("write `address: %s, port: %d`", ap.Addr(), ap.Port())}
	}
	host, port, withPort := strings.Cut(text, ":")
	if _, err := strconv.ParseUint(port, 10, 16); withPort && err == nil && !strings.Contains(port, ":") {
		return &Error{Problem: "it has a port", Advice: fmt.Sprintf("write `address: %s, port: %s`", host, port)}
	}
	lastLabel := text[strings.LastIndexByte(text, '.')+1:]
	_, numeric := strconv.Atoi(lastLabel)
	if !strings.Contains(text, ":") && numeric != nil {
		return nil
	}
	if a, err := netip.ParseAddr(text); err != nil || a.Zone() != "" {
		return &Error{Problem: "it is not an IP address", Advice: "write it like 10.0.0.1 or fd00::1, without a zone"}
	}
	return nil
}

// serviceFlaw requires the URL of a service without a path.
func serviceFlaw(text, like string) *Error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil:
		return &Error{Problem: "it is not a URL with https", Advice: "write it like " + like}
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return &Error{Problem: "it is not a URL without a path", Advice: "did you mean https://" + u.Host + "?"}
	}
	return nil
}
