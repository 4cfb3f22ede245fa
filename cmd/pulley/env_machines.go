package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/firstboot/plans"
	"pulley/internal/machines"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
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

// beliefFlags say what of the provider's answers is believed although it looks wrong.
type beliefFlags struct{ moved, lost bool }

func (b *beliefFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&b.moved, "moved", false, "the provider is asked in another way than when machines were made (cloud, region, command, folder, owner), and these are the same machines")
	c.Flags().BoolVar(&b.lost, "lost", false, "most machines are really gone, as the provider's list says")
}

const defaultMaxRetire = 10

func (m *machineFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.BoolVarP(&m.yes, "yes", "y", false, "don't ask: for CI, after a look at the plan")
	f.IntVar(&m.maxRetire, "max-retire", defaultMaxRetire, "refuse to destroy more machines, and to remove more nodes, than this")
	f.IntVar(&m.parallel, "parallel", apply.DefaultParallel, "how many machines are worked on at a time")
	f.StringVar(&m.wait, "wait", string(apply.WaitConverged), "what new machines are waited for: converged, registered or none")
	f.DurationVar(&m.drainTimeout, "drain-timeout", apply.DefaultDrainTimeout, "how long a node's retire hooks may take until its machine is left as it is")
	f.BoolVar(&m.noDrain, "no-drain", false, "don't run the release's retire hooks on nodes before their machines are deleted")
}

func (m *machineFlags) check() error {
	switch apply.Waiting(m.wait) {
	case apply.WaitConverged, apply.WaitRegistered, apply.WaitNone:
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

// maker is who makes an environment's machines, and where that is. All is zero where they come from elsewhere.
type maker struct {
	provider machines.Provider
	form     machines.Form
	place    string
}

// maker opens what makes the machines of e, whose provider must come from a file of this machine and not out of etcd: it names
// programs, folders and accounts. The installation is what machines are known by; before the first apply there is none, and no
// machine either.
func (o *options) maker(ctx context.Context, e *environments.Environment, installation string) (maker, error) {
	owner := cmp.Or(e.Provider.Owner, installation)
	if e.Driver() == environments.DriverNone || owner == "" {
		return maker{}, nil
	}
	p, form, err := o.openProvider(ctx, e, machines.Mark{Owner: owner, Fleet: e.Ref().String()})
	return maker{p, form, o.placeOf(e.Provider, owner)}, err
}

// placeOf says where a provider's machines are: the same words for the same machines, whoever asks.
func (o *options) placeOf(p environments.Provider, owner string) string {
	where := p.Driver
	switch p.Driver {
	case environments.DriverExec:
		where += " " + strings.Join(p.Command, " ")
	case environments.DriverLocal, environments.DriverNspawn:
		where += " " + cmp.Or(p.Folder, "the usual folder") + " of machine " + thisMachine()
	case environments.DriverOpenStack:
		where += " cloud " + cmp.Or(p.Cloud, o.env.Getenv("OS_CLOUD"), o.env.Getenv("OS_AUTH_URL"))
		if region := cmp.Or(p.Region, o.env.Getenv("OS_REGION_NAME")); region != "" {
			where += " region " + region
		}
	}
	return where + " owner " + owner
}

// thisMachine is the machine's id as systemd has it, else its name.
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

// site is a fleet that this program alone applies, until close.
type site struct {
	*options
	applying *store.Applying
	applier  *apply.Applier
	want     *environments.Environment
	ctx      context.Context // ends when somebody else may apply
	place    string
	close    func() error
}

// open takes the fleet of an environment for this program, with what makes its machines. Without boot no machine is made.
func (o *options) open(ctx context.Context, s *store.Store, want *environments.Environment, boot *plans.Connection, by string) (*site, error) {
	id, err := s.Cluster.InstallationID(ctx, by)
	if err != nil {
		return nil, err
	}
	m, err := o.maker(ctx, want, id)
	if err != nil {
		return nil, err
	}
	a, err := s.Machines.BeginApply(ctx, want.Ref(), by)
	if err != nil {
		return nil, err
	}
	standing, end := a.Context(context.WithoutCancel(ctx)) // also when ctx ends first
	ctx, cancel := a.Context(ctx)
	form := m.form
	if boot == nil {
		form, boot = "", &plans.Connection{}
	}
	f, err := o.newFleet(a, want, form, boot)
	if err != nil {
		cancel()
		end()
		return nil, errors.Join(err, a.Close())
	}
	t := &site{options: o, applying: a, want: want, ctx: ctx, place: m.place, close: func() error { cancel(); end(); return a.Close() }}
	t.applier = &apply.Applier{
		Provider: m.provider, Form: m.form, Fleet: f, Ref: want.Ref(), Driver: want.Driver(), Place: m.place, By: by, Lock: standing, Now: o.env.Now, Log: slog.New(slog.DiscardHandler),
	}
	return t, nil
}

// with sets what the command line says.
func (t *site) with(m machineFlags) *site {
	t.applier.Parallel, t.applier.Wait, t.applier.DrainTimeout, t.applier.NoDrain = m.parallel, apply.Waiting(m.wait), m.drainTimeout, m.noDrain
	return t
}

// carryOut applies a plan that was agreed to, and shows how it goes.
func (t *site) carryOut(p plan.Plan, agreed []machines.Ref) (apply.Result, error) {
	f := newFollower(t.options, p)
	defer f.progress.Done()
	t.applier.Progress = f.event
	return t.applier.Apply(t.ctx, p, agreed)
}

// again plans once more, now that nobody else applies, and is an error when that is another plan than the one that was agreed to.
func (t *site) again(agreed plan.Plan, opts plan.Options) (plan.Plan, error) {
	opts.Place = t.place
	p, err := t.applier.Look(t.ctx, t.want, opts)
	if err != nil {
		return p, err
	}
	if differs := plan.Differences(agreed, p); len(differs) > 0 {
		return p, fmt.Errorf("cannot %s %s: the world changed meanwhile:\n  %s\nnothing was done; look at the new plan, and do it again", machines.Deed(p.Destroys), p.Fleet, strings.Join(differs, "\n  "))
	}
	return p, nil
}

// agree asks a person for what a plan destroys, removes and makes. What goes is agreed to by its number. The fleet is not taken
// meanwhile: a person may think for hours. look is the command that shows the same beforehand.
func (o *options) agree(ctx context.Context, s *store.Store, p plan.Plan, yes bool, most int, look string) error {
	if err := plan.CheckRetire(p, most); err != nil {
		return err
	}
	destroyed, gone := victims(p), departed(p)
	if len(destroyed)+len(gone) > 0 {
		if err := s.Access.MayRemove(ctx); err != nil {
			return err
		}
	}
	if yes {
		return nil
	}
	var question string
	if len(destroyed) > 0 {
		question = fmt.Sprintf("%s will be destroyed: %s.\n", cli.Count(len(destroyed), "machine"), strings.Join(destroyed, ", "))
	}
	if len(gone) > 0 {
		question += fmt.Sprintf("%s will leave the fleet, with no machine to destroy: %s.\n", cli.Count(len(gone), "node"), strings.Join(gone, ", "))
	}
	if n := len(destroyed) + len(gone); n > 0 {
		return o.ask(ctx, look, question+fmt.Sprintf("Type %d to go on: ", n), fmt.Sprint(n))
	}
	if made := len(p.Made()); made > 0 {
		return o.ask(ctx, look, fmt.Sprintf("%s will be made. Go on? [y/N] ", cli.Count(made, "machine")), "y", "yes")
	}
	return nil
}

func victims(p plan.Plan) (names []string) {
	for _, v := range p.Destroyed() {
		names = append(names, cli.Clean(v.String()))
	}
	return names
}

// departed are the nodes that leave the fleet although no machine of theirs is destroyed.
func departed(p plan.Plan) (nodes []string) {
	for _, step := range p.Steps {
		if step.Removes && len(step.Victims) == 0 {
			nodes = append(nodes, cli.Clean(step.Node))
		}
	}
	return nodes
}

// maxReply bounds what is read of an answer.
const maxReply = 64

// ask puts a question, and is an error unless one of the answers is given before ctx ends; look shows beforehand what is asked.
func (o *options) ask(ctx context.Context, look, question string, yes ...string) error {
	fmt.Fprint(o.env.Stdout, question)
	type line struct {
		text string
		err  error
	}
	read := make(chan line, 1) // what is typed too late is left to a program that ends
	go func() {
		text, err := readLine(o.env.Stdin)
		read <- line{text, err}
	}()
	var reply string
	var err error
	select {
	case <-ctx.Done():
		fmt.Fprintln(o.env.Stdout)
		return errors.New("cannot go on: it was interrupted, and nothing was done")
	case l := <-read:
		reply, err = l.text, l.err
	}
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
	return fmt.Errorf("cannot go on: nobody agreed to it, and nothing was done\nwhere nobody can answer, look at %s first and give --yes", look)
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
