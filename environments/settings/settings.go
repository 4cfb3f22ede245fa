// Package settings has what an environment says of Puppet: its servers and the choice among them, and which of Puppet's settings Pulley
// sets itself. It must never read the environment file: package environments does.
package settings

import (
	"cmp"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"pulley/internal/model"
	"pulley/internal/stablehash"
)

// PuppetSettings are the settings of Puppet on all nodes, read by the agent (internal/puppet), as Trusted. Those of Puppet servers
// concern nodes whose release names an environment of a server (docs/puppet-server.md).
type PuppetSettings struct {
	Reports   []string `json:"reports,omitempty" form:"processor" like:"http" help:"Puppet's report processors, which receive the report of each run."`
	ReportURL string   `json:"reporturl,omitempty" form:"url" like:"https://dashboard.example/reports" help:"URL to which the report processor http sends reports."`

	VolatileFacts []string `json:"volatile_facts,omitempty" form:"fact" like:"mymodule.counter" help:"Facts that nodes do not publish, beside those that Pulley leaves out: names with dots; * is any name."`

	Servers   map[string]PuppetServer `json:"servers,omitempty" form:"server" help:"Existing Puppet servers by name."`
	Choose    []string                `json:"choose,omitempty" form:"export" like:"region" help:"Attributes of the node, or published facts, in this order. The first one whose value a server has chooses the server. Without it, nodes are spread over all servers."`
	Fallback  string                  `json:"fallback,omitempty" form:"server" like:"eu1" help:"Server of the nodes that choose leaves without one. Without it, they run nothing."`
	Failover  bool                    `json:"failover,omitempty" help:"Whether a node tries the other servers when its own does not answer."`
	CA        PuppetCA                `json:"ca,omitzero" help:"The CA of the Puppet servers."`
	Bootstrap string                  `json:"bootstrap,omitempty" form:"puppetenvironment" like:"bootstrap" help:"Environment of the server for the first run of a new machine. Without it, there is no such run."`
	Settings  map[string]string       `json:"settings,omitempty" form:"setting" like:"strict_variables=true" help:"Further settings of Puppet for all runs, and for the machine's puppet.conf beside a Puppet server."`
	Enforce   string                  `json:"enforce,omitempty" form:"enforce" like:"off" help:"off: ticks run Puppet only for what they are ordered. daemon: Puppet's own daemon runs on the nodes, and Pulley never runs Puppet there. Without it, the agent enforces."`
	Provision PuppetProvision         `json:"provision,omitzero" help:"Which new machines are provisioned into the servers, and how many at a time."`
	PuppetDB  string                  `json:"puppetdb,omitempty" form:"httpsurl" like:"https://puppetdb.example:8081" help:"PuppetDB in which removed nodes are deactivated."`
}

// PuppetServer is one existing Puppet server.
type PuppetServer struct {
	Address    string            `json:"address" form:"address" like:"10.0.0.1" help:"IP address or host name."`
	Port       int               `json:"port,omitempty" form:"port" help:"TCP port (default: 8140)."`
	Name       string            `json:"name,omitempty" form:"hostname" like:"puppet.example.com" help:"Name in the server's certificate (default: the address; puppet for an IP address)."`
	Attributes map[string]string `json:"attributes,omitempty" form:"export" like:"region=eu" help:"Values of the criteria in choose."`
}

// PuppetCA is the CA that signs the certificates of the servers and their nodes.
type PuppetCA struct {
	URL  string   `json:"url,omitempty" form:"httpsurl" like:"https://10.0.0.1:8140" help:"URL of the CA service."`
	How  string   `json:"how,omitempty" form:"certificates" like:"presigned" help:"csr: a new machine makes its key, and pulley serve has its request signed. presigned: pulley serve makes both before the machine joins (default: csr)."`
	Also []string `json:"also,omitempty" form:"httpsurl" like:"https://10.0.0.2:8140" help:"Further CAs on which old certificates of a new machine's name are cleaned."`
}

// PuppetProvision is how new machines are provisioned into the servers.
type PuppetProvision struct {
	Concurrency int            `json:"concurrency,omitempty" help:"Machines at a time (default: 10)."`
	Sleeptime   model.Duration `json:"sleeptime,omitempty" like:"5s" help:"Pause before the next machine, at most 24h (default: none)."`
	Turn        model.Duration `json:"turn,omitempty" like:"2h" help:"Time of one machine, at most 24h: after it, the next one begins (default: 2h)."`
	Where       string         `json:"where,omitempty" form:"expression" like:"region == 'eu'" help:"Expression that selects the waiting machines that are provisioned, as in --where (default: all)."`
}

// HostPort returns the address and the port of the server: "10.0.0.1:8140", "[fd00::1]:8140".
func (s PuppetServer) HostPort() string {
	port := strconv.Itoa(cmp.Or(s.Port, DefaultPort))
	if strings.Contains(s.Address, ":") {
		return "[" + s.Address + "]:" + port
	}
	return s.Address + ":" + port
}

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
