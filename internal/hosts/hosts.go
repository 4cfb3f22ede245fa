// Package hosts turns the host list into data for Puppet: the value pulley::hosts, with the nodes that a role sees. The
// agent writes it for its runs, and operators see the same with `pulley data lookup`. The package must never pass a text on
// that a node chose freely: the hostname derives from the name, addresses are parsed and are of no other node, exported facts have plain characters only, and an entry
// with another name or role is left out.
package hosts

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"pulley/internal/model"
	"pulley/internal/pattern"
)

// Key is the name of the value in Hiera.
const Key = "pulley::hosts"

// Node is one entry of the host list, with parsed values.
type Node struct {
	Name      string       `json:"name"`
	Role      string       `json:"role"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Checked   netip.Addr   `json:"checked,omitzero"` // the one of Addresses that serve saw the node use
	At        time.Time    `json:"at,omitzero"`      // of the registration

	Exports map[string]json.RawMessage `json:"exports,omitempty"` // by path
	Signed  int64                      `json:"signed,omitempty"`  // etcd's revision of the last sign of life; 0: there is none

	Changed []time.Time `json:"changed,omitempty"` // the changes within the last hour, see Calm
	Until   time.Time   `json:"until,omitzero"`    // newer values are kept back until then
}

// The forms of names. They contain no % and no quotes: Hiera interpolates data, and scripts use the names. Their lengths are
// checked apart: repetition counts would make each start of the agent slower.
var (
	nodeForm = pattern.Lazy(`^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$`)
	roleForm = pattern.Lazy(`^[a-z][a-z0-9-]*$`)
)

const (
	maxName  = 253
	maxLabel = 63 // also of a role's name
)

func isRole(s string) bool { return len(s) <= maxLabel && roleForm().MatchString(s) }

// hostname returns the hostname of a node by its name: web1-t42 of web1_t42.
func hostname(node string) string { return strings.ReplaceAll(node, "_", "-") }

// maxAddresses limits the addresses of one node: a machine may list any number.
const maxAddresses = 64

// Parse returns the entries of a host list with their exported facts as nodes, ordered by role and name: web2 precedes web10. left counts the
// entries without a usable name or role. Other unusable values are left out of their node.
func Parse(list map[string]model.Host, exports map[string]model.Export) (nodes []Node, left int) {
	nodes = make([]Node, 0, len(list))
	for name, h := range list {
		if h.Node != name || len(name) > maxName || !nodeForm().MatchString(name) || !isRole(h.Role) {
			left++
			continue
		}
		n := Node{Name: name, Role: h.Role, At: h.At, Exports: usable(exports[name])}
		if e := exports[name]; e.Alive > 0 {
			n.Signed = e.Revision
		}
		for _, text := range h.Addresses[:min(len(h.Addresses), maxAddresses)] {
			if a, usable := parseAddress(text); usable && !slices.Contains(n.Addresses, a) {
				n.Addresses = append(n.Addresses, a)
			}
		}
		if a, usable := parseAddress(h.Checked); usable && slices.Contains(n.Addresses, a) {
			n.Checked = a
		}
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b Node) int {
		return cmp.Or(strings.Compare(a.Role, b.Role), naturally(a.Name, b.Name))
	})
	return nodes, left
}

// naturally compares names as people count: a number at the same place decides by its value.
func naturally(a, b string) int {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	for i > 0 && isDigit(a[i-1]) {
		i--
	}
	x, y := digits(a[i:]), digits(b[i:])
	if x != "" && y != "" {
		if order := cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y)); order != 0 {
			return order
		}
	}
	return strings.Compare(a, b)
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func digits(s string) string {
	end := 0
	for end < len(s) && isDigit(s[end]) {
		end++
	}
	return s[:end]
}

// Shown is a node in pulley::hosts.
type Shown struct {
	Name     string `json:"name"`
	Hostname string `json:"hostname"`          // by the name; the machine's own may differ
	Address  string `json:"address,omitempty"` // the main one
	Checked  bool   `json:"checked,omitempty"` // serve saw the node use it
	Flavor   string `json:"flavor,omitempty"`
	Alive    *bool  `json:"alive,omitempty"` // nil without hosts.alive

	Attributes map[string]string `json:"attributes,omitempty"` // of the environment file

	Facts map[string]json.RawMessage `json:"facts,omitempty"` // exported ones, by path
}

// Shown returns the nodes that a view shows, by role. Each role that it names is present, also without nodes. With hosts.alive,
// alive judges each node.
func (v *View) Shown(nodes []Node, alive func(Node) bool) map[string][]Shown {
	all := map[string][]Shown{}
	for _, role := range v.Roles {
		all[role] = []Shown{}
	}
	of := v.owners(nodes)
	for _, n := range nodes {
		if !v.All && !slices.Contains(v.Roles, n.Role) {
			continue
		}
		s := Shown{Name: n.Name, Hostname: hostname(n.Name), Flavor: v.Flavors[n.Role], Attributes: v.hierarchy.Attributes(n.Role, n.Name, v.stack)}
		if v.Alive > 0 {
			is := alive(n)
			s.Alive = &is
		}
		if main, has := v.main(n, of); has {
			s.Address, s.Checked = main.String(), main == n.Checked
		}
		for _, path := range v.Exports {
			if value, has := n.Exports[path]; has {
				if s.Facts == nil {
					s.Facts = make(map[string]json.RawMessage, len(v.Exports))
				}
				s.Facts[path] = value
			}
		}
		all[n.Role] = append(all[n.Role], s)
	}
	return all
}

// owners returns the node of each address: the one that serve saw use it, else the one that lists it, else the one that has it in its fact, and
// "" if several do: an address of several nodes is the main one of none. If serve saw several use it, the last one has it: DHCP gave it to another machine.
func (v *View) owners(nodes []Node) map[netip.Addr]string {
	of, seen := make(map[netip.Addr]string, len(nodes)), make(map[netip.Addr]time.Time, len(nodes))
	add := func(to map[netip.Addr]string, a netip.Addr, node string) {
		if _, has := to[a]; has {
			node = ""
		}
		to[a] = node
	}
	for _, n := range nodes {
		for _, a := range n.Addresses {
			add(of, a, n.Name)
		}
	}
	facts := map[netip.Addr]string{}
	for _, n := range nodes {
		if a, has := v.fact(n); has {
			if _, listed := of[a]; !listed {
				add(facts, a, n.Name)
			}
		}
	}
	maps.Copy(of, facts)
	for _, n := range nodes {
		if at, has := seen[n.Checked]; n.Checked.IsValid() && (!has || n.At.After(at)) {
			of[n.Checked], seen[n.Checked] = n.Name, n.At
		}
	}
	return of
}

// Shared returns the addresses that several nodes have, and that are the main one of none of them, although the view would show it of a node. It
// names all nodes that have each.
func (v *View) Shared(nodes []Node) map[string][]string {
	of, shared := v.owners(nodes), map[string][]string{}
	for _, n := range nodes {
		if !v.All && !slices.Contains(v.Roles, n.Role) {
			continue
		}
		main, has := v.main(n, nil)
		if owner, listed := of[main]; has && listed && owner == "" {
			shared[main.String()] = nil
		}
	}
	for _, n := range nodes {
		addresses := n.Addresses
		if a, has := v.fact(n); has && !slices.Contains(addresses, a) {
			addresses = append(slices.Clone(addresses), a)
		}
		for _, a := range addresses {
			if names, is := shared[a.String()]; is {
				shared[a.String()] = append(names, n.Name)
			}
		}
	}
	return shared
}

// main returns the address that the fact of the view has, if the networks contain it; else the first address in the first
// network that has one. Without networks, it is the first address. The address that serve saw the node use precedes the others. No
// address of another node by of is one.
func (v *View) main(n Node, of map[netip.Addr]string) (netip.Addr, bool) {
	own := func(a netip.Addr) bool {
		name, has := of[a]
		return !has || name == n.Name
	}
	if a, has := v.fact(n); has && own(a) {
		return a, true
	}
	addresses := n.Addresses
	if n.Checked.IsValid() {
		addresses = append([]netip.Addr{n.Checked}, addresses...)
	}
	addresses = slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return !own(a) })
	for _, network := range v.Networks {
		if i := slices.IndexFunc(addresses, network.Contains); i >= 0 {
			return addresses[i], true
		}
	}
	if len(v.Networks) > 0 || len(addresses) == 0 {
		return netip.Addr{}, false
	}
	return addresses[0], true
}

// fact returns the address in the fact of the view, if the networks contain it.
func (v *View) fact(n Node) (netip.Addr, bool) {
	var text string
	if v.AddressFact == "" || json.Unmarshal(n.Exports[v.AddressFact], &text) != nil {
		return netip.Addr{}, false
	}
	a, usable := parseAddress(text)
	return a, usable && (len(v.Networks) == 0 || slices.ContainsFunc(v.Networks, holds(a)))
}

func holds(a netip.Addr) func(netip.Prefix) bool {
	return func(network netip.Prefix) bool { return network.Contains(a) }
}

func parseAddress(text string) (a netip.Addr, usable bool) {
	a, err := netip.ParseAddr(text)
	return a.Unmap(), err == nil && a.Zone() == "" && a.Unmap().IsGlobalUnicast()
}

// Owned returns the node of each address that no other node can register: the main one, by settings of an environment file, and the one
// that serve saw the node use.
func Owned(list map[string]model.Host, exports map[string]model.Export, networks []string, fact string) map[netip.Addr]string {
	v, owned := View{AddressFact: fact}, make(map[netip.Addr]string, len(list))
	for _, text := range networks {
		if n, err := netip.ParsePrefix(text); err == nil { // the file was checked
			v.Networks = append(v.Networks, n)
		}
	}
	nodes, _ := Parse(list, exports)
	of := v.owners(nodes)
	for _, n := range nodes {
		if a, has := v.main(n, of); has {
			owned[a] = n.Name
		}
		if of[n.Checked] == n.Name {
			owned[n.Checked] = n.Name
		}
	}
	return owned
}

// Document returns the data file with pulley::hosts, as JSON. The same nodes have the same bytes.
func (v *View) Document(nodes []Node, alive func(Node) bool) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	err := enc.Encode(map[string]map[string][]Shown{Key: v.Shown(nodes, alive)})
	return out.Bytes(), err
}

// Difference is what changed between two files, by role. Executables in hosts.d/ receive it.
type Difference struct {
	Change  string             `json:"change"` // names the difference: a hook that was killed receives the same one again
	Added   map[string][]Shown `json:"added"`
	Removed map[string][]Shown `json:"removed"`
	Changed map[string][]Shown `json:"changed"` // the new values
}

// Compare returns the difference between two documents; before may be nil.
func Compare(before, after []byte) (Difference, error) {
	d := Difference{Added: map[string][]Shown{}, Removed: map[string][]Shown{}, Changed: map[string][]Shown{}}
	old, err := read(before)
	if err != nil {
		return d, err
	}
	now, err := read(after)
	if err != nil {
		return d, err
	}
	for _, role := range slices.Sorted(maps.Keys(now)) {
		had := byName(old[role])
		for _, n := range now[role] {
			switch o, has := had[n.Name]; {
			case !has:
				d.Added[role] = append(d.Added[role], n)
			case !o.equal(n):
				d.Changed[role] = append(d.Changed[role], n)
			}
		}
	}
	for _, role := range slices.Sorted(maps.Keys(old)) {
		has := byName(now[role])
		for _, n := range old[role] {
			if _, stays := has[n.Name]; !stays {
				d.Removed[role] = append(d.Removed[role], n)
			}
		}
	}
	return d, nil
}

// IsZero reports whether nothing changed.
func (d Difference) IsZero() bool { return len(d.Added)+len(d.Removed)+len(d.Changed) == 0 }

func (s Shown) equal(o Shown) bool {
	return s.Name == o.Name && s.Hostname == o.Hostname && s.Address == o.Address && s.Checked == o.Checked && s.Flavor == o.Flavor &&
		maps.Equal(s.Attributes, o.Attributes) && (s.Alive == nil) == (o.Alive == nil) && (s.Alive == nil || *s.Alive == *o.Alive) &&
		maps.EqualFunc(s.Facts, o.Facts, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) // both from files with the same indents
}

func read(document []byte) (map[string][]Shown, error) {
	var of map[string]map[string][]Shown
	if document == nil {
		return nil, nil
	}
	err := json.Unmarshal(document, &of)
	return of[Key], err
}

func byName(nodes []Shown) map[string]Shown {
	all := make(map[string]Shown, len(nodes))
	for _, n := range nodes {
		all[n.Name] = n
	}
	return all
}
