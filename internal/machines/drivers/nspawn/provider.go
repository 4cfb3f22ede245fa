// Package nspawn is the driver of complete machines on one host: a system with its own systemd, cron and cloud-init, which
// systemd-nspawn boots from an image that is built once, on a bridge of the host.
//
// A machine is a folder of package folder, which also holds its disk (upper, over the image). Its supervisor boots it, and boots it again
// when it reboots. The machine and its mounts are in namespaces of the supervisor: when the supervisor ends, the kernel ends the machine
// and drops its mounts.
//
// The package owns the disks, the addresses in the subnet, what the supervisors do, their control groups, and the cached image.
//
// A machine that is off stays off, also after a restart of the host: a plan shows it as broken. Machines are not a security boundary
// against their own root.
//
// The package must never mount anything in the host's mount namespace, change the host's network except the ports of the bridge,
// or assign an address twice.
//
// A program that makes machines calls [MaybeInit] first in main.
package nspawn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/machines/drivers/folder"
	"pulley/userdata"
)

// Form is the form of userdata that cloud-init in the image reads.
const Form = userdata.Multipart

// Defaults of a Config.
const (
	defaultFolder = "/var/lib/pulley-machines/nspawn"
	defaultBridge = "pulley0"
)

// Config is the configuration of the machines of one fleet.
type Config struct {
	Folder string // "" is /var/lib/pulley-machines/nspawn; on a file system that takes the upper layer of an overlay
	Bridge string // "" is pulley0; made by the host's administrator
	Subnet string // part of the bridge's network for machines: "10.77.1.0/24"; "" is the bridge's complete first network
	Mark   machines.Mark
	Log    *slog.Logger // nil: nothing is logged
}

// Provider makes machines of one fleet on this host. It needs root.
type Provider struct {
	folder.Fleet
	config Config
	subnet netip.Prefix // zero: the bridge's own
}

var _ machines.Provider = (*Provider)(nil)

// New returns the driver of one fleet. It does not read the host.
func New(c Config) (*Provider, error) {
	if c.Folder == "" {
		c.Folder = defaultFolder
	}
	if c.Bridge == "" {
		c.Bridge = defaultBridge
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	p := &Provider{Fleet: folder.Fleet{Driver: environments.DriverNspawn, Root: c.Folder, Mark: c.Mark, Free: removeGroup}, config: c}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if c.Subnet != "" {
		subnet, err := netip.ParsePrefix(c.Subnet)
		if err != nil || !subnet.Addr().Is4() || subnet != subnet.Masked() || subnet.Bits() > 30 {
			return nil, fmt.Errorf("cannot use subnet %q: not an IPv4 network such as 10.77.0.0/16", c.Subnet)
		}
		p.subnet = subnet
	}
	return p, nil
}

// Create starts a machine's supervisor, which boots it.
func (p *Provider) Create(ctx context.Context, o machines.Order) (machines.Machine, error) {
	var image Image
	defer func() { _ = image.Close() }()
	return p.Fleet.Create(ctx, o, func() (err error) {
		if err := need("systemd-nspawn"); err != nil {
			return fmt.Errorf("%w: %w", machines.ErrRefused, err)
		}
		image, err = p.openImage(ctx, o.Image)
		return err
	}, func(m *folder.New) (*folder.Supervisor, any, error) {
		n, err := p.network()
		if err != nil {
			return nil, nil, err
		}
		m.Addresses = []string{n.Address.Addr().String()}
		for _, sub := range []string{"upper", "work"} { // upper is the machine's /
			dir := filepath.Join(m.Dir, sub)
			if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755)); err != nil { // whatever the umask
				return nil, nil, err
			}
		}
		s, err := launch(ctx, m, image)
		return s, handover{Image: image.Dir, Bridge: p.config.Bridge, Files: files(o, m.ID, n)}, err
	})
}

// launch starts a supervisor in the machine's own control group: in a mount namespace and a PID namespace of its own, where it waits for
// its handover. The record of the group is written before.
func launch(ctx context.Context, m *folder.New, image Image) (*folder.Supervisor, error) {
	group, bySystemd, err := groupFor(m.ID)
	if err != nil {
		return nil, err
	}
	m.Group = group
	if err := m.Record(); err != nil {
		return nil, err
	}
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID}
	if !bySystemd {
		dir, err := makeGroup(group)
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		attr.UseCgroupFD, attr.CgroupFD = true, int(dir.Fd())
	}
	var locks []*os.File
	if image.lock != nil {
		locks = append(locks, image.lock)
	}
	s, err := m.Start(argSupervise, attr, locks...)
	if err != nil || !bySystemd {
		return s, err
	}
	if m.Group, err = scope(ctx, m.ID, m.Name, s.Pid()); err != nil {
		return s, err
	}
	return s, m.Record()
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
	paths, err := filepath.Glob(filepath.Join(escapeGlob(p.Root), "*", "*", "*", folder.AboutFile))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		var a folder.About
		err := folder.ReadJSON(path, &a)
		if errors.Is(err, fs.ErrNotExist) {
			continue // just removed
		}
		if err != nil { // its address is unknown, and so no address is certainly free
			return nil, err
		}
		for _, text := range a.Addresses {
			address, err := netip.ParseAddr(text)
			if err != nil {
				return nil, fmt.Errorf("cannot read %s: %w", path, err)
			}
			used = append(used, address)
		}
	}
	return used, nil
}

func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
