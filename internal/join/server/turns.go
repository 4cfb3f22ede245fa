package server

import (
	"cmp"
	"context"
	"errors"
	"time"

	"pulley/environments/settings"
	"pulley/internal/access"
	"pulley/internal/fleet"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/specs"
	"pulley/internal/where"
)

// Limits of the queue of machines that are provisioned into Puppet servers.
const (
	defaultTurns = 10 // machines at a time
	defaultTurn  = 2 * time.Hour
	maxTurns     = 5 // of one machine, until an operator allows more: a machine that fails must not keep others waiting

	turnKept     = time.Minute      // at most between two writes of a machine that has its turn, or waits
	askAgain     = 30 * time.Second // of a machine that waits for a decision of an operator
	longestQueue = time.Minute      // until a waiting machine asks again: a machine that does not ask loses its position
)

// turn answers a machine that asks for its turn, and keeps the turn that it has.
func (d *Server) turn(ctx context.Context, c *caller) (any, error) {
	var m join.Machine
	if err := c.read(&m); err != nil {
		return nil, err
	}
	m, refused := tidy(m)
	if refused != nil {
		return nil, refused
	}
	who, err := d.node(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := d.sameMachine(ctx, c, who, m); err != nil {
		return nil, err
	}
	spec, _, err := specs.In(d.DB).Spec(ctx, who.ref)
	if err != nil {
		return nil, err
	}
	if spec == nil || len(spec.Puppet.Servers) == 0 {
		return join.TurnAnswer{Granted: true}, nil
	}
	selected, err := d.selects(ctx, who, spec.Puppet.Provision.Where)
	if err != nil {
		return nil, err
	}
	var answer join.TurnAnswer
	err = retry(ctx, func(int) (err error) {
		answer, err = d.ask(ctx, c, who, m, queue{settings: spec.Puppet.Provision, selected: selected, now: d.Now().UTC()})
		return err
	})
	return answer, err
}

// ask judges a request, and writes the result. Most requests need no reading of the whole queue: thousands of machines may wait. A
// machine begins only on a fresh one. Whatever first boot a node names, its record is that of the one that joined: each has its own turns.
func (d *Server) ask(ctx context.Context, c *caller, who certified, m join.Machine, q queue) (answer join.TurnAnswer, err error) {
	boots, ref := access.FirstBootsIn(d.DB), who.ref
	own := &access.FirstBoot{Machine: m.ID, ID: who.identity.FirstBoot, Hostname: m.Hostname, Node: who.identity.Node, Role: who.identity.Role, Step: "turn", State: access.BootStarted, Started: q.now, Since: q.now, Joined: true}
	known, revision, err := boots.Get(ctx, ref, own.Key())
	if err == nil {
		err = d.ownBoot(ctx, ref, own.Node, known)
	}
	if err != nil {
		return join.TurnAnswer{}, err
	}
	if known != nil {
		own = known
	}
	var turns int64
	var next access.FirstBoot
	var refused error
	judge := func(all map[string]access.FirstBoot) {
		q.boots = all
		answer, next, refused = q.judge(*own)
	}
	if !own.Finished.IsZero() || own.HasTurn(q.now) {
		judge(nil)
	} else {
		if q.shared, turns, err = boots.Provisioning(ctx, ref); err != nil { // before the records: another machine that begins meanwhile is a conflict
			return answer, err
		}
		if err = d.boots.use(ctx, ref, bootsLast, judge); err == nil && answer.Granted {
			err = d.boots.use(ctx, ref, 0, judge)
		}
	}
	switch err := errors.Join(err, refused); {
	case err != nil || !own.Finished.IsZero():
		return answer, err
	case answer.Granted && !own.HasTurn(q.now):
		if err := boots.Begin(ctx, ref, next, revision, q.shared, turns); err != nil {
			return answer, err
		}
		d.Log.Info("provisioning begins", append(c.say, "machine", m.ID, "turn", next.Turns)...)
	case next.Asked.Equal(own.Asked) && next.Turn.Equal(own.Turn) && q.now.Sub(own.Heard) < turnKept && q.now.Sub(own.Again) < turnKept:
	default:
		if err := boots.Put(ctx, ref, next, revision); err != nil {
			return answer, err
		}
	}
	d.boots.change(ref, func(all map[string]access.FirstBoot) { all[next.Key()] = next })
	return answer, nil
}

// ownBoot refuses the record of a first boot that is another live node's.
func (d *Server) ownBoot(ctx context.Context, ref model.Ref, node string, b *access.FirstBoot) error {
	if b == nil || b.Node == "" || b.Node == node {
		return nil
	}
	other, _, err := access.IdentitiesIn(d.DB).Get(ctx, ref, b.Node)
	if err == nil && other.Live() && access.BootKey(other.Machine, other.FirstBoot) == b.Key() {
		return no(join.WrongMachine, join.Params{Node: b.Node, Machine: begin(b.Machine), Sender: b.Machine})
	}
	return err
}

// queue is the input of a decision about a machine's turn.
type queue struct {
	settings settings.PuppetProvision
	selected bool // by the expression of the settings
	shared   access.Provisioning
	boots    map[string]access.FirstBoot // of all machines of the environment
	now      time.Time
}

// judge decides whether a machine may begin, in the order of the first requests. next is its record with the decision.
func (q queue) judge(own access.FirstBoot) (a join.TurnAnswer, next access.FirstBoot, err error) {
	next = own
	next.Heard, next.Again = q.now, q.now
	if !own.Finished.IsZero() || own.HasTurn(q.now) { // an operator repeats steps, or the machine resumes
		return join.TurnAnswer{Granted: true}, next, nil
	}
	next.Turn, next.Until = time.Time{}, time.Time{}
	if own.Turns >= maxTurns {
		return a, next, no(join.TurnsUsedUp, join.Params{Used: own.Turns, Node: own.Node})
	}
	if !q.selected {
		next.Asked = time.Time{}
		return join.TurnAnswer{Wait: join.WaitFiltered, After: askAgain}, next, nil
	}
	if !own.Waits(q.now) { // it never asked, or was silent and lost its place
		next.Asked = q.now
	}
	if p := q.shared.Paused; p != nil {
		return join.TurnAnswer{Wait: join.WaitPaused, By: p.By, Why: p.Why, After: askAgain}, next, nil
	}
	free := cmp.Or(q.settings.Concurrency, defaultTurns)
	for key, b := range q.boots {
		if key != own.Key() && b.HasTurn(q.now) {
			free--
		}
	}
	before := next.Place(q.boots, q.now)
	pause := q.shared.Last.Add(time.Duration(q.settings.Sleeptime)).Sub(q.now)
	switch {
	case free <= before:
		return join.TurnAnswer{Wait: join.WaitFull, Before: before, After: min(5*time.Second+time.Duration(before)*time.Second, longestQueue)}, next, nil
	case pause > 0 && pause <= time.Duration(q.settings.Sleeptime): // a clock that was ahead must not stop the queue
		return join.TurnAnswer{Wait: join.WaitPause, Before: before, After: min(pause, longestQueue)}, next, nil
	case q.settings.Sleeptime > 0 && before > 0: // one at a time begins
		return join.TurnAnswer{Wait: join.WaitFull, Before: before, After: min(time.Duration(q.settings.Sleeptime), longestQueue)}, next, nil
	}
	next.Asked, next.Turn, next.Turns = time.Time{}, q.now, own.Turns+1
	next.Until = q.now.Add(cmp.Or(time.Duration(q.settings.Turn), defaultTurn))
	return join.TurnAnswer{Granted: true}, next, nil
}

// selects reports whether an expression selects a node. Facts count as soon as the node has published them.
func (d *Server) selects(ctx context.Context, who certified, text string) (bool, error) {
	if text == "" {
		return true, nil
	}
	expression, err := where.Parse(text)
	if err != nil { // `env apply` refuses it; a newer pulley may know other functions
		return false, err
	}
	node := who.identity.Node
	state, err := fleet.In(d.DB).OneAsReported(ctx, who.ref, node) // a node must not cause a read of the fleet
	if err != nil {
		return false, err
	}
	sel, _, err := fleet.Narrow(ctx, d.DB, who.ref, state, fleet.Selection{Nodes: []string{node}, Where: expression}, d.Now())
	return err == nil && sel.Has(who.identity.Role, node), err
}
