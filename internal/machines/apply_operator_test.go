package machines_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
	"pulley/internal/machines/render"
	"pulley/internal/model"
)

// operator applies files to a site, as `pulley env apply --yes` does.
type operator struct {
	t      testing.TB
	site   *sim
	set    func(*apply.Applier) // more settings
	events []apply.Event
	dies   func(*session, apply.Event) // may crash the program at an event
}

var dev = model.Ref{Environment: "dev"}

func newOperator(t testing.TB) *operator {
	site := newSim(dev, time.Now)
	site.Latency = 50 * time.Millisecond
	return &operator{t: t, site: site}
}

// fleet returns an environment with these roles at the simulated provider.
func fleetOf(roles ...environments.Role) *environments.Environment {
	return &environments.Environment{Name: "dev", Roles: roles, Provider: environments.Provider{Driver: environments.DriverExec, Command: []string{"model"}}}
}

func role(name string, cardinality int, more ...func(*environments.Role)) environments.Role {
	r := environments.Role{Name: name, Cardinality: cardinality}
	for _, m := range more {
		m(&r)
	}
	return r
}

func after(roles ...string) func(*environments.Role) {
	return func(r *environments.Role) { r.After = roles }
}
func flavor(f string) func(*environments.Role) { return func(r *environments.Role) { r.Flavor = f } }
func failures(n string) func(*environments.Role) {
	return func(r *environments.Role) { r.Replace.Failures = n }
}
func batch(n string) func(*environments.Role) {
	return func(r *environments.Role) { r.Replace.Batch = n }
}
func protected(r *environments.Role) { r.Protected = true }
func reactsTo(roles ...string) func(*environments.Role) {
	return func(r *environments.Role) { r.ReactsTo = roles }
}

// attempt is one start of the program: its lock, provider and fleet.
type attempt struct {
	session *session
	applier *apply.Applier
	ctx     context.Context
	end     context.CancelFunc
}

func (o *operator) start() attempt {
	ctx, end := context.WithCancel(context.Background())
	s := o.site.Open("ann", end)
	a := &apply.Applier{
		Source: apply.Source{Reader: s, Provider: s.provider(), Ref: o.site.Ref, Place: "home", Now: time.Now},
		Fleet:  s, Form: "script", Driver: environments.DriverExec, By: "ann",
		Progress: func(e apply.Event) {
			o.events = append(o.events, e)
			if o.dies != nil {
				o.dies(s, e)
			}
		},
	}
	if o.set != nil {
		o.set(a)
	}
	return attempt{s, a, ctx, end}
}

// plan makes a plan.
func (o *operator) plan(want *environments.Environment) apply.Draft {
	o.t.Helper()
	x := o.start()
	defer x.end()
	p, err := x.applier.Look(x.ctx, want, plan.Options{})
	if err != nil {
		o.t.Fatal(err)
	}
	return p
}

// apply makes a plan, approves all of it and carries it out.
func (o *operator) apply(want *environments.Environment) (apply.Result, error) {
	o.t.Helper()
	x := o.start()
	defer x.end()
	p, err := x.applier.Look(x.ctx, want, plan.Options{})
	if err != nil {
		return apply.Result{}, err
	}
	x.session.aims(aim{Want: want})
	x.session.judgePlan(p.Plan)
	x.session.approve(p.Deleted())
	return x.applier.Apply(x.ctx, p, p.Deleted())
}

// well applies, and fails the test if work remains.
func (o *operator) well(want *environments.Environment) apply.Result {
	o.t.Helper()
	r, err := o.apply(want)
	if err != nil {
		o.t.Fatal(err)
	}
	if p := o.plan(want); !p.Empty() || !p.Healthy {
		o.t.Fatalf("after the apply the plan is not empty: %s", text(p.Plan))
	}
	o.noViolations()
	return r
}

func (o *operator) noViolations() {
	o.t.Helper()
	if wrong := o.site.violations(); len(wrong) > 0 {
		o.t.Fatal(strings.Join(wrong, "\n"))
	}
}

// has fails unless exactly these machines run, in the order of their creation.
func (o *operator) has(names ...string) {
	o.t.Helper()
	var got []string
	for _, m := range o.site.machines() {
		got = append(got, m.Name)
	}
	slices.Sort(names)
	slices.Sort(got)
	if !slices.Equal(got, names) {
		o.t.Fatalf("machines %v, not %v", got, names)
	}
	hosts := slices.Sorted(maps.Keys(o.site.Hosts()))
	records := slices.Sorted(maps.Keys(o.site.Records()))
	if !slices.Equal(hosts, names) || !slices.Equal(records, names) {
		o.t.Fatalf("hosts %v and records %v, not %v", hosts, records, names)
	}
}

// notes returns the notes of a result, one per line.
func notes(r apply.Result) string {
	var lines []string
	for _, n := range r.Notes {
		lines = append(lines, render.Reason(n))
	}
	return strings.Join(lines, "\n")
}

func text(p plan.Plan) string {
	var b strings.Builder
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "%s %s (%s) %v %v\n", s.Verb, s.Node, render.Reasons(s.Reasons), s.Deletes, s.Blocked)
	}
	return b.String()
}

// order returns the nodes in the order in which a task of theirs began, or ended.
func (o *operator) order(state apply.EventState, step string) (nodes []string) {
	for _, e := range o.events {
		if e.State == state && e.Task == step {
			nodes = append(nodes, e.Node)
		}
	}
	return nodes
}

// hasMachines fails unless these machines exist, joined or not.
func (o *operator) hasMachines(names ...string) {
	o.t.Helper()
	var got []string
	for _, m := range o.site.machines() {
		got = append(got, m.Name)
	}
	slices.Sort(got)
	if !slices.Equal(got, names) {
		o.t.Fatalf("machines %v, not %v", got, names)
	}
}

// pass lets time pass in a synctest bubble.
func pass(d time.Duration) { <-time.After(d) }
