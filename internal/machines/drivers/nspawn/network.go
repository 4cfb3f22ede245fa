package nspawn

import (
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strings"

	"pulley/internal/machines"
)

// network is the network configuration of a machine.
type network struct {
	Address netip.Prefix `json:"address"`           // with the prefix length of the bridge
	Gateway netip.Addr   `json:"gateway,omitzero"`  // the bridge, where this host forwards
	Servers []netip.Addr `json:"servers,omitempty"` // name servers, where there is a gateway
}

// bridge is the host's bridge for machines.
type bridge struct {
	own      netip.Prefix // the bridge's address, in the network of machines
	subnet   netip.Prefix // of that network, for machines
	taken    []netip.Addr // all of the bridge's addresses
	forwards bool
}

// openBridge reads the configuration of the bridge, which the host's administrator makes. The zero subnet is the bridge's first
// network. The bridge needs a hardware address of its own: otherwise it has that of a port, and when that machine ends, all others
// lose the bridge for half a minute.
func openBridge(name string, subnet netip.Prefix) (bridge, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return bridge{}, fmt.Errorf("%w: bridge %s does not exist\nmake it: ip link add %[2]s address 02:70:75:6c:6c:65 type bridge && ip address add %s dev %[2]s && ip link set %[2]s up",
			machines.ErrRefused, name, exampleAddress(subnet))
	}
	if _, err := os.Stat(filepath.Join("/sys/class/net", name, "bridge")); err != nil {
		return bridge{}, fmt.Errorf("%w: network interface %s is not a bridge", machines.ErrRefused, name)
	}
	if i.Flags&net.FlagUp == 0 {
		return bridge{}, fmt.Errorf("%w: bridge %s is down\nrun: ip link set %[2]s up", machines.ErrRefused, name)
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
		return bridge{}, fmt.Errorf("%w: bridge %s has no IPv4 address whose network contains the subnet of machines\nrun: ip address add %s dev %[2]s",
			machines.ErrRefused, name, exampleAddress(subnet))
	}
	if b.subnet = subnet; !subnet.IsValid() {
		b.subnet = b.own.Masked()
	}
	on, _ := os.ReadFile(filepath.Join("/proc/sys/net/ipv4/conf", name, "forwarding"))
	b.forwards = strings.TrimSpace(string(on)) == "1"
	return b, nil
}

// assign returns the network of a machine with the lowest free address.
func (b bridge) assign(used []netip.Addr) (network, error) {
	a, ok := free(b.subnet, b.own, append(used, b.taken...))
	if !ok {
		return network{}, fmt.Errorf("%w: all addresses of %s are in use", machines.ErrQuota, b.subnet)
	}
	n := network{Address: netip.PrefixFrom(a, b.own.Bits())}
	if b.forwards {
		n.Gateway, n.Servers = b.own.Addr(), nameServers()
	}
	return n, nil
}

// free returns the lowest unused address of subnet, except the first and the last of each network.
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

// last returns the last address of an IPv4 network: its broadcast address.
func last(p netip.Prefix) netip.Addr {
	a := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		a[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(a)
}

// exampleAddress returns an address for the bridge.
func exampleAddress(subnet netip.Prefix) netip.Prefix {
	if !subnet.IsValid() {
		subnet = netip.MustParsePrefix("10.77.0.0/16")
	}
	return netip.PrefixFrom(last(subnet).Prev(), subnet.Bits())
}

// nameServers returns those of this host that machines can reach.
func nameServers() []netip.Addr {
	var servers []netip.Addr
	for _, file := range []string{"/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"} { // the first has the servers behind 127.0.0.53
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

const seedDir = "var/lib/cloud/seed/nocloud" // where cloud-init's NoCloud looks for a folder

// file is a file that is written to a machine's disk before it boots.
type file struct {
	Name string      `json:"name"`
	Mode fs.FileMode `json:"mode"`
	Text []byte      `json:"text"`
}

// files returns the files that a machine has beside its image: cloud-init's seed, and an identity of its own. Formats:
// https://docs.cloud-init.io/en/latest/reference/datasources/nocloud.html and …/network-config-format-v2.html.
func files(o machines.Order, id string, n network) []file {
	var resolv strings.Builder
	for _, s := range n.Servers {
		fmt.Fprintf(&resolv, "nameserver %s\n", s)
	}
	return []file{
		{"etc/machine-id", 0o444, nil}, // systemd writes one
		{"etc/resolv.conf", 0o644, []byte(resolv.String())},
		{path.Join(seedDir, "user-data"), 0o600, o.Userdata},
		// cloud-init runs the userdata once for each instance-id.
		{path.Join(seedDir, "meta-data"), 0o600, fmt.Appendf(nil, "instance-id: %s\nlocal-hostname: %s\n", id, o.Name)},
		{path.Join(seedDir, "network-config"), 0o600, []byte(n.config())},
	}
}

// config returns the network in cloud-init's format. systemd-nspawn calls a machine's interface host0.
func (n network) config() string {
	text := fmt.Sprintf("version: 2\nethernets:\n  host0:\n    addresses: [%s]\n", n.Address)
	if n.Gateway.IsValid() {
		text += fmt.Sprintf("    routes:\n      - to: 0.0.0.0/0\n        via: %s\n", n.Gateway)
	}
	return text
}

// put writes a file to a machine's disk. It replaces a file or link of that name, and fails where a link leads out of the disk.
func (f file) put(disk *os.Root) error {
	if err := disk.MkdirAll(path.Dir(f.Name), 0o755); err != nil {
		return err
	}
	if err := disk.RemoveAll(f.Name); err != nil {
		return err
	}
	out, err := disk.OpenFile(f.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, f.Mode)
	if err != nil {
		return err
	}
	if _, err := out.Write(f.Text); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}
