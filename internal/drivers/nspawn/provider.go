package nspawn

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"pulley/environments"
	"pulley/internal/drivers/folder"
	"pulley/internal/machines"
	"pulley/userdata"
)

// Form is the form of userdata that cloud-init in the image reads.
const Form = userdata.Multipart

// Defaults of a Config.
const (
	DefaultFolder = "/var/lib/pulley-machines/nspawn"
	DefaultBridge = "pulley0"
)

const consoleFile = "console" // of all boots, in a machine's folder

// about is the record of a machine.
type about struct {
	folder.About
	Image   string  `json:"image,omitempty"`
	Network network `json:"network"`
	Group   string  `json:"group"` // of all its processes, below the root of control groups
}

// Config is the configuration of the machines of one fleet.
type Config struct {
	Folder string // "" is DefaultFolder; on a file system that takes the upper layer of an overlay
	Bridge string // "" is DefaultBridge; made by the host's administrator
	Subnet string // part of the bridge's network for machines: "10.77.1.0/24"; "" is the bridge's whole first network
	Mark   machines.Mark
	Log    *slog.Logger // nil: nothing is logged
}

// Provider makes machines of one fleet on this host. It needs root. Its errors name the cause: callers name the call.
type Provider struct {
	config Config
	fleet  folder.Fleet
	subnet netip.Prefix // zero: the bridge's own
}

var _ machines.Provider = (*Provider)(nil)

// New returns the driver of one fleet. It does not read the host.
func New(c Config) (*Provider, error) {
	if c.Folder == "" {
		c.Folder = DefaultFolder
	}
	if c.Bridge == "" {
		c.Bridge = DefaultBridge
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	fleet, err := folder.NewFleet(c.Folder, c.Mark)
	if err != nil {
		return nil, err
	}
	p := &Provider{config: c, fleet: fleet}
	if c.Subnet != "" {
		subnet, err := netip.ParsePrefix(c.Subnet)
		if err != nil || !subnet.Addr().Is4() || subnet != subnet.Masked() || subnet.Bits() > 30 {
			return nil, fmt.Errorf("cannot use subnet %q: not an IPv4 network such as 10.77.0.0/16", c.Subnet)
		}
		p.subnet = subnet
	}
	return p, nil
}

// List returns the machines of the fleet.
func (p *Provider) List(ctx context.Context) ([]machines.Machine, error) {
	names, err := p.fleet.Names()
	if err != nil {
		return nil, err
	}
	var all []machines.Machine
	for _, name := range names {
		_, m, ok, err := p.look(name)
		if err := errors.Join(ctx.Err(), err); err != nil {
			return nil, err
		}
		if ok {
			all = append(all, m)
		}
	}
	return all, nil
}

// look returns the machine of a folder. ok is false where the folder is no machine of the fleet.
func (p *Provider) look(name string) (a about, m machines.Machine, ok bool, err error) {
	s, ok, err := p.fleet.Look(name, &a, &a.About)
	if err != nil || !ok {
		return about{}, m, false, err
	}
	return a, machines.Machine{Name: name, ID: a.ID, State: s.State, Problem: s.Problem, Image: a.Image,
		Addresses: []string{a.Network.Address.Addr().String()}, Created: a.Created}, true, nil
}

// Create makes a machine's folder and starts its supervisor, which boots it.
func (p *Provider) Create(ctx context.Context, o machines.Order) (machines.Machine, error) {
	if m, ok := p.existing(o.Name); ok { // whatever the order contains
		return m, nil
	}
	if err := check(o); err != nil {
		return machines.Machine{}, err
	}
	image, err := p.openImage(ctx, o.Image)
	if err != nil {
		return machines.Machine{}, err
	}
	defer image.Close()
	lock, err := p.fleet.Lock(ctx)
	if err != nil {
		return machines.Machine{}, err
	}
	defer lock.Close()
	if err := os.MkdirAll(p.fleet.Path(), 0o700); err != nil {
		return machines.Machine{}, err
	}
	if err := p.sweep(ctx, o.Name); err != nil {
		return machines.Machine{}, err
	}
	if _, m, ok, err := p.look(o.Name); ok || err != nil {
		return m, err
	}
	if _, err := os.Lstat(p.fleet.Machine(o.Name)); err == nil {
		return machines.Machine{}, &machines.TakenError{Name: o.Name}
	}
	n, err := p.network()
	if err != nil {
		return machines.Machine{}, err
	}
	a := about{About: folder.NewAbout(newID(), p.config.Mark, o), Image: o.Image, Network: n}
	if err := p.start(ctx, image, a, files(o, a.ID, n)); err != nil {
		return machines.Machine{}, err
	}
	_, m, _, err := p.look(o.Name)
	return m, err
}

// existing returns a machine that need not be made. Create reports errors when it looks again under the lock.
func (p *Provider) existing(name string) (m machines.Machine, ok bool) {
	if !folder.Hostname.MatchString(name) || p.fleet.CheckOwner() != nil {
		return m, false
	}
	_, m, ok, err := p.look(name)
	return m, ok && err == nil
}

// check refuses orders that a machine here cannot fulfil. Nothing of an order is ignored.
func check(o machines.Order) error {
	flaw := environments.NotGiven(environments.DriverNspawn, o.Flavor, o.Image, o.Networks)
	switch {
	case !folder.Hostname.MatchString(o.Name):
		return fmt.Errorf("%w: %q is not a hostname of one label", machines.ErrRefused, o.Name)
	case flaw != nil:
		return fmt.Errorf("%w: %s\n%s", machines.ErrRefused, flaw.Problem, flaw.Advice)
	case os.Geteuid() != 0:
		return fmt.Errorf("%w: it needs root\nrun the same command as root, for example with sudo", machines.ErrRefused)
	}
	if err := need("systemd-nspawn"); err != nil {
		return fmt.Errorf("%w: %w", machines.ErrRefused, err)
	}
	return nil
}

// openImage opens the image that a machine boots from. The build of Debian's continues when ctx ends.
func (p *Provider) openImage(ctx context.Context, name string) (Image, error) {
	if filepath.IsAbs(name) {
		if info, err := os.Stat(filepath.Join(name, "usr")); err != nil || !info.IsDir() {
			return Image{}, fmt.Errorf("%w: image %s is not a root file system: it has no /usr", machines.ErrRefused, name)
		}
		return Image{Dir: name}, nil
	}
	type opened struct {
		Image
		err error
	}
	done := make(chan opened, 1)
	go func() {
		i, err := OpenImage(context.WithoutCancel(ctx), p.config.Log)
		done <- opened{i, err}
	}()
	select {
	case o := <-done:
		return o.Image, o.err
	case <-ctx.Done():
		go func() { o := <-done; _ = o.Close() }()
		return Image{}, fmt.Errorf("the image is not ready yet: %w", ctx.Err())
	}
}

// network returns the network of a new machine. The caller holds the lock until the machine has its folder.
func (p *Provider) network() (network, error) {
	b, err := openBridge(p.config.Bridge, p.subnet)
	if err != nil {
		return network{}, err
	}
	used, err := p.addresses()
	if err != nil {
		return network{}, err
	}
	return b.assign(used)
}

// addresses returns the addresses of all machines of all fleets in the folder. The caller holds the lock.
func (p *Provider) addresses() ([]netip.Addr, error) {
	var used []netip.Addr
	paths, err := filepath.Glob(filepath.Join(escapeGlob(p.fleet.Root), "*", "*", "*", folder.AboutFile))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		var a about
		err := folder.ReadJSON(path, &a)
		if errors.Is(err, fs.ErrNotExist) {
			continue // just removed
		}
		if err != nil { // its address is unknown, and so no address is certainly free
			return nil, err
		}
		used = append(used, a.Network.Address.Addr())
	}
	return used, nil
}

func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// Delete ends a machine as a power cut does, and removes its folder.
func (p *Provider) Delete(ctx context.Context, v machines.Ref) error {
	if !folder.Hostname.MatchString(v.Name) {
		return nil // Create refuses the name
	}
	if _, err := os.Lstat(p.fleet.Path()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := p.fleet.Lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := p.sweep(ctx, v.Name); err != nil {
		return err
	}
	a, _, ok, err := p.look(v.Name)
	if err != nil {
		return err
	}
	if !ok || v.ID != "" && v.ID != a.ID {
		return nil
	}
	// Repeated: a process that starts while the group is killed may escape once.
	err = folder.Poll(ctx, func() (bool, error) {
		held, err := folder.Held(filepath.Join(p.fleet.Machine(v.Name), folder.HeldFile))
		if err == nil && held {
			err = killGroup(a.Group)
		}
		return !held, err
	})
	if err != nil {
		return err
	}
	gone, err := p.fleet.Discard(v.Name, a.ID)
	if err != nil {
		return err
	}
	_ = lock.Close() // the removal of its large disk needs no lock
	if err := p.erase(ctx, gone); err != nil {
		return err
	}
	if lock, err := p.fleet.Lock(ctx); err == nil {
		p.fleet.RemoveEmpty()
		_ = lock.Close()
	}
	return nil
}

// sweep removes the folders that killed programs left. It waits for a new machine of that name: its supervisor finishes it without
// the program that started it. The caller holds the lock.
func (p *Provider) sweep(ctx context.Context, name string) error {
	return p.fleet.Leftovers(name, func(dir string, isNew bool) error {
		held := false
		err := folder.Poll(ctx, func() (_ bool, err error) {
			held, err = folder.Held(filepath.Join(dir, folder.HeldFile))
			return !held || !isNew, err
		})
		if err != nil || held {
			return err
		}
		return p.erase(ctx, dir)
	})
}

// erase removes a folder without a supervisor, and its control group. When ctx ends first, the next sweep removes the rest.
func (p *Provider) erase(ctx context.Context, dir string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var a about
	if err := folder.ReadJSON(filepath.Join(dir, folder.AboutFile), &a); err == nil && a.Group != "" {
		if err := removeGroup(ctx, a.Group); err != nil {
			return err
		}
	}
	done := make(chan error, 1)
	go func() { done <- os.RemoveAll(dir) }() // a whole system takes a while
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("cannot wait until %s is removed: %w", dir, ctx.Err())
	}
}

// newID returns a new ID of 40 bits, which the name of a network interface has room for.
func newID() string {
	b := make([]byte, 5)
	rand.Read(b)
	return fmt.Sprintf("%x", b)
}
