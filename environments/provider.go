package environments

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"pulley/internal/model"
)

// The drivers that create machines; docs/providers.md describes each.
const (
	DriverNone      = "none"
	DriverLocal     = "local"
	DriverNspawn    = "nspawn"
	DriverExec      = "exec"
	DriverOpenStack = "openstack"
)

var driverHelp = map[string]string{
	DriverNone:      "Pulley creates no machines; plans only list the missing ones.",
	DriverLocal:     "Copy-on-write views of the machine that pulley runs on.",
	DriverNspawn:    "Complete systems in systemd-nspawn.",
	DriverExec:      "A command of the operator.",
	DriverOpenStack: "OpenStack Nova, with the settings of clouds.yaml.",
}

// drivers returns the names of the drivers, sorted.
func drivers() []string { return slices.Sorted(maps.Keys(driverHelp)) }

// Provider is the driver of an environment's machines, and its settings.
type Provider struct {
	Driver string `json:"driver,omitempty" help:"Name of the driver."` // "" is DriverNone
	Owner  string `json:"owner,omitempty" drivers:"exec local nspawn openstack" form:"owner" like:"acme-prod" help:"Identifies Pulley's own machines; the default is the id of this installation."`

	Command []string       `json:"command,omitempty" drivers:"exec" form:"command" like:"/usr/local/bin/my-cloud" help:"Program and arguments."`
	Timeout model.Duration `json:"timeout,omitempty" drivers:"exec" like:"5m" help:"Time limit of one request to the command."`

	Folder   string `json:"folder,omitempty" drivers:"local nspawn" form:"path" like:"/var/lib/pulley-machines" help:"Folder of the machines."`
	Agent    string `json:"agent,omitempty" drivers:"local" form:"path" like:"/usr/local/bin/pulley-agent" help:"pulley-agent on this machine; the default is the one beside pulley."`
	Interval string `json:"interval,omitempty" drivers:"local" form:"interval" like:"@every 10s" help:"Schedule of the agent's daemon."`
	Bridge   string `json:"bridge,omitempty" drivers:"nspawn" form:"bridge" like:"pulley0" help:"Network bridge of the machines."`
	Subnet   string `json:"subnet,omitempty" drivers:"nspawn" form:"subnet" like:"10.77.0.0/16" help:"IPv4 network of the machines' addresses."`

	Cloud            string   `json:"cloud,omitempty" drivers:"openstack" form:"word" help:"Name of the cloud in clouds.yaml."`
	Region           string   `json:"region,omitempty" drivers:"openstack" form:"word" help:"Region of the cloud."`
	AvailabilityZone string   `json:"availability_zone,omitempty" drivers:"openstack" form:"word" help:"Availability zone of the machines."`
	KeyName          string   `json:"key_name,omitempty" drivers:"openstack" form:"word" help:"Key pair of the machines."`
	ServerGroup      string   `json:"server_group,omitempty" drivers:"openstack" form:"word" help:"Name or id of the machines' server group."`
	SecurityGroups   []string `json:"security_groups,omitempty" drivers:"openstack" form:"word" like:"default" help:"Security groups of each machine."`
	ConfigDrive      bool     `json:"config_drive,omitempty" drivers:"openstack" help:"Pass userdata on a config drive."`
}

// Driver returns the driver of the environment: DriverNone if the file names none.
func (e *Environment) Driver() string { return cmp.Or(e.Provider.Driver, DriverNone) }

// Equal reports whether two providers are the same.
func (p Provider) Equal(q Provider) bool {
	p.Driver, q.Driver = cmp.Or(p.Driver, DriverNone), cmp.Or(q.Driver, DriverNone)
	tidy(fieldsOf(&p))
	tidy(fieldsOf(&q))
	return reflect.DeepEqual(p, q)
}

// driverFields returns the keys that a driver has.
func driverFields(driver string) []field {
	return slices.DeleteFunc(fieldsOf(new(Provider)), func(f field) bool {
		return f.drivers != "" && !slices.Contains(strings.Fields(f.drivers), driver)
	})
}

// provider reads the name of a driver, or a mapping with one.
func (s scope) provider(n *yaml.Node, what string, into *Provider) {
	n = unfolded(n)
	whole, given := scope{s.p, s.role, what + "."}.keys(s.p.withoutForeign(n), what, fieldsOf(into))
	if whole && !given["driver"] {
		s.p.problem(n, "add `driver: openstack`, or another driver: "+listed(drivers()), "provider has no driver")
		*into = Provider{} // without a driver the other keys cannot be checked
	}
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
	if driver == nil || !slices.Contains(drivers(), driver.Value) {
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

// foreignFlaw returns an error if a key belongs to other drivers only.
func foreignFlaw(driver, key string) *model.Error {
	f, own := find(fieldsOf(new(Provider)), key), driverFields(driver)
	if f == nil || find(own, key) != nil {
		return nil
	}
	return &model.Error{
		Problem: fmt.Sprintf("provider %s has no key %s: that is a key of %s", driver, model.Quoted(key), listed(strings.Fields(f.drivers))),
		Advice:  fmt.Sprintf("the keys of %s are %s", driver, listed(keysOf(own))),
	}
}

// checkProvider reports the problems of the provider.
func (c checker) checkProvider() {
	driver := c.Driver()
	if !slices.Contains(drivers(), driver) {
		flaw := &model.Error{Problem: "there is no such driver", Advice: "the drivers are " + listed(drivers())}
		if near := model.SuggestName(driver, drivers()); near != "" {
			flaw.Advice = "did you mean " + near + "?"
		}
		c.flaw(spot{noRole, "provider.driver"}, "provider.driver "+model.Quoted(driver), flaw)
		return
	}
	fields := fieldsOf(&c.Provider)
	for _, f := range fields {
		if flaw := foreignFlaw(driver, f.key); flaw != nil && !reflect.ValueOf(f.value).Elem().IsZero() {
			c.report(spot{noRole, "provider." + f.key}, flaw)
		}
	}
	c.checkValues(noRole, "provider.", fields)
	if n := len(c.Provider.Command); n > maxCommand {
		c.add(spot{noRole, "provider.command"}, "", "provider.command has %d words, at most %d are allowed", n, maxCommand)
	} else if n == 0 && driver == DriverExec && !c.pending {
		c.add(spot{noRole, "provider"}, "add the program that creates machines: `command: [/usr/local/bin/my-cloud]`", "provider exec has no command")
	}
}

const (
	maxCommand   = 64             // words
	maxTimeout   = 24 * time.Hour // of every duration of an environment but those below
	maxStatement = 720 * time.Hour

	minAlive, maxAlive = 15 * time.Minute, 720 * time.Hour // as in package internal/hosts
)

// subnetFlaw requires an IPv4 network with space for a gateway and machines.
func subnetFlaw(text string) *model.Error {
	const like = "write it like 10.77.0.0/16"
	n, err := netip.ParsePrefix(text)
	switch {
	case err != nil || !n.Addr().Is4():
		return &model.Error{Problem: "it is not an IPv4 network", Advice: like}
	case n.Masked() != n:
		return &model.Error{Problem: "it has bits after its prefix length", Advice: "did you mean " + n.Masked().String() + "?"}
	case n.Bits() < 8 || n.Bits() > 29:
		return &model.Error{Problem: fmt.Sprintf("its prefix length is %d, from 8 to 29 is allowed", n.Bits()), Advice: like}
	}
	return nil
}

func timeFlaw(key string, d model.Duration) *model.Error {
	limit := model.Duration(maxTimeout)
	switch key {
	case "statement", "deadline", "progress":
		limit = model.Duration(maxStatement)
	case "alive", "silence":
		if limit = model.Duration(maxAlive); d > 0 && d < model.Duration(minAlive) {
			return &model.Error{Problem: fmt.Sprintf("it is %s, at least %s are needed", d, model.Duration(minAlive)), Advice: "nodes report each 5 minutes: a shorter time would take living nodes for dead ones"}
		}
	}
	if d < 0 || d > limit {
		return &model.Error{Problem: fmt.Sprintf("it is %s, at most %s are allowed", d, limit)}
	}
	return nil
}

// symbols calls each for all symbols of roles: flavors, images and networks.
func (c checker) symbols(each func(at spot, what, symbol string, words map[string]string)) {
	for i, r := range c.Roles {
		each(spot{i, "flavor"}, "flavor", r.Flavor, c.Flavors)
		each(spot{i, "image"}, "image", r.Image, c.Images)
		for j, network := range r.Networks {
			each(spot{i, "networks." + strconv.Itoa(j)}, "network", network, c.Networks)
		}
	}
}

// checkMapped refuses symbols that are not in their table. Without a table, the symbols are the provider's own names.
func (c checker) checkMapped() {
	if c.pending || c.Driver() == DriverNone {
		return
	}
	c.symbols(func(at spot, what, symbol string, words map[string]string) {
		if _, has := words[symbol]; has || symbol == "" || len(words) == 0 {
			return
		}
		known := slices.Sorted(maps.Keys(words))
		hint := "there is " + listed(known[:min(len(known), 20)])
		if near := model.SuggestName(symbol, known); near != "" {
			hint = "did you mean " + near + "?"
		}
		c.add(at, hint, "%s %s of role %s has no entry in %ss", what, model.Quoted(symbol), model.Quoted(c.Roles[at.role].Name), what)
	})
}

// imageDebian is the only named image of nspawn machines; all others are folders.
const imageDebian = "debian"

// checkGiven refuses values that the driver does not support, in the provider's names. Only files are checked: a stored
// environment must stay readable if a driver begins to refuse a value.
func (c checker) checkGiven() {
	c.symbols(func(at spot, what, symbol string, words map[string]string) {
		word, mapped := words[symbol]
		switch {
		case symbol == "" || !mapped && len(words) > 0: // checkMapped reports a symbol without an entry
			return
		case !mapped:
			word = symbol
		}
		asked := what + " " + model.Quoted(symbol) + " of role " + model.Quoted(c.Roles[at.role].Name)
		if word != symbol {
			asked += ", which stands for " + model.Quoted(word)
		}
		flaw := notGiven(c.Driver(), what, word)
		if flaw != nil && c.Driver() == DriverLocal && what == "flavor" {
			flaw.Advice += "; `flavors: {" + symbol + ": 2G}` gives this name a size"
		}
		c.flaw(at, asked, flaw)
	})
}

// NotGiven returns the first value of an order, in the provider's names, that the driver does not support. It returns
// nil if there is none, or if only the provider knows.
func NotGiven(driver, flavor, image string, networks []string) *model.Error {
	asked := [][2]string{{"flavor", flavor}, {"image", image}}
	for _, network := range networks {
		asked = append(asked, [2]string{"network", network})
	}
	for _, a := range asked {
		if flaw := notGiven(driver, a[0], a[1]); flaw != nil && (a[1] != "" || a[0] == "network") {
			return &model.Error{Problem: a[0] + " " + model.Quoted(a[1]) + ": " + flaw.Problem, Advice: flaw.Advice}
		}
	}
	return nil
}

func notGiven(driver, what, word string) *model.Error {
	switch driver + " " + what {
	case "local flavor":
		if _, ok := LocalSize(word); !ok {
			return &model.Error{Problem: "it is not a size: the flavor of a local machine limits its disk", Advice: "write a size such as 512M or 2G, or leave out `flavor`"}
		}
	case "local image":
		return &model.Error{Problem: "a local machine is a view of the host", Advice: "leave out `image`"}
	case "local network":
		return &model.Error{Problem: "local machines share the network of the host", Advice: "leave out `networks`"}
	case "nspawn flavor":
		return &model.Error{Problem: "machines of nspawn have no flavors", Advice: "leave out `flavor`"}
	case "nspawn image":
		if word != imageDebian && !filepath.IsAbs(word) {
			return &model.Error{Problem: "nspawn has no image with this name", Advice: "use " + imageDebian + ", or the absolute path of a root folder"}
		}
	case "nspawn network":
		return &model.Error{Problem: "machines of nspawn are on the bridge that `provider` names", Advice: "leave out `networks`"}
	}
	return nil
}

// LocalSize returns how many bytes a local machine of a flavor may write; 0 is the default.
func LocalSize(flavor string) (bytes int64, ok bool) {
	if flavor == "" {
		return 0, true
	}
	digits, shift := flavor, 0
	if i := slices.Index([]byte("KMGT"), flavor[len(flavor)-1]); i >= 0 {
		digits, shift = flavor[:len(flavor)-1], 10*(i+1)
	}
	if digits == "" || digits[0] < '1' || digits[0] > '9' { // ParseInt accepts signs
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > math.MaxInt64>>shift {
		return 0, false
	}
	return n << shift, true
}
