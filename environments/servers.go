package environments

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"pulley/environments/settings"
	"pulley/internal/model"
)

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
			c.add(spot{noRole, "puppet.servers." + name}, "write its IP address or host name: `address: 10.0.0.1`", "server %s has no address", model.Quoted(name))
		}
	}
	if _, has := p.Servers[p.Fallback]; !has && p.Fallback != "" {
		hint := "the servers are " + listed(names)
		if near := model.SuggestName(p.Fallback, names); near != "" {
			hint = "did you mean " + near + "?"
		}
		c.add(spot{noRole, "puppet.fallback"}, hint, "puppet.fallback is %s, and there is no such server", model.Quoted(p.Fallback))
	}
	c.checkCriteria(p, names)
	c.checkExtensions()
}

// checkCriteria refuses a criterion that can choose nothing.
func (c checker) checkCriteria(p *settings.PuppetSettings, servers []string) {
	known := map[string]bool{}
	for _, name := range servers {
		for key := range p.Servers[name].Attributes {
			known[key] = true
		}
	}
	attributes := slices.Sorted(maps.Keys(known))
	for i, criterion := range p.Choose {
		at := spot{noRole, "puppet.choose." + strconv.Itoa(i)}
		switch near := model.SuggestName(criterion, attributes); {
		case slices.Contains(p.Choose[:i], criterion):
			c.add(at, "keep one of them", "puppet.choose has %s twice", model.Quoted(criterion))
		case known[criterion]:
		case near != "":
			c.add(at, "did you mean "+near+"?", "puppet.choose has %s, and no server has this attribute", model.Quoted(criterion))
		default:
			c.add(at, fmt.Sprintf("write `attributes: {%s: VALUE}` at the servers that it chooses", criterion), "puppet.choose has %s, and no server has this attribute", model.Quoted(criterion))
		}
	}
}

// withoutServers refuses settings that have no meaning without a server.
func (c checker) withoutServers(p *settings.PuppetSettings) {
	for _, of := range []struct {
		key string
		set bool
	}{
		{"choose", len(p.Choose) > 0}, {"fallback", p.Fallback != ""}, {"failover", p.Failover}, {"ca", p.CA.URL != "" || p.CA.How != "" || len(p.CA.Also) > 0},
		{"bootstrap", p.Bootstrap != ""}, {"provision", p.Provision != settings.PuppetProvision{}}, {"enforce", p.Enforce == settings.EnforceDaemon},
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
			if settings.Authorizes(name) {
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

// serviceFlaw requires the URL of a service without a path.
func serviceFlaw(text, like string) *model.Error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil:
		return &model.Error{Problem: "it is not a URL with https", Advice: "write it like " + like}
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return &model.Error{Problem: "it is not a URL without a path", Advice: "did you mean https://" + u.Host + "?"}
	}
	return nil
}
