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
	"time"

	"pulley/internal/machines"
	"pulley/userdata"
)

// Form is how machines are handed their userdata: cloud-init in the image takes it.
const Form = userdata.Multipart

// DefaultFolder is where machines are kept when nobody says otherwise.
const DefaultFolder = "/var/lib/pulley-machines/nspawn"

// DefaultBridge is the bridge that machines are on when nobody says otherwise.
const DefaultBridge = "pulley0"

// Config is what an environment says of machines, and the mark that they get.
type Config struct {
	Folder string // "" is DefaultFolder; on a file system that takes the upper layer of an overlay
	Bridge string // "" is DefaultBridge; made by the host's administrator
	Subnet string // of the bridge's network, for machines: "10.77.1.0/24"; "" is the bridge's whole first network
	Mark   machines.Mark
	Log    *slog.Logger // nil: nothing is logged
}

// Provider makes machines of one fleet on this host. It needs root.
type Provider struct {
	config Config
	subnet netip.Prefix // zero: the bridge's own
}

var _ machines.Provider = (*Provider)(nil)

// New returns the driver of one fleet. Nothing is made, and nothing of the host is looked at, until a machine is asked for.
func New(c Config) (*Provider, error) {
	p := &Provider{config: c}
	if c.Folder == "" {
		p.config.Folder = DefaultFolder
	}
	if c.Bridge == "" {
		p.config.Bridge = DefaultBridge
	}
	if c.Log == nil {
		p.config.Log = slog.New(slog.DiscardHandler)
	}
	if !filepath.IsAbs(p.config.Folder) {
		return nil, fmt.Errorf("cannot keep machines in %s: it is no absolute path", c.Folder)
	}
	if c.Mark.Owner == "" || c.Mark.Fleet == "" {
		return nil, fmt.Errorf("cannot make machines with the mark %q: a part of it is empty", c.Mark)
	}
	if c.Subnet != "" {
		subnet, err := netip.ParsePrefix(c.Subnet)
		if err != nil || !subnet.Addr().Is4() || subnet != subnet.Masked() || subnet.Bits() > 30 {
			return nil, fmt.Errorf("cannot give machines addresses of %q: it is no IPv4 network such as 10.77.0.0/16", c.Subnet)
		}
		p.subnet = subnet
	}
	return p, nil
}

// List returns the machines whose folders have the mark.
func (p *Provider) List(ctx context.Context) ([]machines.Machine, error) {
	entries, err := os.ReadDir(p.place())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w\nrun the same command as root, for example with sudo", err)
	}
	if err == nil {
		err = p.owned()
	}
	if err != nil {
		return nil, cannot("list machines", err)
	}
	var machines []machines.Machine
	for _, e := range entries {
		if ctx.Err() != nil {
			return nil, cannot("list machines", ctx.Err())
		}
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		_, m, ok, err := p.look(e.Name())
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // which is one that was deleted just now
			return nil, cannot("list machines", err)
		}
		if ok {
			machines = append(machines, m)
		}
	}
	return machines, nil
}

// Create makes a machine's folder and starts its keeper, which boots it.
func (p *Provider) Create(ctx context.Context, o machines.Order) (machines.Machine, error) {
	m, err := p.create(ctx, o)
	if err != nil {
		return machines.Machine{}, cannot("make machine "+o.Name, err)
	}
	return m, nil
}

func (p *Provider) create(ctx context.Context, o machines.Order) (machines.Machine, error) {
	if m, ok := p.there(o.Name); ok { // whatever the rest of the order says
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
	if err := p.makeFolder(); err != nil {
		return machines.Machine{}, err
	}
	lock, err := p.lock(ctx)
	if err != nil {
		return machines.Machine{}, err
	}
	defer lock.Close()
	if err := os.MkdirAll(p.place(), 0o700); err != nil {
		return machines.Machine{}, err
	}
	if err := p.sweep(ctx, o.Name); err != nil {
		return machines.Machine{}, err
	}
	if _, m, ok, err := p.look(o.Name); ok || err != nil {
		return m, err
	}
	if _, err := os.Lstat(filepath.Join(p.place(), o.Name)); err == nil {
		return machines.Machine{}, &machines.TakenError{Name: o.Name}
	}
	n, err := p.network()
	if err != nil {
		return machines.Machine{}, err
	}
	id := newID()
	a := about{ID: id, Mark: p.config.Mark, Name: o.Name, Node: o.Node, Role: o.Role, Image: o.Image, Labels: o.Labels, Network: n, Created: time.Now().UTC().Truncate(time.Second)}
	if err := p.start(ctx, image, a, files(o, id, n)); err != nil {
		return machines.Machine{}, err
	}
	_, m, _, err := p.look(o.Name)
	return m, err
}

// there returns a machine that needs not be made. Errors are for those who look again under the lock.
func (p *Provider) there(name string) (m machines.Machine, ok bool) {
	if !namePattern.MatchString(name) || p.owned() != nil {
		return m, false
	}
	_, m, ok, err := p.look(name)
	return m, ok && err == nil
}

// network is that of a new machine. The caller holds the lock, and makes the machine under it.
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

// Delete ends a machine as a power cut does, and removes its folder.
func (p *Provider) Delete(ctx context.Context, v machines.Ref) error {
	if err := p.delete(ctx, v); err != nil {
		return cannot("delete machine "+v.Name, err)
	}
	return nil
}

func (p *Provider) delete(ctx context.Context, v machines.Ref) error {
	if !namePattern.MatchString(v.Name) {
		return nil // there can be none
	}
	if _, err := os.Lstat(p.place()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := p.owned(); err != nil {
		return err
	}
	lock, err := p.lock(ctx)
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
	dir := filepath.Join(p.place(), v.Name)
	// Repeated: a process that is born while the group is killed may get away once.
	err = poll(ctx, func() (bool, error) {
		alive, err := held(filepath.Join(dir, lockName))
		if err == nil && alive {
			err = killGroup(a.Group)
		}
		return !alive, err
	})
	if err != nil {
		return err
	}
	gone := filepath.Join(p.place(), gonePrefix+v.Name+"."+a.ID)
	if err := os.Rename(dir, gone); err != nil { // from here on it is no machine, whatever happens
		return err
	}
	_ = lock.Close() // its disk is large, and nobody's any more
	if err := p.erase(ctx, gone); err != nil {
		return err
	}
	p.tidy(ctx)
	return nil
}

// newID names one machine for ever: the 40 bits that its network interface has room for.
func newID() string {
	b := make([]byte, 5)
	rand.Read(b)
	return fmt.Sprintf("%x", b)
}

func cannot(what string, err error) error { return fmt.Errorf("cannot %s: %w", what, err) }
