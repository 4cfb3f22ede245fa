package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"pulley/environments"
	"pulley/internal/drivers/folder"
	"pulley/internal/machines"
	"pulley/userdata"
)

// Form is the form of userdata that machines run.
const Form = userdata.Script

// Defaults of a ProviderConfig.
const (
	DefaultFolder   = "/var/lib/pulley-machines/local"
	DefaultInterval = "@every 10s"
)

// Files of a machine's folder, beside those of package folder.
const (
	userdataFile   = "userdata"   // until the first boot is over
	logFile        = "log"        // of the supervisor, the first boot and the agent
	supervisorFile = "supervisor" // locked by the supervisor, in a way that names its process
)

// about is the record of a machine.
type about struct {
	folder.About
	Flavor   string   `json:"flavor,omitempty"`
	Agent    string   `json:"agent"`
	Interval string   `json:"interval"`
	Hidden   []string `json:"hidden"` // folders of the host that the machine finds empty
}

// ProviderConfig is the configuration of machines that outlive the program.
type ProviderConfig struct {
	Folder   string // "" is DefaultFolder
	Agent    string // pulley-agent on the host, an absolute path
	Interval string // schedule of the agent's daemon; "" is DefaultInterval
	Mark     machines.Mark
}

// Provider makes the machines of one fleet. Each has a supervisor: a process that holds its Machine and outlives this program. A
// machine ends with its supervisor, also when the host is switched off, and is not started again. A Provider needs root. Its errors
// name the cause: callers name the call.
type Provider struct {
	config ProviderConfig
	fleet  folder.Fleet
}

var _ machines.Provider = (*Provider)(nil)

// NewProvider returns the driver of one fleet. It does not read the host.
func NewProvider(c ProviderConfig) (*Provider, error) {
	if c.Folder == "" {
		c.Folder = DefaultFolder
	}
	if c.Interval == "" {
		c.Interval = DefaultInterval
	}
	if !filepath.IsAbs(c.Agent) {
		return nil, fmt.Errorf("cannot run agent %q in machines: not an absolute path", c.Agent)
	}
	fleet, err := folder.NewFleet(c.Folder, c.Mark)
	return &Provider{config: c, fleet: fleet}, err
}

// List returns the machines of the fleet.
func (p *Provider) List(ctx context.Context) ([]machines.Machine, error) {
	names, err := p.fleet.Names()
	if err != nil {
		return nil, err
	}
	var all []machines.Machine
	for _, name := range names {
		m, ok, err := p.look(name)
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
func (p *Provider) look(name string) (m machines.Machine, ok bool, err error) {
	var a about
	s, ok, err := p.fleet.Look(name, &a, &a.About)
	if err != nil || !ok {
		return m, false, err
	}
	return machines.Machine{Name: name, ID: a.ID, State: s.State, Problem: s.Problem, Flavor: a.Flavor, Created: a.Created}, true, nil
}

// Create makes a machine's folder and starts its supervisor.
func (p *Provider) Create(ctx context.Context, o machines.Order) (machines.Machine, error) {
	if m, ok := p.existing(o.Name); ok { // whatever the order contains
		return m, nil
	}
	if err := p.check(o); err != nil {
		return machines.Machine{}, err
	}
	lock, err := p.fleet.Lock(ctx)
	if err != nil {
		return machines.Machine{}, err
	}
	defer lock.Close()
	if err := os.MkdirAll(p.fleet.Path(), 0o700); err != nil {
		return machines.Machine{}, err
	}
	if m, ok, err := p.look(o.Name); ok || err != nil {
		return m, err
	}
	if _, err := os.Lstat(p.fleet.Machine(o.Name)); err == nil {
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
		err = errors.New("its folder was removed")
	}
	return m, err
}

// existing returns a machine that need not be made. Create reports errors when it looks again under the lock.
func (p *Provider) existing(name string) (m machines.Machine, ok bool) {
	if !folder.Hostname.MatchString(name) || p.fleet.CheckOwner() != nil {
		return m, false
	}
	m, ok, err := p.look(name)
	return m, ok && err == nil
}

// check refuses orders that a local machine cannot fulfil. Nothing of an order is ignored.
func (p *Provider) check(o machines.Order) error {
	refused := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", machines.ErrRefused, fmt.Sprintf(format, args...))
	}
	flaw := environments.NotGiven(environments.DriverLocal, o.Flavor, o.Image, o.Networks)
	_, agentErr := exec.LookPath(p.config.Agent)
	switch {
	case !folder.Hostname.MatchString(o.Name):
		return refused("%q is not a hostname of one label", o.Name)
	case flaw != nil:
		return refused("%s\n%s", flaw.Problem, flaw.Advice)
	case os.Geteuid() != 0:
		return refused("it needs root\nrun the same command as root, for example with sudo")
	case agentErr != nil:
		return refused("the agent is not executable: %v\nset `agent` of the provider to the program that `make build` makes", agentErr)
	}
	return nil
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
	defer p.fleet.RemoveEmpty()
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
	if err := endSupervisor(ctx, p.fleet.Machine(v.Name)); err != nil {
		return err
	}
	gone, err := p.fleet.Discard(v.Name, m.ID)
	if err != nil {
		return err
	}
	return os.RemoveAll(gone)
}

// sweep removes the folders that killed programs left: they contain userdata. The caller holds the lock.
func (p *Provider) sweep() error {
	return p.fleet.Leftovers("", func(dir string, _ bool) error {
		held, err := folder.Held(filepath.Join(dir, folder.HeldFile))
		if err != nil || held { // its supervisor is about to move it to its place
			return err
		}
		return os.RemoveAll(dir)
	})
}
