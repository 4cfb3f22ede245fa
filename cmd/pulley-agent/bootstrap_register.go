package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"pulley/agent"
	"pulley/agent/host"
	"pulley/agent/node"
	"pulley/internal/cli"
	"pulley/internal/firstboot"
	"pulley/internal/nodeconfig"
	"pulley/internal/store"
)

func (b *bootstrap) registerLeft(ctx context.Context) (string, error) {
	c, err := b.known()
	if err != nil {
		return "", err
	}
	s, err := store.Open(c.Store)
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
		b.log.Warn("another machine had this name", "node", c.Identity.Node, "machine", d.Host.MachineID, "registered", d.Host.At)
	}
	return "put this machine on the list of hosts that should be alive", nil
}

// passingStore marks that etcd gave no answer.
func passingStore(err error) error {
	if errors.Is(err, agent.ErrUnreachable) {
		return firstboot.Passing(err)
	}
	return err
}

// register puts this host on the list of those that should be alive. Where etcd knows its nodes, serve does it for them. What
// is there already and says the same stays, with its time.
func (b *bootstrap) register(ctx context.Context) error {
	c, err := b.known()
	if err != nil {
		return err
	}
	if c.Joined() && len(c.Servers) > 0 {
		client, err := c.ServeClient(c.Servers)
		if err != nil {
			return err
		}
		return passingJoin(client.Register(ctx, b.machine()))
	}
	s, err := store.Open(c.Store)
	if err != nil {
		return err
	}
	err = s.Fleet.Register(ctx, c.Identity.Environment, b.host(c))
	return passingStore(errors.Join(err, s.Close()))
}

func (b *bootstrap) host(c config) agent.Host {
	name, _ := os.Hostname() // shown to people only
	return agent.Host{
		Node: c.Identity.Node, Role: c.Identity.Role, Hostname: name, Addresses: addresses(), MachineID: nodeconfig.MachineID(b.Root),
		At: b.env.Now().UTC().Truncate(time.Second), By: "bootstrap",
	}
}

func sameHost(a, b agent.Host) bool {
	return a.Node == b.Node && a.Role == b.Role && a.Hostname == b.Hostname && a.MachineID == b.MachineID &&
		slices.Equal(a.Addresses, b.Addresses)
}

// maxAddresses keeps a host's entry small on machines with an address for each container.
const maxAddresses = 8

// addresses are the machine's own global ones, in the kernel's order.
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

// scheduleLeft: a node that has a release keeps the schedule that the release gave it.
func (b *bootstrap) scheduleLeft(context.Context) (string, error) {
	c, err := b.known()
	if err != nil {
		return "", err
	}
	disk, err := agent.ReadDisk(c.StateDir())
	if err == nil {
		var state agent.State
		state, err = disk.Load()
		err = errors.Join(err, disk.Close())
		if schedule, missing := os.ReadFile(c.Crontab()); err == nil && missing == nil && len(host.AgentJobs(schedule)) > 0 && !state.LastGood.IsZero() {
			return "", nil
		}
	}
	var damaged *agent.DamagedError
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.As(err, &damaged) { // a damaged one is for the next run to put aside
		return "", err
	}
	return "run Puppet once, with a catalog that only sets up cron", nil
}

// setUpSchedule runs Puppet once, with a catalog that only sets up cron.
func (b *bootstrap) setUpSchedule(ctx context.Context) error {
	c, err := b.known()
	if err != nil {
		return err
	}
	n, err := b.setup(c).Open(ctx)
	if errors.Is(err, agent.ErrLocked) {
		return firstboot.Passing(err)
	}
	if err != nil {
		return err
	}
	return errors.Join(setUpCron(ctx, n, b.plan.Schedule), n.Close())
}

// setUpCron runs Puppet on a catalog that has cron start this agent, and nothing else.
func setUpCron(ctx context.Context, n *node.Node, schedule string) error {
	tree := filepath.Join(n.StateDir(), "bootstrap")
	if err := writeBootstrapTree(tree, schedule, n.Path); err != nil {
		return err
	}
	defer os.RemoveAll(tree) // what is left of it is written anew by the next start
	result, err := n.Puppet.Apply(ctx, agent.Job{Identity: n.Identity, ID: "bootstrap", Tree: tree})
	if err != nil {
		return err
	}
	if result.Kind != agent.Success {
		return fmt.Errorf("the first run of Puppet did not succeed: %s", cli.Clean(result.Problem.String()))
	}
	return nil
}
