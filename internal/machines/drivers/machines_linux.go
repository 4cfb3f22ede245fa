package drivers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/machines/drivers/local"
	"pulley/internal/machines/drivers/nspawn"
)

// MaybeInit returns at once, except in processes of machines of this host: they run this program under other names.
func MaybeInit() {
	local.MaybeInit()
	nspawn.MaybeInit()
}

// Process returns the host's number of the first process of a local machine.
func (o Opener) Process(e *environments.Environment, owner, machine string) (int, error) {
	if e.Driver() != environments.DriverLocal {
		return 0, fmt.Errorf("its provider is %s, not local", e.Driver())
	}
	if owner == "" {
		return 0, errors.New("no machine was created yet")
	}
	// No machine is made: the agent is only required to be an absolute path.
	p, err := local.NewProvider(local.ProviderConfig{Folder: e.Provider.Folder, Agent: "/", Mark: machines.Mark{Owner: owner, Fleet: e.Ref().String()}})
	if err != nil {
		return 0, err
	}
	return p.Process(machine)
}

// openHere opens a provider whose machines are on this host.
func (o Opener) openHere(s environments.Provider, mark machines.Mark) (p Provider, err error) {
	if s.Driver == environments.DriverNspawn {
		p.Form = nspawn.Form
		p.Provider, err = nspawn.New(nspawn.Config{Folder: s.Folder, Bridge: s.Bridge, Subnet: s.Subnet, Mark: mark, Log: o.Log})
		return p, err
	}
	agent := s.Agent
	if agent == "" {
		agent, err = besideThisProgram("pulley-agent")
	}
	if err == nil {
		p.Form = local.Form
		p.Provider, err = local.NewProvider(local.ProviderConfig{Folder: s.Folder, Agent: agent, Interval: s.Interval, Mark: mark})
	}
	return p, err
}

func besideThisProgram(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("cannot find this program: %w", err)
	}
	return filepath.Join(filepath.Dir(self), name), nil
}
