package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/boots"
	"pulley/internal/machines/drivers"
	"pulley/internal/machines/plan"
	"pulley/internal/machines/progress"
	"pulley/internal/machines/records"
	"pulley/internal/machines/render"
	"pulley/internal/model"
	"pulley/internal/specs"
)

// machineFlags are the flags for creating and retiring machines.
type machineFlags struct {
	maxRetire    int
	parallel     int
	until        string
	drainTimeout time.Duration
	noDrain      bool
}

// overrideFlags accept a provider's report although it looks wrong.
type overrideFlags struct {
	samePlace, acceptLost bool
	replace               []string // of apply only
}

func (v *overrideFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&v.samePlace, "same-place", false, "the provider's settings changed (cloud, region, command, folder, owner), and its machines are the same ones")
	c.Flags().BoolVar(&v.acceptLost, "accept-lost", false, "accept that most machines are gone, as the provider's list shows")
}

func (v *overrideFlags) options() plan.Options {
	return plan.Options{SamePlace: v.samePlace, AcceptLost: v.acceptLost, Replace: v.replace}
}

const defaultMaxRetire = 10

func (m *machineFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.IntVar(&m.maxRetire, "max-retire", defaultMaxRetire, "refuse to delete and remove more machines and nodes than this")
	f.IntVar(&m.parallel, "parallel", apply.DefaultParallel, "number of machines that are worked on at a time")
	cli.DurationVar(f, &m.drainTimeout, "drain-timeout", apply.DefaultDrainTimeout, "time for a node's retire hooks; a machine whose hooks are late is left as it is")
	f.BoolVar(&m.noDrain, "no-drain", false, "delete machines without running the retire hooks of their nodes")
}

func (m *machineFlags) check() error {
	switch apply.Waiting(m.until) {
	case apply.WaitConverged, apply.WaitRegistered, apply.WaitNone:
	default:
		return cli.Usagef("cannot wait until a machine is %q: --until takes converged, registered or none", m.until)
	}
	switch {
	case m.parallel < 1:
		return cli.Usagef("cannot work on %d machines at a time: use --parallel with at least 1", m.parallel)
	case m.maxRetire < 0:
		return cli.Usagef("cannot delete at most %d machines: use --max-retire with 0 or more", m.maxRetire)
	case m.drainTimeout <= 0:
		return cli.Usagef("cannot drain nodes in %s: use --drain-timeout with a time above 0, or --no-drain", m.drainTimeout)
	}
	return nil
}

// set sets the flags on an Applier.
func (m *machineFlags) set(a *apply.Applier) {
	a.Parallel, a.Wait, a.DrainTimeout, a.NoDrain = m.parallel, apply.Waiting(m.until), m.drainTimeout, m.noDrain
}

func (o *options) opener() drivers.Opener {
	return drivers.Opener{Getenv: o.env.Getenv, Log: o.stderrLog()}
}

// stderrLog is the log of a command: that of serve where it has one of its own, else text on standard error.
func (o *options) stderrLog() *slog.Logger {
	return cmp.Or(o.env.Log, slog.New(slog.NewTextHandler(o.env.Stderr, nil)))
}

// sourceOf returns the source of an environment's plan. Its provider must come from a file, and never from etcd.
func sourceOf(ctx context.Context, o *options, s *etcd.DB, want *environments.Environment) (apply.Source, error) {
	id, err := cluster.In(s).Installation(ctx)
	if err != nil {
		return apply.Source{}, err
	}
	p, err := o.opener().Open(ctx, want, id)
	return apply.Source{Reader: records.In(s).FleetReader(want.Ref()), Provider: p.Provider, Ref: want.Ref(), Place: p.Place, Now: o.env.Now}, err
}

// draftOf plans without the fleet's lock: other commands may change the fleet meanwhile.
func draftOf(ctx context.Context, o *options, s *etcd.DB, want *environments.Environment, opts plan.Options) (apply.Draft, error) {
	source, err := sourceOf(ctx, o, s, want)
	if err != nil {
		return apply.Draft{}, err
	}
	return source.Look(ctx, want, opts)
}

// begin takes the lock of a fleet. Without boot, it creates no machine.
func begin(ctx context.Context, o *options, s *etcd.DB, want *environments.Environment, boot *boots.Connection, by string) (*apply.Session, error) {
	id, err := cluster.In(s).InstallationID(ctx, by)
	if err != nil {
		return nil, err
	}
	p, err := o.opener().Open(ctx, want, id)
	if err != nil {
		return nil, err
	}
	a, err := records.In(s).BeginApply(ctx, want.Ref(), by)
	if err != nil {
		return nil, err
	}
	form := p.Form
	if boot == nil {
		form, boot = "", &boots.Connection{}
	}
	f, err := records.NewFleet(a, want, form, boot)
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	source := apply.Source{Reader: f, Provider: p.Provider, Ref: want.Ref(), Place: p.Place, Now: o.env.Now}
	return apply.Begin(ctx, &apply.Applier{Source: source, Fleet: f, Form: p.Form, Driver: want.Driver(), By: by}, a), nil
}

// carryOut applies an approved draft, if the plan has not changed, and shows the progress and the notes.
func carryOut(o *options, t *apply.Session, approved apply.Draft, m machineFlags) (apply.Draft, error) {
	d, err := t.Recheck(approved)
	if err != nil {
		return d, err
	}
	m.set(t.Applier)
	t.Limit = o.wait.limit
	shown := progress.New(o.env, d.Plan)
	t.Progress = shown.Event
	r, err := t.Apply(d, approved.Deleted())
	shown.Close()
	for _, n := range r.Notes {
		cli.Cleanf(o.env.Stdout, "%s\n", o.complete(render.Reason(n)))
	}
	switch {
	case errors.Is(err, apply.ErrLate):
		err = waitError{err, cli.ExitTimeout}
	case r.Unreached():
		err = waitError{err, cli.ExitDegraded}
	}
	return d, err
}

// waitError is the error of an apply that made its machines, with the exit code of a wait.
type waitError struct {
	error
	status int
}

func (e waitError) Unwrap() error   { return e.error }
func (e waitError) ExitStatus() int { return e.status }

// approve asks for confirmation of the machines that a plan deletes, removes and creates. The lock is free meanwhile:
// the reply may take hours. preview is the command that shows the same plan.
func approve(ctx context.Context, o *options, s *etcd.DB, p plan.Plan, most int, preview string) error {
	if err := apply.CheckRetire(p, most); err != nil {
		return err
	}
	deleted, removed := p.Deleted(), p.Removed()
	n := len(deleted) + len(removed)
	if n > 0 {
		if err := access.In(s).MayRemove(ctx); err != nil {
			return err
		}
	}
	if o.yes || n == 0 && len(p.Created()) == 0 {
		return nil
	}
	if err := o.mayConfirm(); err != nil {
		return err
	}
	var question string
	if len(deleted) > 0 {
		question = fmt.Sprintf("%s will be deleted: %s.\n", cli.Count(len(deleted), "machine"), render.Machines(deleted))
	}
	if len(removed) > 0 {
		question += fmt.Sprintf("%s will leave the fleet, without a machine to delete: %s.\n", cli.Count(len(removed), "node"), cli.Clean(strings.Join(removed, ", ")))
	}
	if n > 0 {
		return cli.Confirm(ctx, o.env, preview, question+fmt.Sprintf("Type %d to continue: ", n), fmt.Sprint(n))
	}
	return cli.Confirm(ctx, o.env, preview, fmt.Sprintf("%s will be created. Continue? [y/N] ", cli.Count(len(p.Created()), "machine")), "y", "yes")
}

// showPlan prints a plan: the changes to the environment, then the action for each machine.
func showPlan(o *options, p plan.Plan) {
	for _, line := range p.Changes.Lines() {
		cli.Cleanf(o.env.Stdout, "%s\n", line)
	}
	if !p.Changed && p.Empty() {
		what := "nothing changes"
		if p.Destroys { // its keys do
			what = "no machine changes"
		}
		fmt.Fprintf(o.env.Stdout, "%s: %s\n", p.Fleet, what)
	}
	for _, line := range render.Plan(p) {
		cli.Cleanf(o.env.Stdout, "%s\n", o.complete(line))
	}
}

// applyOptions are the flags of apply.
type applyOptions struct {
	firstBootFlags
	file     envFileFlags
	machines machineFlags
	override overrideFlags
	plan     string
}

func newEnvApply(o *options) *cobra.Command {
	a := applyOptions{firstBootFlags: firstBootFlags{options: o}}
	cmd := &cobra.Command{
		Use: "apply FILE | ENVIRONMENT | --plan PLAN", Short: "Store an environment, and create or retire machines to match it",
		Long: `Stores the environment of a file. With a name, the file is environments/NAME.yaml in the current folder. If the environment has a
provider, apply then creates, replaces and retires machines until they match the file. It works role by role, and waits until each
role is converged.

apply asks for confirmation before it creates machines, and for their number before it deletes machines. In scripts, use --yes.
Run apply again to resume after an interrupt or a failure. --plan applies exactly the plan that ` + "`pulley env plan --out`" + ` wrote,
without a question, and nothing if the plan would differ now. --replace NODE deletes the machine of one node, after its retire
hooks, and makes a new one.

First boots are configured as for ` + "`pulley userdata`" + `: under userdata: in the file, or by flags where the file has no value. Both are
stored with the environment: a recreated machine has the same first boot as its predecessor, and the next apply or plan of the
file needs no flag. A flag with another value replaces the stored one, and an empty value removes it: --proxy "",
--allowed-signers none, --agent none. Without servers: and --servers, machines join at the servers of your context.

EXIT STATUS
  0 done; 1 failed, or not confirmed; 2 wrong usage, 3 etcd unreachable; 4 new machines did not reach the state of --until;
  5 the time of --wait passed`,
		Args: arguments(0, 1, "takes an environment file, or --plan"),
		RunE: func(c *cobra.Command, args []string) error { return a.run(c, args) },
	}
	a.file.add(cmd)
	a.machines.add(cmd)
	a.override.add(cmd)
	a.add(cmd.Flags())
	cmd.Flags().StringVar(&a.machines.until, "until", string(apply.WaitConverged), "state of new machines to wait for: converged, registered or none")
	cli.DurationVar(cmd.Flags(), &a.wait.limit, "wait", 0, "stop after this long, as in 1h (default: the timeout of each role limits its machines)")
	cmd.Flags().StringSliceVar(&a.override.replace, "replace", nil, "replace the machine of this node, whatever its state; may be repeated")
	a.addConfirmation(cmd)
	a.addDryRun(cmd)
	cmd.Flags().StringVar(&a.plan, "plan", "", "file of a stored plan, from pulley env plan --out")
	return cmd
}

func (a *applyOptions) run(c *cobra.Command, args []string) error {
	if (len(args) == 1) == (a.plan != "") {
		return cli.Usagef("`pulley env apply` takes an environment file, or --plan with a stored plan")
	}
	if a.plan != "" && (a.file.cloud != "" || a.file.stack != "" || len(a.file.sets) > 0) {
		return cli.Usagef("--plan excludes --cloud, --stack and --set: a stored plan has its environment")
	}
	if flag := a.given(c); a.plan != "" && flag != "" {
		return cli.Usagef("--plan excludes --%s: a stored plan has its environment", flag)
	}
	if a.plan != "" && len(a.override.replace) > 0 {
		return cli.Usagef("--plan excludes --replace: a stored plan has its steps")
	}
	if err := a.machines.check(); err != nil {
		return err
	}
	if err := a.wait.check(c); err != nil {
		return err
	}
	want, stored, boot, err := a.wanted(c, args)
	if err != nil {
		return err
	}
	return a.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
		if stored == nil {
			if err := a.complete(ctx, s, c, want, boot); err != nil {
				return err
			}
		}
		if want.Driver() != environments.DriverNone && !a.dryRun {
			if _, err := cluster.In(s).InstallationID(ctx, a.env.User); err != nil {
				return err
			}
		}
		d, err := a.approved(ctx, s, want, stored)
		if err != nil || a.dryRun {
			return err
		}
		t, err := begin(ctx, a.options, s, want, boot, a.env.User)
		if err != nil {
			return err
		}
		d, err = carryOut(a.options, t, d, a.machines)
		if err == nil {
			showApplied(a.options, d.Plan)
		}
		return errors.Join(err, t.Close())
	})
}

// maxPlanFile limits a stored plan, in bytes.
const maxPlanFile = 64 << 20

// wanted reads the environment from its file or from a stored plan. It also returns that plan.
func (a *applyOptions) wanted(c *cobra.Command, args []string) (*environments.Environment, *plan.Plan, *boots.Connection, error) {
	if a.plan == "" {
		e, err := a.readEnvironment(args[0], a.file)
		if err != nil {
			return nil, nil, nil, err
		}
		boot, err := a.prepare(c, e.Ref())
		return e, nil, boot, err
	}
	b, err := bounded.ReadFile(a.plan, maxPlanFile)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("cannot read the plan: %w", err)
	}
	if !bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
		return nil, nil, nil, fmt.Errorf("cannot use plan %s: it is not a stored plan\nmake one with `pulley env plan FILE --out PLAN`, or apply an environment's file without --plan", a.plan)
	}
	p, err := plan.Decode(b)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("cannot use plan %s: %w", a.plan, err)
	}
	boot, err := a.connectionOnly()
	return p.Spec, &p, boot, err
}

// approved plans, shows the plan and asks for confirmation. It changes nothing.
func (a *applyOptions) approved(ctx context.Context, s *etcd.DB, want *environments.Environment, stored *plan.Plan) (apply.Draft, error) {
	d, err := draftOf(ctx, a.options, s, want, a.override.options())
	if err != nil {
		return d, err
	}
	if stored != nil {
		if differs := render.Changed(plan.Differences(*stored, d.Plan)); differs != nil {
			return d, fmt.Errorf("cannot apply plan %s: the plan would differ now:\n%w\nmake a new one with `pulley env plan --out`", a.plan, differs)
		}
	}
	if err := render.NotReplaced(d.Plan, a.override.replace); err != nil {
		return d, err
	}
	showPlan(a.options, d.Plan)
	if d.Unprotects() { // there is no other change
		return d, nil
	}
	if err := render.Refused(d.Plan, d.Refused(d.Deleted())); err != nil {
		return d, err
	}
	if err := a.checkBoots(ctx, s, d.Plan, stored != nil); err != nil {
		return d, err
	}
	if a.dryRun {
		return d, nil
	}
	// A stored plan was read before: it names each machine, and the present plan is the same one.
	a.yes = a.yes || stored != nil
	return d, approve(ctx, a.options, s, d.Plan, a.machines.maxRetire, "`pulley env plan`")
}

// showApplied prints the result of an apply.
func showApplied(o *options, p plan.Plan) {
	what := "stored %s: %s\n"
	switch {
	case !p.Empty() && !p.Unprotects():
		what = "applied %s: %s\n"
	case !p.Changed:
		what = "%s is up to date: %s\n"
	}
	fmt.Fprintf(o.env.Stdout, what, p.Fleet, cli.Count(p.Spec.Count(), "node"))
}

func newEnvPlan(o *options) *cobra.Command {
	boot := firstBootFlags{options: o}
	var file envFileFlags
	var out string
	var detailed bool
	var override overrideFlags
	cmd := &cobra.Command{
		Use: "plan FILE | ENVIRONMENT", Short: "Show what apply would do",
		Long: `Compares the file with the stored environment, the host list, the reports of nodes and the machines of the provider. Prints what
apply would do about each machine (create, replace, retire, adopt, …) and why. plan changes nothing. With a name, the file is
environments/NAME.yaml in the current folder.

--out stores the plan in a file. ` + "`pulley env apply --plan`" + ` applies exactly that plan, and nothing if the plan would differ then.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage, 3 etcd unreachable
  with --detailed-exitcodes: 0 nothing to do, 4 something to do`,
		Args: arguments(1, 1, "takes an environment file"),
		RunE: func(c *cobra.Command, args []string) error {
			want, err := o.readEnvironment(args[0], file)
			if err != nil {
				return err
			}
			connection, err := boot.prepare(c, want.Ref())
			if err != nil {
				return err
			}
			return o.withEtcd(c, func(ctx context.Context, s *etcd.DB) error {
				if err := boot.complete(ctx, s, c, want, connection); err != nil {
					return err
				}
				d, err := draftOf(ctx, o, s, want, override.options())
				if err == nil {
					err = o.out.Print(o.env, d.Plan, func(*cli.Table) error { showPlan(o, d.Plan); return nil })
				}
				if err == nil {
					err = boot.checkBoots(ctx, s, d.Plan, false)
				}
				if err == nil && out != "" {
					err = writePlan(out, d.Plan)
				}
				if err == nil && detailed && (d.Changed || !d.Empty()) {
					return &cli.SilentError{Code: exitSomething}
				}
				return err
			})
		},
	}
	file.add(cmd)
	override.add(cmd)
	boot.add(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&out, "out", "", "file to store the plan in, for apply --plan")
	cmd.Flags().BoolVar(&detailed, "detailed-exitcodes", false, "exit with 4 if there is something to do")
	return cmd
}

// exitSomething is the exit code for pending changes: 2 and 3 have other meanings in every verb.
const exitSomething = 4

// writePlan stores a plan with mode 0600: it contains the environment with its userdata.
func writePlan(path string, p plan.Plan) error {
	b, err := plan.Encode(p)
	if err == nil {
		err = atomicfile.WriteNamed(path, b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot write the plan to %s: %w", path, err)
	}
	return nil
}

// prepare reads the flags. It returns the machine settings of the operator's connection.
func (u *firstBootFlags) prepare(c *cobra.Command, ref model.Ref) (*boots.Connection, error) {
	if u.signers == noneGiven {
		u.signers, u.unsigned = "", true
	}
	if slices.Equal(u.agents, []string{noneGiven}) {
		u.agents = nil
	}
	boot, err := u.connectionOnly()
	if err == nil {
		err = u.read(c, ref)
	}
	return boot, err
}

// complete adds the settings that the environment's file does not have: of the flags, of the flags of earlier applies, and of the
// operator's context.
func (u *firstBootFlags) complete(ctx context.Context, s *etcd.DB, c *cobra.Command, e *environments.Environment, boot *boots.Connection) error {
	stored, _, err := specs.In(s).Spec(ctx, e.Ref())
	if err != nil {
		return err
	}
	given := boots.Given{Flags: u.plan.Settings, Stored: stored, Servers: u.context.values.Servers}
	for _, f := range given.Flags.Fields() {
		if c.Flags().Changed(f.Flag()) || f.Name == "agent_sha256" && c.Flags().Changed("agent") {
			given.Replaced = append(given.Replaced, f.Name)
		}
	}
	return boot.Complete(e, given)
}

// noneGiven is the value of --allowed-signers and --agent that ends the effect of an earlier one.
const noneGiven = "none"

// checkBoots refuses a plan whose machines could never become nodes, or would verify no signatures without the
// operator's confirmation. For a stored plan, the operator confirmed it when the plan was made.
func (u *firstBootFlags) checkBoots(ctx context.Context, s *etcd.DB, p plan.Plan, stored bool) error {
	if p.Driver == environments.DriverNone {
		return nil
	}
	if err := u.checkJoins(ctx, s, p); err != nil || stored || u.unsigned {
		return err
	}
	was, _, err := specs.In(s).Spec(ctx, p.Fleet)
	if err != nil {
		return err
	}
	if role := boots.UnsignedRole(was, p.Spec); role != "" {
		return fmt.Errorf("cannot apply %s: new machines of %s would verify no signatures: the stored environment has allowed_signers, the file and the flags have none\n"+
			"give --allowed-signers FILE, or `allowed_signers:` in the file's userdata\nfor machines without signature checks, give --allowed-signers %s", p.Fleet, role, noneGiven)
	}
	return nil
}

// checkJoins refuses to create machines that could not reach etcd: they get a certificate only when they join.
func (u *firstBootFlags) checkJoins(ctx context.Context, s *etcd.DB, p plan.Plan) error {
	i := slices.IndexFunc(p.Steps, func(step plan.Step) bool { return step.Creates && boots.NeedsJoin(p.Spec, step.Role) })
	if i < 0 {
		return nil
	}
	if u.connection.Cert == "" {
		if auth, err := access.In(s).AuthEnabled(ctx); err != nil || !auth {
			return err
		}
	}
	return fmt.Errorf("cannot apply %s: new machines of %s cannot join: etcd authenticates its users, and no server that issues certificates is set\n"+
		"set `servers:` in the file's userdata, or give --servers https://HOST:8443; set `endpoints:` if machines have certificates of their own", p.Fleet, p.Steps[i].Role)
}

// connectionOnly returns the machine settings of the operator's connection.
func (o *options) connectionOnly() (*boots.Connection, error) {
	if err := o.connect(); err != nil {
		return nil, err
	}
	config := o.connection.Config()
	boot := &boots.Connection{Prefix: config.Prefix, Endpoints: config.Endpoints}
	if config.CACert == "" {
		return boot, nil
	}
	return boot, boot.ReadCACert(config.CACert)
}
