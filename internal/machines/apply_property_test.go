package machines_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/machines/plan"
	"pulley/internal/machines/watch"
	"pulley/internal/model"
)

// player plays a story.
type player struct {
	*operator
	story   story
	want    *environments.Environment
	foreign []machines.Machine // and unknown ones: machines that must never change
	others  machines.Mark
	mu      sync.Mutex
	calls   map[string]int
	wg      sync.WaitGroup
	watcher watch.Watcher
	skew    time.Duration
	away    bool
}

const (
	maxApplies  = 16            // until no work remains, once faults have ended
	longestOnce = 4 * time.Hour // of one apply
)

func (p *player) play() error {
	p.site.Latency = p.story.Latency
	p.others = machines.Mark{Owner: "fedcba9876543210", Fleet: "dev"}
	for _, name := range []string{"web1", "db1", "web77"} {
		p.foreign = append(p.foreign, p.site.plant(name, p.others))
	}
	p.foreign = append(p.foreign, p.site.enroll(oldOne, "web", p.others))
	p.calls = map[string]int{}
	p.site.Trouble = p.trouble
	defer p.wg.Wait() // the end of a bubble with running goroutines would hide the failure
	for i, m := range p.story.Moves {
		p.site.mention("move %d: %+v", i, m)
		if err := p.move(m); err != nil {
			return fmt.Errorf("move %d, %s: %w", i, m.Do, err)
		}
		if wrong := p.site.violations(); len(wrong) > 0 {
			return fmt.Errorf("move %d, %s: %s", i, m.Do, wrong[0])
		}
	}
	p.wg.Wait()
	p.site.heal()
	return p.settles()
}

// trouble is called by the site, one call at a time.
func (p *player) trouble(call string) fault {
	p.calls[call]++
	for _, i := range p.story.Incidents {
		if i.Call == call && i.Nth == p.calls[call] {
			return i.Fault
		}
	}
	return none
}

func (p *player) move(m move) error {
	switch m.Do {
	case "edit":
		want := *m.Want
		want.Stack = p.story.Stack
		p.want = &want
		p.site.mention("wanted is %+v", want.Roles)
	case "apply":
		p.skew = m.Skew
		defer func() { p.skew = 0 }()
		_, err := p.try(try{think: m.Think, noDrain: m.NoDrain, options: plan.Options{AcceptLost: m.Lost}})
		return err
	case "destroy":
		_, err := p.try(try{think: m.Think, options: plan.Options{Destroy: true}})
		return err
	case "away":
		if len(p.site.Records()) == 0 {
			return nil // without a record, a plan cannot detect the wrong place
		}
		p.away = true
		defer func() { p.away = false }()
		_, err := p.once(0, 0, false)
		return err
	case "unlist":
		if ours := p.ours(); len(ours) > 0 {
			p.site.Unlist(nodeOf(ours[m.Pick%len(ours)].Name))
		}
	case "hide":
		p.site.hide(m.Hides, m.In)
	case "enroll":
		p.site.enroll(oldOne, "web", p.others)
	case "watch":
		for range 1 + m.Pick%5 {
			p.look()
			pass(6 * time.Minute)
		}
	case "interrupt":
		_, err := p.once(0, m.In+time.Second, false)
		return err
	case "rivals":
		var first error
		var wg sync.WaitGroup
		wg.Go(func() { _, first = p.once(0, 0, false) })
		pass(m.Next + time.Second)
		_, err := p.once(0, 0, false)
		wg.Wait()
		if err == nil {
			err = first
		}
		return err
	case "kill":
		p.wg.Go(func() {
			pass(m.In)
			if ours := p.ours(); len(ours) > 0 {
				p.site.kill(ours[m.Pick%len(ours)].ID, m.State)
			}
		})
	case "plant":
		planted := p.site.plant(m.Name, p.site.mark())
		if n, err := model.ParseHostname(m.Name); err != nil || n.Stack != p.story.Stack {
			p.foreign = append(p.foreign, planted)
		}
	case "hold":
		p.site.holdNode(p.stacked(m.Name), "it is looked at")
	}
	return nil
}

// ours returns the machines with the fleet's mark and names of nodes.
func (p *player) ours() (all []seen) {
	for _, m := range p.site.machines() {
		if n, err := model.ParseHostname(m.Name); err == nil && m.Mark == p.site.mark() && n.Stack == p.story.Stack {
			all = append(all, m)
		}
	}
	return all
}

// stacked returns the name of a node in the story's stack.
func (p *player) stacked(node string) string {
	n, err := model.ParseNode(node)
	if err != nil {
		return node
	}
	n.Stack = p.story.Stack
	return n.String()
}

func nodeOf(machine string) string {
	n, err := model.ParseHostname(machine)
	if err != nil {
		return machine
	}
	return n.String()
}

// try is one apply: how long its operator considers the plan, when he interrupts, and his options.
type try struct {
	think, interrupt time.Duration
	noDrain          bool
	options          plan.Options
}

func (p *player) once(think, interrupt time.Duration, noDrain bool) (failed error, broken error) {
	return p.try(try{think: think, interrupt: interrupt, noDrain: noDrain})
}

// try applies once, with any result. Its second error is only for an apply that does not end.
func (p *player) try(y try) (failed error, broken error) {
	p.mu.Lock()
	x := p.begin("ann")
	x.applier.NoDrain = y.noDrain
	want := p.want
	p.mu.Unlock()
	defer x.end()
	began := time.Now()
	x.session.aims(aim{Want: want, Destroy: y.options.Destroy, Clock: p.skew})
	plan, err := x.applier.Look(x.ctx, want, y.options)
	if err != nil {
		return err, nil
	}
	x.session.judgePlan(plan.Plan)
	x.session.approve(plan.Deleted())
	pass(y.think)
	ctx, cancel := context.WithCancel(x.ctx)
	defer cancel()
	if y.interrupt > 0 {
		stop := time.AfterFunc(y.interrupt, cancel)
		defer stop.Stop()
	}
	_, err = x.applier.Apply(ctx, plan, plan.Deleted())
	if took := time.Since(began) - y.think; took > longestOnce {
		return err, fmt.Errorf("an apply took %s and ended with: %w", took, err)
	}
	return err, nil
}

// begin starts a program of this story.
func (p *player) begin(by string) attempt {
	x, skew := p.start(), p.skew
	x.applier.Parallel, x.applier.Progress, x.applier.By = p.story.Parallel, nil, by
	x.applier.Now = func() time.Time { return time.Now().Add(skew) }
	if p.away {
		x.applier.Provider, x.applier.Place = x.session.marked(p.site.away()), "away"
	}
	return x
}

// look makes the watch look once.
func (p *player) look() {
	spec := p.site.Spec()
	if spec == nil {
		return
	}
	x := p.begin("pulley env watch")
	defer x.end()
	x.session.aims(aim{Want: spec, Budget: watch.DefaultBudget})
	_, _ = lookOnce(x.ctx, &p.watcher, x.applier)
}

// settles applies until no work remains, and judges the result.
func (p *player) settles() error {
	for _, node := range []string{"web1", "app2", "db1"} {
		p.site.holdNode(p.stacked(node), "")
	}
	if err := p.unprotect(); err != nil {
		return err
	}
	var last error
	whole := false
	lost := plan.Options{AcceptLost: true} // the provider lists all machines by now
	for range maxApplies {
		// An operator follows the remedy of the error.
		failed, broken := p.try(try{noDrain: last != nil && strings.Contains(last.Error(), "--no-drain"), options: lost})
		if broken != nil {
			return broken
		}
		last = failed
		x := p.start()
		planned, err := x.applier.Look(x.ctx, p.want, lost)
		x.end()
		if err != nil {
			return err
		}
		if planned.Empty() && planned.Healthy && !p.site.Pending() && !planned.Changed && planned.Counts()[plan.Extra] == 0 {
			if whole { // half an hour: nodes that died last are silent by then
				return p.judge()
			}
			whole = true
			pass(30 * time.Minute)
			continue
		}
		whole = false
		pass(p.attends(planned.Plan))
	}
	x := p.start()
	defer x.end()
	plan, _ := x.applier.Look(x.ctx, p.want, lost)
	return fmt.Errorf("after %d applies the plan is not empty:\n%s\nthe last one said: %w", maxApplies, text(plan.Plan), last)
}

// attends does the work that a plan leaves to people, and returns how long that takes. It deletes the machine of a node
// that is silent or was removed from the host list, at the provider. It makes a member join, and removes nodes that are
// neither wanted nor Pulley's.
func (p *player) attends(planned plan.Plan) time.Duration {
	takes := time.Minute
	for _, s := range planned.Steps {
		switch {
		case s.Verb == plan.Missing:
			p.site.enroll(s.Node, s.Role, p.others)
		case s.Verb == plan.Extra:
			p.site.Unlist(s.Node)
		case s.Verb == plan.Keep && len(s.Notes) > 0:
			for _, m := range p.ours() {
				_, listed := p.site.Hosts()[s.Node]
				if nodeOf(m.Name) == s.Node && (isSilent(s) || !listed) {
					p.site.kill(m.ID, "")
				}
			}
			takes = 30 * time.Minute
		}
	}
	return takes
}

func isSilent(s plan.Step) bool {
	return machines.Has(s.Notes, machines.SilentMachine) || machines.Has(s.Notes, machines.SilentUnseen) || machines.Has(s.Notes, machines.ReportsUnlisted)
}

// unprotect removes a protection that blocks a plan, as its remedy says.
func (p *player) unprotect() error {
	open := func(e *environments.Environment) *environments.Environment {
		all := *e
		all.Roles = slices.Clone(e.Roles)
		for i := range all.Roles {
			all.Roles[i].Protected = false
		}
		return &all
	}
	aim := open(p.want)
	if stored := p.site.Spec(); stored != nil {
		p.want = open(stored)
		for range 3 {
			if _, broken := p.once(0, 0, false); broken != nil {
				return broken
			}
		}
	}
	p.want = aim
	return nil
}

// judge returns an error if the final state is wrong.
func (p *player) judge() error {
	if wrong := p.site.violations(); len(wrong) > 0 {
		return fmt.Errorf("%s", wrong[0])
	}
	wanted := map[string]string{} // names by node
	for n := range p.want.Nodes() {
		wanted[n.String()] = n.Hostname()
	}
	found := map[string]string{} // ids by name
	for _, m := range p.ours() {
		if other := found[m.Name]; other != "" {
			return fmt.Errorf("two machines %s: %s and %s", m.Name, other, m.ID)
		}
		found[m.Name] = m.ID
	}
	records, hosts := p.site.Records(), p.site.Hosts()
	for node, name := range wanted {
		r, h := records[node], hosts[node]
		if id := found[name]; id == "" || r.ID != id || h.MachineID != id || r.Phase != machines.Made {
			return fmt.Errorf("%s is machine %q, its record is %+v, its host %+v", node, id, r, h)
		}
		role, _ := p.want.RoleOf(node)
		i := slices.IndexFunc(p.ours(), func(m seen) bool { return m.Name == name })
		if m := p.ours()[i]; m.Flavor != role.Flavor && role.Flavor != "" {
			return fmt.Errorf("%s is of flavor %q, not %q", node, m.Flavor, role.Flavor)
		}
	}
	members := 0
	for _, r := range p.want.Roles {
		members += len(r.Members)
	}
	if len(found) != len(wanted) || len(records) != len(wanted) || len(hosts) != len(wanted)+members {
		return fmt.Errorf("wanted are %v; there are the machines %v, the records %v, the hosts %v", wanted, found, slices.Sorted(maps.Keys(records)), slices.Sorted(maps.Keys(hosts)))
	}
	all := p.site.machines()
	for _, f := range p.foreign {
		if !slices.ContainsFunc(all, func(m seen) bool { return m.ID == f.ID && m.State == f.State }) {
			return fmt.Errorf("machine %q (%s) of another fleet changed", f.Name, f.ID)
		}
	}
	return nil
}

// For any sequence of operators, faults and crashes: no machine is made twice, lost, or deleted without approval, no
// foreign one changes, and the fleet becomes what its file says.
func TestAppliesConvergeWhateverHappens(t *testing.T) {
	if f := flag.Lookup("rapid.checks"); f != nil && f.Value.String() == f.DefValue {
		if err := flag.Set("rapid.checks", "300"); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = flag.Set("rapid.checks", f.DefValue) }()
	}
	count, applies := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		s := drawStory(rt)
		var err error
		synctest.Test(t, func(t *testing.T) {
			p := &player{operator: &operator{t: t, site: newSim(model.Ref{Environment: "dev", Stack: s.Stack}, time.Now)}, story: s}
			if err = p.play(); err != nil {
				err = fmt.Errorf("%w\n%s\nthe story: %+v", err, strings.Join(p.site.Past(), "\n"), p.story)
			}
			applies += p.calls["put"]
		})
		count++
		if err != nil {
			rt.Fatal(err)
		}
	})
	t.Logf("%d sequences", count)
}
