package environments

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"pulley/internal/schedule"
)

// driverKeys are the keys of provider for each driver, beside `driver` and `owner`.
var driverKeys = map[string][]string{
	DriverNone:      {},
	DriverLocal:     {"folder", "agent", "interval"},
	DriverNspawn:    {"folder", "bridge", "subnet"},
	DriverExec:      {"command", "timeout"},
	DriverOpenStack: {"cloud", "region", "availability_zone", "key_name", "server_group", "security_groups", "config_drive"},
}

// Drivers returns the names of the drivers, sorted.
func Drivers() []string { return slices.Sorted(maps.Keys(driverKeys)) }

// maxTimeout limits every duration of an environment.
const maxTimeout = 24 * time.Hour

// provider reads the name of a driver, or a mapping with one.
func (s scope) provider(into *Provider) field {
	var sub []field
	f := s.field("provider", "!!str", func(n *yaml.Node, what string) {
		n = unfolded(n)
		whole, given := s.p.keys(s.p.withoutForeign(n), what, sub)
		if whole && !given["driver"] {
			s.p.problem(n, "say `driver: openstack`, or another: "+listed(Drivers()), "provider has no driver")
			*into = Provider{} // without a driver the other keys cannot be checked
		}
	})
	in := scope{s.p, s.role, s.path + "provider."}
	sub = []field{
		in.text("driver", &into.Driver), in.text("owner", &into.Owner),
		in.list("command", &into.Command), in.duration("timeout", &into.Timeout),
		in.text("folder", &into.Folder), in.text("agent", &into.Agent), in.text("interval", &into.Interval),
		in.text("bridge", &into.Bridge), in.text("subnet", &into.Subnet),
		in.text("cloud", &into.Cloud), in.text("region", &into.Region), in.text("availability_zone", &into.AvailabilityZone),
		in.text("key_name", &into.KeyName), in.text("server_group", &into.ServerGroup),
		in.list("security_groups", &into.SecurityGroups), in.flag("config_drive", &into.ConfigDrive),
	}
	f.sub = sub
	return f
}

// unfolded returns {driver: NAME} for NAME.
func unfolded(n *yaml.Node) *yaml.Node {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		return n
	}
	key := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: "driver", Line: n.Line, Column: n.Column}
	return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{key, n}, Line: n.Line, Column: n.Column}
}

// withoutForeign returns a provider without the keys of other drivers, after it reported them.
func (p *parser) withoutForeign(n *yaml.Node) *yaml.Node {
	driver := valueOf(n, "driver")
	if driver == nil {
		return n
	}
	if _, known := driverKeys[driver.Value]; !known {
		return n
	}
	own := *n
	own.Content = nil
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if flaw := foreignFlaw(driver.Value, key.Value); flaw != nil && key.Kind == yaml.ScalarNode {
			p.problem(key, flaw.Advice, "%s", flaw.Problem)
			continue
		}
		own.Content = append(own.Content, key, n.Content[i+1])
	}
	return &own
}

// foreignFlaw returns an error that names the driver of a key, if it is another driver.
func foreignFlaw(driver, key string) *Error {
	if slices.Contains(driverKeys[driver], key) {
		return nil
	}
	var others []string
	for _, other := range Drivers() {
		if slices.Contains(driverKeys[other], key) {
			others = append(others, other)
		}
	}
	if key == "owner" && driver == DriverNone {
		others = []string{"the drivers that make machines"}
	}
	if len(others) == 0 {
		return nil
	}
	e := &Error{Problem: fmt.Sprintf("provider %s has no key %s: that is a key of %s", driver, quoted(key), listed(others))}
	if own := driverKeys[driver]; len(own) > 0 {
		e.Advice = "the keys of " + driver + " are " + listed(own)
	}
	return e
}

// settings returns the keys of p that are set, in the order of the type.
func (p Provider) settings() []string {
	var keys []string
	v := reflect.ValueOf(p)
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			keys = append(keys, key)
		}
	}
	return keys
}

// checkProvider reports the problems of a provider. With pending, values that a cloud file can add may be missing.
func (c checker) checkProvider(p Provider) {
	tell := func(key, value string, flaw *Error) {
		c.flaw(spot{noRole, "provider." + key}, "provider."+key+" "+quoted(value), flaw)
	}
	driver := p.Driver
	if driver == "" {
		driver = DriverNone
	}
	if _, known := driverKeys[driver]; !known {
		flaw := &Error{Problem: "there is no such driver", Advice: "the drivers are " + listed(Drivers())}
		if near := SuggestName(driver, Drivers()); near != "" {
			flaw.Advice = "did you mean " + near + "?"
		}
		tell("driver", driver, flaw)
		return
	}
	for _, key := range p.settings() {
		if key != "driver" && (key != "owner" || driver == DriverNone) {
			if flaw := foreignFlaw(driver, key); flaw != nil {
				c.report(spot{noRole, "provider." + key}, flaw)
			}
		}
	}
	tell("owner", p.Owner, shape(p.Owner, shapes().owner, "acme-prod"))
	for i, word := range p.Command {
		if strings.ContainsRune(word, 0) || len(word) > 4096 || i == 0 && strings.TrimSpace(word) == "" {
			c.report(spot{noRole, "provider.command." + strconv.Itoa(i)}, &Error{Problem: "provider.command: " + quoted(word) + " can't be part of a command"})
		}
	}
	if len(p.Command) > 64 {
		c.report(spot{noRole, "provider.command"}, &Error{Problem: fmt.Sprintf("provider.command has %d words, at most 64 are allowed", len(p.Command))})
	}
	if driver == DriverExec && len(p.Command) == 0 && !c.pending {
		c.report(spot{noRole, "provider"}, &Error{Problem: "provider exec has no command", Advice: "say which program makes machines: `command: [/usr/local/bin/my-cloud]`"})
	}
	c.flaw(spot{noRole, "provider.timeout"}, "provider.timeout", timeFlaw(p.Timeout))
	tell("folder", p.Folder, pathFlaw(p.Folder, shapes().path, "/var/lib/pulley-machines"))
	tell("agent", p.Agent, pathFlaw(p.Agent, shapes().path, "/usr/local/bin/pulley-agent"))
	if p.Interval != "" {
		if _, err := schedule.Parse(p.Interval); err != nil {
			tell("interval", p.Interval, &Error{Problem: err.Error(), Advice: "write it like @every 10s, or */5 * * * *"})
		}
	}
	tell("bridge", p.Bridge, shape(p.Bridge, shapes().bridge, "pulley0, of at most 15 bytes"))
	if p.Subnet != "" {
		tell("subnet", p.Subnet, subnetFlaw(p.Subnet))
	}
	for _, word := range []struct{ key, value string }{
		{"cloud", p.Cloud}, {"region", p.Region}, {"availability_zone", p.AvailabilityZone}, {"key_name", p.KeyName}, {"server_group", p.ServerGroup},
	} {
		tell(word.key, word.value, wordFlaw(word.value))
	}
	for i, group := range p.SecurityGroups {
		tell("security_groups."+strconv.Itoa(i), group, wordFlaw(group))
	}
}

// subnetFlaw requires an IPv4 network with space for a gateway and machines.
func subnetFlaw(text string) *Error {
	const like = "write it like 10.77.0.0/16"
	n, err := netip.ParsePrefix(text)
	switch {
	case err != nil || !n.Addr().Is4():
		return &Error{Problem: "it is no IPv4 network", Advice: like}
	case n.Masked() != n:
		return &Error{Problem: "it has bits behind its length", Advice: "did you mean " + n.Masked().String() + "?"}
	case n.Bits() < 8 || n.Bits() > 29:
		return &Error{Problem: fmt.Sprintf("its length is %d, from 8 to 29 is possible", n.Bits()), Advice: like}
	}
	return nil
}

func timeFlaw(d Duration) *Error {
	if d < 0 || time.Duration(d) > maxTimeout {
		return &Error{Problem: fmt.Sprintf("it is %s, at most %s are allowed", d, Duration(maxTimeout))}
	}
	return nil
}

// Equal reports whether two providers are the same.
func (p Provider) Equal(q Provider) bool {
	said := func(p Provider) string {
		if p.Driver == "" {
			p.Driver = DriverNone
		}
		b, err := json.Marshal(p) // the stored form: nil and empty lists are equal
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	return said(p) == said(q)
}
