package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"pulley/environments"
	"pulley/internal/drivers/command"
	"pulley/internal/drivers/local"
	"pulley/internal/drivers/nspawn"
	"pulley/internal/drivers/openstack"
	"pulley/internal/machines"
	"pulley/userdata"
)

// driver is what makes machines: how it is opened for one fleet, and how its machines are handed their userdata.
type driver struct {
	open func(context.Context, *options, environments.Provider, machines.Mark) (machines.Provider, error)
	form machines.Form
}

// drivers are all there are, by their names in environment files.
func drivers() map[string]driver {
	return map[string]driver{
		environments.DriverExec:      {openExec, userdata.Multipart},
		environments.DriverLocal:     {openLocal, local.Form},
		environments.DriverNspawn:    {openNspawn, nspawn.Form},
		environments.DriverOpenStack: {openOpenStack, userdata.Multipart},
	}
}

// errNoProvider says that an environment's machines come from elsewhere.
var errNoProvider = errors.New("its machines come from elsewhere: it has no `provider:`")

// openProvider opens who makes an environment's machines, for the fleet of a mark. Errors say what to change.
func (o *options) openProvider(ctx context.Context, e *environments.Environment, mark machines.Mark) (machines.Provider, machines.Form, error) {
	name := e.Provider.Driver
	if name == "" || name == environments.DriverNone {
		return nil, "", fmt.Errorf("cannot open the provider of %s: %w", e.Ref(), errNoProvider)
	}
	d, ok := drivers()[name]
	if !ok {
		return nil, "", fmt.Errorf("cannot open the provider of %s: there is no driver %q", e.Ref(), name)
	}
	p, err := d.open(ctx, o, e.Provider, mark)
	if err != nil {
		return nil, "", fmt.Errorf("cannot open the provider of %s: %w", e.Ref(), err)
	}
	return p, d.form, nil
}

func (o *options) driverLog() *slog.Logger { return slog.New(slog.NewTextHandler(o.env.Stderr, nil)) }

func openExec(_ context.Context, o *options, p environments.Provider, mark machines.Mark) (machines.Provider, error) {
	return command.New(command.Config{
		Command: p.Command, Timeout: time.Duration(p.Timeout), Mark: mark, Environ: os.Environ(), Log: o.driverLog(),
	})
}

func openLocal(_ context.Context, _ *options, p environments.Provider, mark machines.Mark) (machines.Provider, error) {
	agent := p.Agent
	if agent == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("cannot find this program: %w", err)
		}
		agent = filepath.Join(filepath.Dir(self), "pulley-agent")
	}
	return local.NewProvider(local.ProviderConfig{Folder: p.Folder, Agent: agent, Interval: p.Interval, Mark: mark})
}

func openNspawn(_ context.Context, o *options, p environments.Provider, mark machines.Mark) (machines.Provider, error) {
	return nspawn.New(nspawn.Config{Folder: p.Folder, Bridge: p.Bridge, Subnet: p.Subnet, Mark: mark, Log: o.driverLog()})
}

func openOpenStack(ctx context.Context, _ *options, p environments.Provider, mark machines.Mark) (machines.Provider, error) {
	return openstack.New(ctx, openstack.Config{Provider: p, Mark: mark})
}
