// Package drivers opens the provider of an environment. It knows all drivers, and must never take a provider's settings out of
// etcd: they name programs, folders and accounts of this machine.
package drivers

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/machines/drivers/command"
	"pulley/internal/machines/drivers/openstack"
	"pulley/userdata"
)

// Provider is an opened provider. All is zero where an environment has none.
type Provider struct {
	machines.Provider
	Form  userdata.Form // of the userdata that its machines take
	Place string        // where its machines are: the same words for the same machines, on every operator's machine
}

// Opener opens providers on one machine.
type Opener struct {
	Getenv func(string) string
	Log    *slog.Logger
}

// errNone is that an environment has no provider.
var errNone = errors.New("the environment has no `provider:`")

// Open opens the provider of an environment for its fleet of an owner: the environment's own, else that of the installation. Before
// the first apply there is no installation, and no machine.
func (o Opener) Open(ctx context.Context, e *environments.Environment, installation string) (Provider, error) {
	owner := cmp.Or(e.Provider.Owner, installation)
	if e.Driver() == environments.DriverNone || owner == "" {
		return Provider{}, nil
	}
	p, err := o.OpenMark(ctx, e, machines.Mark{Owner: owner, Fleet: e.Ref().String()})
	p.Place = o.place(e.Provider) + " owner " + owner
	return p, err
}

// OpenMark opens the provider of an environment for the machines of a mark.
func (o Opener) OpenMark(ctx context.Context, e *environments.Environment, mark machines.Mark) (p Provider, err error) {
	s := e.Provider
	switch s.Driver {
	case "", environments.DriverNone:
		err = errNone
	case environments.DriverExec:
		p.Form = userdata.Multipart
		p.Provider, err = command.New(command.Config{Command: s.Command, Timeout: time.Duration(s.Timeout), Mark: mark, Environ: os.Environ(), Log: o.Log})
	case environments.DriverLocal, environments.DriverNspawn:
		p, err = o.openHere(s, mark)
	case environments.DriverOpenStack:
		p.Form = userdata.Multipart
		p.Provider, err = openstack.New(ctx, openstack.Config{Provider: s, Mark: mark})
	default:
		err = fmt.Errorf("there is no driver %q", s.Driver)
	}
	if err != nil {
		return Provider{}, fmt.Errorf("cannot open the provider of %s: %w", e.Ref(), err)
	}
	return p, nil
}

func (o Opener) place(p environments.Provider) string {
	where := p.Driver
	switch p.Driver {
	case environments.DriverExec:
		where += " " + strings.Join(p.Command, " ")
	case environments.DriverLocal, environments.DriverNspawn:
		where += " " + cmp.Or(p.Folder, "the usual folder") + " of machine " + thisMachine()
	case environments.DriverOpenStack:
		where += " cloud " + cmp.Or(p.Cloud, o.Getenv("OS_CLOUD"), o.Getenv("OS_AUTH_URL"))
		if region := cmp.Or(p.Region, o.Getenv("OS_REGION_NAME")); region != "" {
			where += " region " + region
		}
	}
	return where
}

// thisMachine is the machine's id by systemd, else its name.
func thisMachine() string {
	if b, err := os.ReadFile("/etc/machine-id"); err == nil && len(bytes.TrimSpace(b)) > 0 {
		return string(bytes.TrimSpace(b))
	}
	name, err := os.Hostname()
	if err != nil {
		return "without a name"
	}
	return name
}

// UseFile sets the provider of a stored environment to the one of its file, which must be the same. file is where the file belongs.
func UseFile(e *environments.Environment, fromFile *environments.Provider, file string) error {
	switch {
	case e.Driver() == environments.DriverNone:
		return nil
	case fromFile == nil:
		return fmt.Errorf("cannot manage the machines of %s: only etcd has its provider (%s), and Pulley runs no program that etcd names\nuse the environment's file, or a folder with %s", e.Ref(), e.Driver(), file)
	case !e.Provider.Equal(*fromFile):
		return fmt.Errorf("cannot manage the machines of %s: its file has another provider than the stored environment\napply the file first, or use the applied one", e.Ref())
	}
	e.Provider = *fromFile
	return nil
}
