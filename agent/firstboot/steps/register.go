package steps

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"time"

	"pulley/agent/nodeconfig"
	"pulley/internal/desired/control"
	"pulley/internal/firstboot"
	"pulley/internal/join"
	"pulley/internal/model"
)

func (b *member) registerLeft(ctx context.Context) (string, error) {
	c, err := b.known()
	if err != nil {
		return "", err
	}
	s, err := control.Open(c.Store)
	if err != nil {
		return "", err
	}
	d, err := s.Node.Desire(ctx, c.Identity)
	if err = errors.Join(err, s.Close()); err != nil {
		return "", passingStore(err)
	}
	if d.Host != nil && sameHost(*d.Host, b.host(c)) {
		return "", nil
	}
	if d.Host != nil && d.Host.MachineID != "" && d.Host.MachineID != nodeconfig.MachineID(b.Root) {
		b.Log.Warn("another machine had this name", "node", c.Identity.Node, "machine", d.Host.MachineID, "registered", d.Host.At)
	}
	return "add this machine to the host list", nil
}

// passingStore marks an error as temporary if etcd did not answer.
func passingStore(err error) error {
	if errors.Is(err, model.ErrUnreachable) {
		return firstboot.Passing(err)
	}
	return err
}

// register adds this host to the host list. If etcd authenticates its nodes, serve does it instead. An equal entry
// stays, with its time.
func (b *member) register(ctx context.Context) error {
	c, err := b.known()
	if err != nil {
		return err
	}
	if c.Joined() && len(c.Servers) > 0 {
		client, err := c.ServeClient(c.Servers)
		if err != nil {
			return err
		}
		err = client.Register(ctx, b.machine())
		var refused *join.RefusedError
		if errors.As(err, &refused) && refused.Reason == join.ForeignClaim { // the machine is registered without it
			b.Log.Warn("the machine is registered without a hostname or an address of another node", "err", err, "remedy", refused.Hint())
			return nil
		}
		return passingJoin(err)
	}
	s, err := control.Open(c.Store)
	if err != nil {
		return err
	}
	err = s.Node.Register(ctx, c.Identity.Environment, b.host(c))
	return passingStore(errors.Join(err, s.Close()))
}

func (b *member) host(c nodeconfig.Config) model.Host {
	name, _ := os.Hostname() // shown to people only
	return model.Host{
		Node: c.Identity.Node, Role: c.Identity.Role, Hostname: name, Addresses: addresses(), MachineID: nodeconfig.MachineID(b.Root),
		At: b.Env.Now().UTC().Truncate(time.Second), By: "bootstrap",
	}
}

func sameHost(a, b model.Host) bool {
	return a.Node == b.Node && a.Role == b.Role && a.Hostname == b.Hostname && a.MachineID == b.MachineID &&
		slices.Equal(a.Addresses, b.Addresses)
}

// maxAddresses limits a host's entry on machines with an address for each container.
const maxAddresses = 8

// addresses returns the machine's global addresses, in the kernel's order.
func addresses() []string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var found []string
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && len(found) < maxAddresses {
			found = append(found, ip.IP.String())
		}
	}
	return found
}
