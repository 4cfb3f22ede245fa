package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"pulley/internal/machines"
)

// DefaultTimeout is how long one request may take.
const DefaultTimeout = 5 * time.Minute

// Config is what an environment says of its command, and what the command is told and given.
type Config struct {
	Command []string      // program and arguments
	Timeout time.Duration // of one request; 0 is DefaultTimeout
	Mark    machines.Mark
	Environ []string     // "NAME=value"; what is not listed in environ.go is left out
	Log     *slog.Logger // gets what the command prints to standard error; nil: nobody does
}

// Provider asks a command, which is started for each request.
type Provider struct {
	config  Config
	program string // its path
}

var _ machines.Provider = (*Provider)(nil)

// New looks for the program. It is not started before there is a request.
func New(c Config) (*Provider, error) {
	if len(c.Command) == 0 {
		return nil, errors.New("cannot ask a command for machines: none is given\nname it as `command` of the provider")
	}
	if c.Mark.Owner == "" || c.Mark.Fleet == "" {
		return nil, fmt.Errorf("cannot ask %s for machines of the mark %q: a part of it is empty", c.Command[0], c.Mark)
	}
	program, err := exec.LookPath(c.Command[0])
	if err == nil {
		program, err = filepath.Abs(program)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot ask %s for machines: %w: %w", c.Command[0], machines.ErrRefused, err)
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Provider{config: c, program: program}, nil
}

// List asks for all machines of the fleet.
func (p *Provider) List(ctx context.Context) ([]machines.Machine, error) {
	a, err := p.ask(ctx, request{Do: doList})
	if err != nil {
		return nil, fmt.Errorf("cannot list machines: %w", err)
	}
	return a.machines, nil
}

// hostname is one label (RFC 1123, 2.1), in lower case.
var hostname = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Create asks for a machine.
func (p *Provider) Create(ctx context.Context, o machines.Order) (machines.Machine, error) {
	if !hostname.MatchString(o.Name) { // the command may be a shell script
		return machines.Machine{}, fmt.Errorf("cannot create machine %q: %w: it is no hostname of one label", o.Name, machines.ErrRefused)
	}
	a, err := p.ask(ctx, request{Do: doCreate, Machine: &ordered{o, o.Userdata}})
	if err != nil {
		return machines.Machine{}, fmt.Errorf("cannot create machine %s: %w", o.Name, err)
	}
	return a.machines[0], nil
}

// Delete asks for the end of a machine.
func (p *Provider) Delete(ctx context.Context, v machines.Ref) error {
	if !hostname.MatchString(v.Name) {
		return nil // it was never asked for
	}
	if _, err := p.ask(ctx, request{Do: doDelete, Victim: &v}); err != nil {
		return fmt.Errorf("cannot delete machine %s: %w", v.Name, err)
	}
	return nil
}

// ask runs the command for one request. Its error names the command.
func (p *Provider) ask(ctx context.Context, r request) (answer, error) {
	r.Format, r.Mark = format, mark(p.config.Mark)
	out, ended, err := p.run(ctx, r)
	if err != nil {
		return answer{}, fmt.Errorf("%s %w", p.config.Command[0], err)
	}
	a, err := r.read(out)
	var told *toldError
	switch {
	case errors.As(err, &told): // whatever it exited with
	case ended != nil:
		err = ended
	}
	if err != nil {
		return answer{}, fmt.Errorf("%s %w", p.config.Command[0], err)
	}
	return a, nil
}
