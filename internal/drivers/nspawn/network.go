package nspawn

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"pulley/internal/machines"
)

// network is what a machine is told of the network that it is on.
type network struct {
	Address netip.Prefix `json:"address"`           // with the bridge's own length: all on the bridge reach each other
	Gateway netip.Addr   `json:"gateway,omitzero"`  // the bridge, where this host forwards
	Servers []netip.Addr `json:"servers,omitempty"` // of names; without a way out they would only cost time
}

// bridge is what this host has of the bridge that machines are on.
type bridge struct {
	own      netip.Prefix // the bridge's address, of whose network machines are
	subnet   netip.Prefix // of that network, for machines
	taken    []netip.Addr // all of the bridge's addresses
	forwards bool
}

// openBridge looks at the bridge, which must be there: which network is this host's, its administrator decides. The zero
// subnet stands for the bridge's first network. A bridge is made with a hardware address: else it has one of its ports', and
// when that machine ends, all others lose the bridge for half a minute.
func openBridge(name string, subnet netip.Prefix) (bridge, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return bridge{}, fmt.Errorf("%w: there is no bridge %s\nmake it: ip link add %[2]s address 02:70:75:6c:6c:65 type bridge && ip address add %s dev %[2]s && ip link set %[2]s up",
			machines.ErrRefused, name, exampleAddress(subnet))
	}
	if _, err := os.Stat(filepath.Join("/sys/class/net", name, "bridge")); err != nil {
		return bridge{}, fmt.Errorf("%w: network interface %s is no bridge", machines.ErrRefused, name)
	}
	if i.Flags&net.FlagUp == 0 {
		return bridge{}, fmt.Errorf("%w: bridge %s is down\nmake it work: ip link set %[2]s up", machines.ErrRefused, name)
	}
	addresses, err := i.Addrs()
	if err != nil {
		return bridge{}, fmt.Errorf("cannot read the addresses of bridge %s: %w", name, err)
	}
	var b bridge
	for _, a := range addresses {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || !p.Addr().Is4() {
			continue
		}
		b.taken = append(b.taken, p.Addr())
		if !b.own.IsValid() && (!subnet.IsValid() || p.Contains(subnet.Addr()) && p.Bits() <= subnet.Bits()) {
			b.own = p
		}
	}
	if !b.own.IsValid() {
		return bridge{}, fmt.Errorf("%w: bridge %s has no IPv4 address whose network has room for the subnet of machines\ngive it one: ip address add %s dev %[2]s",
			machines.ErrRefused, name, exampleAddress(subnet))
	}
	if b.subnet = subnet; !subnet.IsValid() {
		b.subnet = b.own.Masked()
	}
	on, _ := os.ReadFile(filepath.Join("/proc/sys/net/ipv4/conf", name, "forwarding"))
	b.forwards = strings.TrimSpace(string(on)) == "1"
	return b, nil
}

// assign is the network of a machine that is to have the first address that nobody has.
func (b bridge) assign(used []netip.Addr) (network, error) {
	a, ok := free(b.subnet, b.own, append(used, b.taken...))
	if !ok {
		return network{}, fmt.Errorf("%w: all addresses of %s are given to machines", machines.ErrQuota, b.subnet)
	}
	n := network{Address: netip.PrefixFrom(a, b.own.Bits())}
	if b.forwards {
		n.Gateway, n.Servers = b.own.Addr(), nameServers()
	}
	return n, nil
}

// free returns the lowest address of subnet that is not used, and neither the first nor the last of a network.
func free(subnet, link netip.Prefix, used []netip.Addr) (netip.Addr, bool) {
	taken := map[netip.Addr]bool{}
	for _, a := range used {
		taken[a] = true
	}
	for _, p := range []netip.Prefix{subnet, link} {
		taken[p.Masked().Addr()], taken[last(p)] = true, true
	}
	for a := subnet.Masked().Addr(); a.IsValid() && subnet.Contains(a); a = a.Next() {
		if !taken[a] {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// last is the last address of an IPv4 network: its broadcast address.
func last(p netip.Prefix) netip.Addr {
	a := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		a[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(a)
}

// exampleAddress is one that the bridge could have.
func exampleAddress(subnet netip.Prefix) netip.Prefix {
	if !subnet.IsValid() {
		subnet = netip.MustParsePrefix("10.77.0.0/16")
	}
	return netip.PrefixFrom(last(subnet).Prev(), subnet.Bits())
}

// nameServers are those of this host that a machine can reach, too.
func nameServers() []netip.Addr {
	var servers []netip.Addr
	for _, file := range []string{"/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"} { // the first has what is behind 127.0.0.53
		text, _ := os.ReadFile(file)
		for line := range strings.Lines(string(text)) {
			word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			a, err := netip.ParseAddr(strings.TrimSpace(rest))
			if word == "nameserver" && err == nil && a.Is4() && !a.IsLoopback() {
				servers = append(servers, a)
			}
		}
		if servers != nil {
			break
		}
	}
	return servers
}
