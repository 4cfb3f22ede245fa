package puppetserver

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"pulley/environments/settings"
)

// Site is the Puppet servers and the CAs of an environment file, each with a client.
type Site struct {
	CA      *Client   // nil without a CA in the file
	Also    []*Client // further CAs on which old certificates are cleaned
	Servers []Server  // by name
}

// Server is one server.
type Server struct {
	Name   string
	Client *Client
}

// Open returns clients of the servers and CAs of an environment file. It connects to none.
func Open(p *settings.PuppetSettings, own Credentials, now func() time.Time) (Site, error) {
	var s Site
	var err error
	for _, name := range slices.Sorted(maps.Keys(p.Servers)) {
		of := p.Servers[name]
		c, err := NewNamed("https://"+of.HostPort(), of.Name, own, now)
		if err != nil {
			return Site{}, fmt.Errorf("cannot use server %s: %w", name, err)
		}
		s.Servers = append(s.Servers, Server{name, c})
	}
	if p.CA.URL != "" {
		if s.CA, err = OpenCA(p, p.CA.URL, own, now); err != nil {
			return Site{}, err
		}
	}
	for _, address := range p.CA.Also {
		c, err := OpenCA(p, address, own, now)
		if err != nil {
			return Site{}, err
		}
		s.Also = append(s.Also, c)
	}
	return s, nil
}

// OpenCA returns a client of the CA at a URL. A CA on one of the servers has that server's name in its certificate.
func OpenCA(p *settings.PuppetSettings, address string, own Credentials, now func() time.Time) (*Client, error) {
	c, err := NewNamed(address, p.NameAt(address), own, now)
	if err == nil {
		c.isServer = p.IsServer
	}
	return c, err
}

// CAs returns the clients of all CAs: those that a clean must reach.
func (s Site) CAs() []*Client {
	if s.CA == nil {
		return s.Also
	}
	return append([]*Client{s.CA}, s.Also...)
}

// Close ends idle connections.
func (s Site) Close() {
	for _, c := range s.CAs() {
		c.Close()
	}
	for _, of := range s.Servers {
		of.Client.Close()
	}
}
