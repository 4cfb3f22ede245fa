package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/machines"
	"pulley/userdata"
)

// Form is how machines are handed their userdata: it is run as it is.
const Form = userdata.Script

// Defaults of a ProviderConfig.
const (
	DefaultFolder   = "/var/lib/pulley-machines/local"
	DefaultInterval = "@every 10s"
)

// ProviderConfig is what an environment says of machines that outlive the program, and the mark that they get.
type ProviderConfig struct {
	Folder   string // where they are kept; "" is DefaultFolder
	Agent    string // pulley-agent on the host, an absolute path
	Interval string // what the agent's daemon is started with; "" is DefaultInterval
	Mark     machines.Mark
}

// Provider makes machines of one fleet that live on when the program ends, each with a keeper: a process that holds its
// Machine. It needs root. A machine ends with its keeper, and so when the host is switched off; it is not started again.
type Provider struct {
	config ProviderConfig
	place  string // <folder>/<owner>/<fleet>
}

var _ machines.Provider = (*Provider)(nil)

// NewProvider returns the driver of one fleet. The host is not looked at until a machine is asked for.
func NewProvider(c ProviderConfig) (*Provider, error) {
	if c.Folder == "" {
		c.Folder = DefaultFolder
	}
	if c.Interval == "" {
		c.Interval = DefaultInterval
	}
	for _, path := range []string{c.Folder, c.Agent} {
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("cannot keep machines: %q is no absolute path", path)
		}
	}
	place := c.Folder
	for _, part := range []string{c.Mark.Owner, c.Mark.Fleet} {
		segment, err := segmentOf(part)
		if err != nil {
			return nil, fmt.Errorf("cannot keep machines of %s: %w", c.Mark, err)
		}
		place = filepath.Join(place, segment)
	}
	return &Provider{config: c, place: place}, nil
}

// List returns the machines whose folders have the mark.
func (p *Provider) List(ctx context.Context) ([]machines.Machine, error) {
	entries, err := os.ReadDir(p.place)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("cannot list machines: %w", err)
	}
	if err := p.owned(); err != nil {
		return nil, fmt.Errorf("cannot list machines: %w", err)
	}
	var machines []machines.Machine
	for _, e := range entries {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("cannot list machines: %w", ctx.Err())
		}
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		m, ok, err := p.look(e.Name())
		if err != nil {
			return nil, fmt.Errorf("cannot list machines: %w", err)
		}
		if ok {
			machines = append(machines, m)
		}
	}
	return machines, nil
}

// Create makes a machine's folder and starts its keeper.
func (p *Provider) Create(ctx context.Context, o machines.Order) (machines.Machine, error) {
	m, err := p.create(ctx, o)
	if err != nil {
		return machines.Machine{}, fmt.Errorf("cannot make machine %s: %w", o.Name, err)
	}
	return m, nil
}

func (p *Provider) create(ctx context.Context, o machines.Order) (machines.Machine, error) {
	if m, ok := p.there(o.Name); ok { // whatever the rest of the order says
		return m, nil
	}
	if err := p.check(o); err != nil {
		return machines.Machine{}, err
	}
	lock, err := p.lock(ctx)
	if err != nil {
		return machines.Machine{}, err
	}
	defer lock.Close()
	if err := os.MkdirAll(p.place, 0o700); err != nil {
		return machines.Machine{}, err
	}
	if m, ok, err := p.look(o.Name); ok || err != nil {
		return m, err
	}
	if _, err := os.Lstat(filepath.Join(p.place, o.Name)); err == nil {
		return machines.Machine{}, &machines.TakenError{Name: o.Name}
	}
	if err := p.sweep(); err != nil {
		return machines.Machine{}, err
	}
	if err := p.start(ctx, o); err != nil {
		return machines.Machine{}, err
	}
	m, ok, err := p.look(o.Name)
	if err == nil && !ok {
		err = errors.New("its folder is gone again")
	}
	return m, err
}

// there returns a machine that needs not be made. Errors are for those who look again under the lock.
func (p *Provider) there(name string) (m machines.Machine, ok bool) {
	if !hostnamePattern.MatchString(name) || p.owned() != nil {
		return m, false
	}
	m, ok, err := p.look(name)
	return m, ok && err == nil
}

// Delete ends a machine as a power cut does, and removes its folder.
func (p *Provider) Delete(ctx context.Context, v machines.Ref) error {
	if err := p.delete(ctx, v); err != nil {
		return fmt.Errorf("cannot delete machine %s: %w", v.Name, err)
	}
	return nil
}

func (p *Provider) delete(ctx context.Context, v machines.Ref) error {
	if !hostnamePattern.MatchString(v.Name) {
		return nil // there can be none
	}
	if _, err := os.Lstat(p.place); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	defer p.tidy()
	if err := p.sweep(); err != nil {
		return err
	}
	m, ok, err := p.look(v.Name)
	if err != nil {
		return err
	}
	if !ok || v.ID != "" && v.ID != m.ID {
		return nil
	}
	dir := filepath.Join(p.place, v.Name)
	if err := endKeeper(ctx, dir); err != nil {
		return err
	}
	gone := filepath.Join(p.place, gonePrefix+v.Name+"."+m.ID)
	if err := os.Rename(dir, gone); err != nil { // from here on it is no machine, whatever happens
		return err
	}
	return os.RemoveAll(gone)
}

// lock keeps two programs from making or deleting machines at once, and makes the folder of all fleets.
func (p *Provider) lock(ctx context.Context) (*os.File, error) {
	if err := os.MkdirAll(p.config.Folder, 0o700); err != nil {
		return nil, err
	}
	if err := p.owned(); err != nil {
		return nil, err
	}
	for {
		lock, err := lockFile(filepath.Join(p.config.Folder, lockName), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return lock, err
		}
		select {
		case <-time.After(keeperPoll):
		case <-ctx.Done():
			return nil, fmt.Errorf("another program makes or deletes machines in %s: %w", p.config.Folder, ctx.Err())
		}
	}
}

// owned refuses a folder in which others could put what is then taken for machines. One that is not there is nobody's.
func (p *Provider) owned() error {
	var stat unix.Stat_t
	if err := unix.Lstat(p.config.Folder, &stat); errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return &os.PathError{Op: "lstat", Path: p.config.Folder, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR || int(stat.Uid) != os.Geteuid() || stat.Mode&0o022 != 0 {
		return fmt.Errorf("%w: %s is not a folder that only its owner, this user, may write to\nname another one, or remove it", machines.ErrRefused, p.config.Folder)
	}
	return nil
}

// tidy removes the folders of a fleet and of an owner that have nothing left. The caller holds the lock, under which they are made.
func (p *Provider) tidy() {
	if os.Remove(p.place) == nil { // which fails where something is in it
		_ = os.Remove(filepath.Dir(p.place))
	}
}
