package local

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/machines/drivers/folder"
	"pulley/userdata"
)

// Form is the form of userdata that machines run.
const Form = userdata.Script

// Defaults of a ProviderConfig.
const (
	defaultFolder   = "/var/lib/pulley-machines/local"
	defaultInterval = "@every 10s"
)

// ProviderConfig is the configuration of machines that outlive the program.
type ProviderConfig struct {
	Folder   string // "" is /var/lib/pulley-machines/local
	Agent    string // pulley-agent on the host, an absolute path
	Interval string // schedule of the agent's daemon; "" is every 10 seconds
	Mark     machines.Mark
}

// Provider makes the machines of one fleet. Each has a supervisor: a process that holds its Machine and outlives this program. A
// machine ends with its supervisor, also when the host is switched off, and is not started again. A Provider needs root.
type Provider struct {
	folder.Fleet
	config ProviderConfig
}

var _ machines.Provider = (*Provider)(nil)

// NewProvider returns the driver of one fleet. It does not read the host.
func NewProvider(c ProviderConfig) (*Provider, error) {
	if c.Folder == "" {
		c.Folder = defaultFolder
	}
	if c.Interval == "" {
		c.Interval = defaultInterval
	}
	if !filepath.IsAbs(c.Agent) {
		return nil, fmt.Errorf("cannot run agent %q in machines: not an absolute path", c.Agent)
	}
	p := &Provider{folder.Fleet{Driver: environments.DriverLocal, Root: c.Folder, Mark: c.Mark}, c}
	return p, p.Validate()
}

// handover is the input of a supervisor.
type handover struct {
	Agent    string   `json:"agent"`
	Interval string   `json:"interval"`
	Hidden   []string `json:"hidden"` // folders of the host that the machine finds empty
	Userdata []byte   `json:"userdata"`
}

// Create starts a machine's supervisor.
func (p *Provider) Create(ctx context.Context, o machines.Order) (machines.Machine, error) {
	return p.Fleet.Create(ctx, o, func() error {
		if _, err := exec.LookPath(p.config.Agent); err != nil {
			return fmt.Errorf("%w: the agent is not executable: %w\nset `agent` of the provider to the program that `make build` makes",
				machines.ErrRefused, err)
		}
		return nil
	}, func(n *folder.New) (*folder.Supervisor, any, error) {
		if err := n.Record(); err != nil {
			return nil, nil, err
		}
		s, err := n.Start(argSupervise, &unix.SysProcAttr{})
		return s, handover{p.config.Agent, p.config.Interval, append(HostState(), p.Root), o.Userdata}, err
	})
}
