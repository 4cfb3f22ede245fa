package settings

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"pulley/internal/model"
)

// MaxPort is the highest TCP port.
const MaxPort = 65535

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
			return s, &model.Error{Problem: fmt.Sprintf("the port of %s is not a number from 1 to %d", model.Quoted(text), MaxPort)}
		}
		s.Address, s.Port = host, int(n)
	}
	flaw := AddressFlaw(s.Address)
	switch {
	case flaw != nil:
	case s.Address == "":
		flaw = &model.Error{Problem: "it is empty"}
	case len(s.Address) > model.MaxMember:
		flaw = &model.Error{Problem: fmt.Sprintf("it is longer than %d characters", model.MaxMember)}
	case !addressForm().MatchString(s.Address):
		flaw = &model.Error{Problem: NoAddress}
	}
	if flaw == nil {
		return s, nil
	}
	return s, &model.Error{Problem: fmt.Sprintf("%s is not the address of a server: %s", model.Quoted(text), flaw.Problem), Advice: "write it like puppet.example.com or puppet.example.com:8140"}
}

// The form of an address.
const (
	AddressPattern = `^[a-z0-9:]([a-z0-9.:-]*[a-z0-9:])?$`
	NoAddress      = "it is neither an IP address nor a host name in small letters"
)

var addressForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(AddressPattern) })

// hostPort returns host and port of a URL; "" for a text that is none.
func hostPort(address, port string) string {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return ""
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
}

const defaultPuppetDBPort = 8081

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

// Authorizes reports whether a certificate extension, by name or OID, gives rights at a Puppet server
// (https://www.puppet.com/docs/puppet/7/ssl_attributes_extensions.html).
func Authorizes(extension string) bool {
	return strings.HasPrefix(extension, "pp_auth_") || extension == "pp_authorization" || extension == "pp_cli_auth" ||
		extension == "1.3.6.1.4.1.34380.1.3" || strings.HasPrefix(extension, "1.3.6.1.4.1.34380.1.3.")
}

// AddressFlaw refuses texts with digits that are no IP address, and whole URLs.
func AddressFlaw(text string) *model.Error {
	if u, err := url.Parse(text); err == nil && u.Hostname() != "" {
		return &model.Error{Problem: "it is a URL", Advice: fmt.Sprintf("write `address: %s`; a port other than %d is the key port", u.Hostname(), DefaultPort)}
	}
	if ap, err := netip.ParseAddrPort(text); err == nil {
		return &model.Error{Problem: "it has a port", Advice: fmt.Sprintf("write `address: %s, port: %d`", ap.Addr(), ap.Port())}
	}
	host, port, withPort := strings.Cut(text, ":")
	if _, err := strconv.ParseUint(port, 10, 16); withPort && err == nil && !strings.Contains(port, ":") {
		return &model.Error{Problem: "it has a port", Advice: fmt.Sprintf("write `address: %s, port: %s`", host, port)}
	}
	lastLabel := text[strings.LastIndexByte(text, '.')+1:]
	_, numeric := strconv.Atoi(lastLabel)
	if !strings.Contains(text, ":") && numeric != nil {
		return nil
	}
	if a, err := netip.ParseAddr(text); err != nil || a.Zone() != "" {
		return &model.Error{Problem: "it is not an IP address", Advice: "write it like 10.0.0.1 or fd00::1, without a zone"}
	}
	return nil
}
