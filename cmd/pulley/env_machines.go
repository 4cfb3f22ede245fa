package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/provision"
	"pulley/internal/store"
)

// machineFlags say how an environment's machines are made and retired.
type machineFlags struct {
	yes          bool
	maxRetire    int
	parallel     int
	wait         string
	drainTimeout time.Duration
	noDrain      bool
}

const defaultMaxRetire = 10

func (m *machineFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.BoolVarP(&m.yes, "yes", "y", false, "don't ask: for CI, after a look at the plan")
	f.IntVar(&m.maxRetire, "max-retire", defaultMaxRetire, "refuse to destroy more machines than this")
	f.IntVar(&m.parallel, "parallel", provision.DefaultParallel, "how many machines are worked on at a time")
	f.StringVar(&m.wait, "wait", string(provision.WaitConverged), "what new machines are waited for: converged, registered or none")
	f.DurationVar(&m.drainTimeout, "drain-timeout", provision.DefaultDrainTimeout, "how long a node's retire hooks may take until its machine is left as it is")
	f.BoolVar(&m.noDrain, "no-drain", false, "don't run the release's retire hooks on nodes before their machines are deleted")
}

func (m *machineFlags) check() error {
	switch provision.Waiting(m.wait) {
	case provision.WaitConverged, provision.WaitRegistered, provision.WaitNone:
	default:
		return cli.Usagef("cannot wait for %q: --wait takes converged, registered or none", m.wait)
	}
	switch {
	case m.parallel < 1:
		return cli.Usagef("cannot work on %d machines at a time: give --parallel at least 1", m.parallel)
	case m.maxRetire < 0:
		return cli.Usagef("cannot destroy at most %d machines: give --max-retire 0 or more", m.maxRetire)
	case m.drainTimeout <= 0:
		return cli.Usagef("cannot drain nodes in %s: give --drain-timeout a time, as in 10m, or --no-drain", m.drainTimeout)
	}
	return nil
}

// maker is who makes an environment's machines. Both are zero where they come from elsewhere.
type maker struct {
	provider provision.Provider
	form     provision.Form
}

// maker opens what makes the machines of e. The owner is what they are known by; before the first apply there is none, and no
// machine either.
func (o *options) maker(ctx context.Context, e *environments.Environment, installation string) (maker, error) {
	if e.Provider.Driver == "" || e.Provider.Driver == environments.DriverNone {
		return maker{}, nil
	}
	owner := e.Provider.Owner
	if owner == "" {
		owner = installation
	}
	if owner == "" {
		return maker{}, nil
	}
	p, form, err := o.openProvider(ctx, e, provision.Mark{Owner: owner, Fleet: e.Ref().String()})
	return maker{p, form}, err
}

// site is a fleet that this program alone applies, until close.
type site struct {
	*options
	applying *store.Applying
	applier  *provision.Applier
	want     *environments.Environment
	ctx      context.Context // ends when somebody else may apply
	close    func() error
}

// open takes the fleet of an environment for this program, with what makes its machines. Without boot no machine is made.
func (o *options) open(ctx context.Context, s *store.Store, want *environments.Environment, boot *bootDefaults, by string) (*site, error) {
	id, err := s.InstallationID(ctx, by)
	if err != nil {
		return nil, err
	}
	m, err := o.maker(ctx, want, id)
	if err != nil {
		return nil, err
	}
	a, err := s.BeginApply(ctx, want.Ref(), by)
	if err != nil {
		return nil, err
	}
	ctx, cancel := a.Context(ctx)
	form := m.form
	if boot == nil {
		form, boot = "", &bootDefaults{}
	}
	f, err := o.newFleet(s, a, want, form, boot)
	if err != nil {
		cancel()
		return nil, errors.Join(err, a.Close())
	}
	driver := want.Provider.Driver
	if driver == "" {
		driver = environments.DriverNone
	}
	t := &site{options: o, applying: a, want: want, ctx: ctx, close: func() error { cancel(); return a.Close() }}
	t.applier = &provision.Applier{
		Provider: m.provider, Form: m.form, Fleet: f, Ref: want.Ref(), Driver: driver, By: by, Now: o.env.Now, Log: slog.New(slog.DiscardHandler),
	}
	return t, nil
}

// with sets what the command line says.
func (t *site) with(m machineFlags) *site {
	t.applier.Parallel, t.applier.Wait, t.applier.DrainTimeout, t.applier.NoDrain = m.parallel, provision.Waiting(m.wait), m.drainTimeout, m.noDrain
	return t
}

// carryOut applies a plan that was agreed to, and shows how it goes.
func (t *site) carryOut(p provision.Plan) (provision.Result, error) {
	f := newFollower(t.options, p)
	defer f.progress.Done()
	t.applier.Progress = f.event
	return t.applier.Apply(t.ctx, p, p.Destroyed())
}

// agree asks a person for what a plan destroys and makes. What is destroyed is agreed to by its number.
func (t *site) agree(ctx context.Context, s *store.Store, p provision.Plan, m machineFlags, most int) error {
	if err := provision.CheckRetire(p, most); err != nil {
		return err
	}
	removes := 0
	for _, step := range p.Steps {
		if step.Removes {
			removes++
		}
	}
	destroyed := len(p.Destroyed())
	if removes > 0 || destroyed > 0 {
		if err := s.MayRemove(ctx); err != nil {
			return err
		}
	}
	switch {
	case m.yes:
		return nil
	case destroyed > 0:
		return t.ask(fmt.Sprintf("%s will be destroyed: %s.\nType %d to go on: ", cli.Count(destroyed, "machine"), victims(p), destroyed), fmt.Sprint(destroyed))
	case removes > 0:
		return t.ask(fmt.Sprintf("%s will leave the fleet. Type %d to go on: ", cli.Count(removes, "node"), removes), fmt.Sprint(removes))
	}
	if made := len(p.Made()); made > 0 {
		return t.ask(fmt.Sprintf("%s will be made. Go on? [y/N] ", cli.Count(made, "machine")), "y", "yes")
	}
	return nil
}

func victims(p provision.Plan) string {
	var names []string
	for _, v := range p.Destroyed() {
		names = append(names, cli.Clean(v.String()))
	}
	return strings.Join(names, ", ")
}

// maxReply bounds what is read of an answer.
const maxReply = 64

// ask puts a question, and is an error unless one of the answers is given.
func (o *options) ask(question string, yes ...string) error {
	fmt.Fprint(o.env.Stdout, question)
	reply, err := readLine(o.env.Stdin)
	if !o.env.Terminal || reply == "" {
		fmt.Fprintln(o.env.Stdout) // nobody typed one
	}
	if err != nil {
		return fmt.Errorf("cannot read the answer: %w\nnothing was done", err)
	}
	for _, answer := range yes {
		if strings.EqualFold(reply, answer) {
			return nil
		}
	}
	return errors.New("cannot go on: nobody agreed to it, and nothing was done\nwhere nobody can answer, look at `pulley env plan` first and give --yes")
}

// readLine reads one line, byte by byte: what follows it is not ours.
func readLine(r io.Reader) (string, error) {
	var line []byte
	for one := make([]byte, 1); len(line) < maxReply; {
		n, err := r.Read(one)
		if n > 0 && one[0] == '\n' {
			break
		}
		line = append(line, one[:n]...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
	}
	return strings.TrimSpace(string(line)), nil
}
