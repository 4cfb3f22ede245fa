package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/cli"
	"pulley/internal/firstboot/plans"
	"pulley/internal/machines"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
	"pulley/internal/store"
)

// applyOptions are what the command line of apply says.
type applyOptions struct {
	firstBootFlags
	file     envFileFlags
	machines machineFlags
	belief   beliefFlags
	plan     string
}

func newEnvApply(o *options) *cobra.Command {
	a := applyOptions{firstBootFlags: firstBootFlags{options: o}}
	cmd := &cobra.Command{
		Use: "apply FILE | ENVIRONMENT | --plan PLAN", Short: "Store an environment, and create or retire machines to match it",
		Long: `apply stores the environment that a file describes; its name is the file's. For a name the file is environments/NAME.yaml, seen
from here. Where the environment has a provider, its machines
are then made, replaced and retired until they are what the file says, role by role, each waited for until it is converged.

What is destroyed is named first, and agreed to by its number; --yes is for CI. Interrupted anywhere, the next apply goes on.
With --plan exactly that plan is applied, which ` + "`pulley env plan --out`" + ` wrote, or none where the world changed since.

How machines boot is told as in ` + "`pulley userdata`" + `: in the file under userdata:, or by flags where that does not say; either is stored
with the environment, so that a machine that is made again boots as the first one did. Allowed signers that are stored are not
taken away by leaving out the flag: that takes --allowed-signers none.

EXIT STATUS
  0 done, 1 failed: what was begun is known, and the next apply goes on, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 1, "takes an environment file, or --plan"),
		RunE: func(c *cobra.Command, args []string) error { return a.run(c, args) },
	}
	a.file.add(cmd)
	a.machines.add(cmd)
	a.belief.add(cmd)
	a.add(cmd.Flags())
	cmd.Flags().StringVar(&a.plan, "plan", "", "a stored plan, as pulley env plan --out writes it")
	return cmd
}

func (a *applyOptions) run(c *cobra.Command, args []string) error {
	if (len(args) == 1) == (a.plan != "") {
		return cli.Usagef("`pulley env apply` takes an environment file, or --plan with a stored plan")
	}
	if a.plan != "" && (a.file.cloud != "" || a.file.stack != "" || len(a.file.sets) > 0) {
		return cli.Usagef("a stored plan says all: --cloud, --stack and --set are for a file")
	}
	if flag := a.given(c); a.plan != "" && flag != "" {
		return cli.Usagef("a stored plan says all: --%s is for a file", flag)
	}
	if err := a.machines.check(); err != nil {
		return err
	}
	want, stored, boot, err := a.wanted(c, args)
	if err != nil {
		return err
	}
	return a.withStore(c, func(ctx context.Context, s *store.Store) error {
		opts := plan.Options{Moved: a.belief.moved, Lost: a.belief.lost}
		if want.Driver() != environments.DriverNone {
			if _, err := s.Cluster.InstallationID(ctx, a.env.User); err != nil {
				return err
			}
		}
		p, err := a.agreed(ctx, s, want, stored, opts)
		if err != nil {
			return err
		}
		t, err := a.open(ctx, s, want, boot, a.env.User)
		if err != nil {
			return err
		}
		return errors.Join(a.apply(t.with(a.machines), p, opts), t.close())
	})
}

// wanted reads the environment, from its file or from a stored plan, which is then returned, too.
func (a *applyOptions) wanted(c *cobra.Command, args []string) (*environments.Environment, *plan.Plan, *plans.Connection, error) {
	if a.plan == "" {
		e, err := a.readEnvironment(c, args[0], a.file)
		if err != nil {
			return nil, nil, nil, err
		}
		boot, err := a.completed(c, e)
		return e, nil, boot, err
	}
	b, err := bounded.ReadFile(a.plan, maxPlanFile)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("cannot read the plan: %w", err)
	}
	if !bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
		return nil, nil, nil, fmt.Errorf("cannot use plan %s: it is no stored plan\nmake one: pulley env plan FILE --out PLAN; an environment's file is applied without --plan", a.plan)
	}
	p, err := plan.Decode(b)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("cannot use plan %s: %w", a.plan, err)
	}
	boot, err := a.connectionOnly()
	return p.Spec, &p, boot, err
}

// agreed plans, shows the plan and asks for what it destroys; nothing is done yet, and others may apply meanwhile.
func (a *applyOptions) agreed(ctx context.Context, s *store.Store, want *environments.Environment, stored *plan.Plan, opts plan.Options) (plan.Plan, error) {
	p, err := a.lookAhead(ctx, s, want, opts)
	if err != nil {
		return p, err
	}
	if stored != nil {
		if differs := plan.Differences(*stored, p); len(differs) > 0 {
			return p, fmt.Errorf("cannot apply plan %s: the world changed since it was made:\n  %s\nmake a new one: pulley env plan --out", a.plan, strings.Join(differs, "\n  "))
		}
	}
	a.showPlan(p)
	if p.Unprotects() { // nothing but the file is stored
		return p, nil
	}
	if blocked := p.Blocked(); len(blocked) > 0 {
		return p, blockedError(p, blocked)
	}
	if err := a.checkBoots(ctx, s, p, stored != nil); err != nil {
		return p, err
	}
	return p, a.agree(ctx, s, p, a.machines.yes, a.machines.maxRetire, "`pulley env plan`")
}

// apply carries out what was agreed to, if that is still what there is to do.
func (a *applyOptions) apply(t *site, agreed plan.Plan, opts plan.Options) error {
	p, err := t.again(agreed, opts)
	if err != nil {
		return err
	}
	r, err := t.carryOut(p, agreed.Destroyed())
	a.showResult(p, r, err)
	return goOn(r, err)
}

// goOn adds to what went wrong how far the apply came, and what to do.
func goOn(r apply.Result, err error) error {
	if err == nil || r.Stopped != nil || len(r.Failed) == 0 {
		return err
	}
	return fmt.Errorf("%w\n%d done, %d failed, %d not begun\nmend what failed, and %s again to go on", err, len(r.Done), len(r.Failed), len(r.Left), machines.Deed(r.Destroys))
}

// blockedError says for each machine why nothing is done, and then once what to do.
func blockedError(p plan.Plan, blocked []plan.Step) error {
	var lines, hints []string
	for _, s := range blocked {
		why, hint, _ := strings.Cut(s.Blocked, "\n")
		lines = append(lines, fmt.Sprintf("%s %s: %s", s.Verb, s.Node, why))
		if hint != "" && !slices.Contains(hints, hint) {
			hints = append(hints, hint)
		}
	}
	hints = append(hints, "nothing was done")
	return fmt.Errorf("cannot %s %s: %s\n%s", machines.Deed(p.Destroys), p.Fleet, strings.Join(lines, "; "), strings.Join(hints, "\n"))
}

// showResult says what came of it; the error is shown by whoever exits.
func (o *options) showResult(p plan.Plan, r apply.Result, err error) {
	for _, n := range r.Notes {
		cli.Cleanf(o.env.Stdout, "%s\n", n)
	}
	if err != nil {
		return
	}
	e := p.Spec
	what := "stored %s: %s\n"
	switch {
	case !p.Empty() && !p.Unprotects():
		what = "applied %s: %s\n"
	case !p.Changed:
		what = "%s is as in the file: %s\n"
	}
	fmt.Fprintf(o.env.Stdout, what, e.Ref(), cli.Count(e.Count(), "node"))
}

// maxPlanFile bounds what is read of a stored plan.
const maxPlanFile = 64 << 20

// writePlan keeps a plan for `pulley env apply --plan`. Only its owner may read it: it has the environment, with its userdata.
func writePlan(path string, p plan.Plan) error {
	b, err := plan.Encode(p)
	if err == nil {
		err = atomicfile.Write(path, b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot write the plan to %s: %w", path, err)
	}
	return nil
}
