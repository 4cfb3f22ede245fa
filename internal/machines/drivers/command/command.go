// Package command makes machines by a command of the user: a program that reads one request as JSON and prints one answer as JSON.
// docs/providers.md has the contract.
//
// It owns the format of requests and answers, and the process of one request. It must never use a part of an answer of which
// another part is wrong, never pass more of this program's environment than the listed variables, and never leave a process of a
// request running.
package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"time"

	"pulley/internal/machines"
)

// defaultTimeout is how long one request may take.
const defaultTimeout = 5 * time.Minute

// Config is the configuration of a command.
type Config struct {
	Command []string      // program and arguments
	Timeout time.Duration // of one request; 0 is five minutes
	Mark    machines.Mark
	Environ []string     // "NAME=value"; only the variables of environ are passed on
	Log     *slog.Logger // gets the standard error of the command; may be nil
}

// Provider runs a command for each request. Its errors name the command and the cause: callers name the call.
type Provider struct {
	config  Config
	program string // its path
}

var _ machines.Provider = (*Provider)(nil)

// New looks for the program, and does not start it.
func New(c Config) (*Provider, error) {
	if len(c.Command) == 0 {
		return nil, errors.New("cannot run the provider's command: none is set\nset `command` of the provider")
	}
	if c.Mark.Owner == "" || c.Mark.Fleet == "" {
		return nil, fmt.Errorf("cannot run %s for the mark %q: a part is empty", c.Command[0], c.Mark)
	}
	program, err := exec.LookPath(c.Command[0])
	if err == nil {
		program, err = filepath.Abs(program)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot run %s: %w: %w", c.Command[0], machines.ErrRefused, err)
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Provider{config: c, program: program}, nil
}

// List returns the machines of the fleet.
func (p *Provider) List(ctx context.Context) ([]machines.Machine, error) {
	a, err := p.ask(ctx, request{Do: doList})
	return a.machines, err
}

// Create orders a machine.
func (p *Provider) Create(ctx context.Context, o machines.Order) (machines.Machine, error) {
	if !machines.Hostname.MatchString(o.Name) { // the command may be a shell script
		return machines.Machine{}, fmt.Errorf("%w: %q is not a hostname of one label", machines.ErrRefused, o.Name)
	}
	a, err := p.ask(ctx, request{Do: doCreate, Machine: ordered{o, o.Userdata}, name: o.Name})
	if err != nil {
		return machines.Machine{}, err
	}
	return a.machines[0], nil
}

// Delete deletes a machine.
func (p *Provider) Delete(ctx context.Context, v machines.Ref) error {
	if !machines.Hostname.MatchString(v.Name) {
		return nil // Create refuses the name
	}
	_, err := p.ask(ctx, request{Do: doDelete, Machine: v, name: v.Name})
	return err
}

// ask runs the command for one request. Its error names the command.
func (p *Provider) ask(ctx context.Context, r request) (answer, error) {
	r.Format, r.Mark = format, mark(p.config.Mark)
	out, ended, err := p.run(ctx, r)
	if err != nil {
		return answer{}, fmt.Errorf("%s %w", p.config.Command[0], err)
	}
	a, err := r.read(out)
	var reported *reportedError
	switch {
	case errors.As(err, &reported): // whatever the exit code
	case ended != nil:
		err = ended
	}
	if err != nil {
		return answer{}, fmt.Errorf("%s %w", p.config.Command[0], err)
	}
	return a, nil
}
