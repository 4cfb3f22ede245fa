package nspawn

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pulley/internal/machines"
)

// Two machines must not get the same address.
func TestAddressesAreUnique(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(8, 29).Draw(t, "bits of the bridge's network")
		link := netip.PrefixFrom(netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "bridge"))), bits)
		first := link.Masked().Addr().As4()
		extra := rapid.IntRange(max(bits, 24), 30).Draw(t, "bits of the subnet")
		if extra < 32 && rapid.Bool().Draw(t, "in the middle") {
			first[3] |= byte(rapid.IntRange(0, 255).Draw(t, "where")) & byte(1<<(32-bits)-1)
		}
		b := bridge{own: link, taken: []netip.Addr{link.Addr()}, subnet: netip.PrefixFrom(netip.AddrFrom4(first), extra).Masked()}
		used, room := []netip.Addr{}, 1<<(32-extra)
		for {
			n, err := b.assign(used)
			if err != nil {
				if !errors.Is(err, machines.ErrQuota) {
					t.Fatal(err)
				}
				break
			}
			a := n.Address.Addr()
			for _, u := range append(used, link.Addr(), link.Masked().Addr(), last(link)) {
				if a == u {
					t.Fatalf("%s is assigned, and is in use", a)
				}
			}
			if !b.subnet.Contains(a) || n.Address.Masked() != link.Masked() {
				t.Fatalf("%s is outside of %s on %s", n.Address, b.subnet, link)
			}
			used = append(used, a)
		}
		if len(used) < room-3 || len(used) > room-2 {
			t.Fatalf("%d addresses of %d were assigned", len(used), room)
		}
	})
}

// A machine without its network never joins. A gateway is set only where the host forwards.
func TestSeedHasNetwork(t *testing.T) {
	t.Parallel()
	alone := network{Address: netip.MustParsePrefix("10.77.0.3/16")}
	if got, want := alone.config(), "version: 2\nethernets:\n  host0:\n    addresses: [10.77.0.3/16]\n"; got != want {
		t.Errorf("without a gateway it is\n%s", got)
	}
	alone.Gateway, alone.Servers = netip.MustParseAddr("10.77.0.1"), []netip.Addr{netip.MustParseAddr("192.0.2.53")}
	if got := alone.config(); !strings.HasSuffix(got, "    routes:\n      - to: 0.0.0.0/0\n        via: 10.77.0.1\n") {
		t.Errorf("with a gateway it is\n%s", got)
	}
	for _, f := range files(machines.Order{Name: "compute1", Userdata: []byte("secret")}, "0a0b0c0d0e", alone) {
		switch text := string(f.Text); f.Name {
		case "etc/resolv.conf":
			if text != "nameserver 192.0.2.53\n" {
				t.Errorf("resolv.conf is %q", text)
			}
		case seedDir + "/user-data":
			if text != "secret" || f.Mode != 0o600 {
				t.Errorf("userdata is %q with mode %v", text, f.Mode)
			}
		case seedDir + "/meta-data":
			if text != "instance-id: 0a0b0c0d0e\nlocal-hostname: compute1\n" {
				t.Errorf("meta-data is %q", text)
			}
		}
	}
}

// The error of a missing bridge must contain the command that creates it.
func TestMissingBridgeErrorHasRemedy(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"no-such-bridge": "ip link add no-such-bridge address 02:70:75:6c:6c:65 type bridge && ip address add 10.9.255.254/16 dev no-such-bridge && ip link set no-such-bridge up",
		"lo":             "network interface lo is not a bridge",
	} {
		_, err := openBridge(name, netip.MustParsePrefix("10.9.0.0/16"))
		if !errors.Is(err, machines.ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
