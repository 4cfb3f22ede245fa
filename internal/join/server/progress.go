package server

import (
	"context"
	"reflect"
	"regexp"
	"time"

	"pulley/internal/access"
	"pulley/internal/clip"
	"pulley/internal/join"
	"pulley/internal/model"
)

// maxMachines bounds the machines in their first boot with a token of unlimited uses. With n uses the bound is n and a
// few more, for machines that begin again with another machine ID.
const (
	maxMachines   = 2000
	spareMachines = 3
)

// bootsLast is the cache time of an environment's first boots, for their number and names.
const bootsLast = 2 * time.Second

// stepName matches the name of a step. A newer agent may have other steps.
var stepName = regexp.MustCompile(`^[a-z][a-z-]{0,19}$`)

// sameLasts is the shortest time between two writes of the same report.
const sameLasts = 10 * time.Second

// progress records a step of a first boot. It refuses a machine while another one is in its first boot under the same
// name.
func (d *Server) progress(ctx context.Context, c *caller) (any, error) {
	var p join.ProgressRequest
	if err := c.read(&p); err != nil {
		return nil, err
	}
	if !machineID.MatchString(p.Machine) {
		return nil, no(join.BadRequest, join.Params{Field: join.FieldMachine})
	}
	if p.FirstBoot != "" && !machineID.MatchString(p.FirstBoot) {
		p.FirstBoot = ""
	}
	if !stepName.MatchString(p.Step) {
		return nil, no(join.BadRequest, join.Params{Field: join.FieldStep})
	}
	c.about("machine", p.Machine, "step", p.Step)
	who, err := d.reporter(ctx, c, p)
	if err != nil {
		return nil, err
	}
	if who.token.ID == "" { // a node has one record, whatever first boot it names
		p.FirstBoot = who.boot
	}
	return nil, retry(ctx, func(int) error { return d.note(ctx, who, p.Progress) })
}

// reporter is the sender of a progress report.
type reporter struct {
	ref   model.Ref
	token access.Token // zero for a sender with a certificate
	node  string       // "" while it is not known
	role  string
	boot  string // the first boot of a sender with a certificate
}

func (d *Server) reporter(ctx context.Context, c *caller, p join.ProgressRequest) (reporter, error) {
	if p.Token == "" {
		who, err := d.node(ctx, c)
		if err != nil {
			return reporter{}, err
		}
		if err := d.sameMachine(ctx, c, who, join.Machine{ID: p.Machine, Hostname: p.Hostname}); err != nil {
			return reporter{}, err
		}
		return reporter{ref: who.ref, node: who.identity.Node, role: who.identity.Role, boot: who.identity.FirstBoot}, nil
	}
	id, secret, err := access.ParseToken(p.Token)
	if err != nil {
		return reporter{}, no(join.MalformedToken, join.Params{})
	}
	c.about("token", id)
	t, err := access.TokensIn(d.DB).Find(ctx, id)
	if err != nil {
		return reporter{}, err
	}
	if refused := judgeToken(t, secret, d.Now()); refused != nil {
		return reporter{}, refused
	}
	if err := d.gate.within("token " + id + " machine " + p.Machine); err != nil { // mayBegin bounds the number of machines
		return reporter{}, err
	}
	if t.Operator != "" {
		return reporter{}, no(join.OperatorToken, join.Params{})
	}
	c.about("env", t.Environment)
	if refused := judgeScope(*t, join.Request{Environment: p.Environment, Node: p.Node, Role: p.Role}); refused != nil {
		return reporter{}, refused
	}
	ref, err := model.ParseRef(t.Environment)
	if err != nil {
		return reporter{}, err
	}
	who := reporter{ref: ref, token: *t, node: t.Node, role: t.Role}
	if who.node == "" && p.Node != "" {
		if err := model.CheckMember(p.Node); err != nil {
			return reporter{}, no(join.BadRequest, join.Params{Field: join.FieldNode, Problem: model.Prose(clip.Text(err.Error(), maxSaid))})
		}
		who.node = p.Node
	}
	if who.node != "" {
		c.about("node", who.node)
	}
	return who, nil
}

// note writes one report. After a conflict the caller repeats it.
func (d *Server) note(ctx context.Context, who reporter, p join.Progress) error {
	b, revision, err := access.FirstBootsIn(d.DB).Get(ctx, who.ref, access.BootKey(p.Machine, p.FirstBoot))
	byToken := who.token.ID != ""
	if err == nil && !byToken {
		err = d.ownBoot(ctx, who.ref, who.node, b)
	}
	if err != nil {
		return err
	}
	now := d.Now().UTC()
	if byToken {
		if ignored, err := d.mayReport(ctx, who, p.Machine, p.FirstBoot, b); err != nil || ignored {
			return err
		}
	}
	if b == nil || byToken && !b.Finished.IsZero() { // a new first boot, or a repeated one
		b = &access.FirstBoot{Machine: p.Machine, ID: p.FirstBoot, Started: now, Token: who.token.ID}
	}
	next := *b
	if b.Stands(now) || !b.Turn.IsZero() && !b.HasTurn(now) { // others may have its turn
		next.EndTurn()
	}
	if byToken {
		next.Token = who.token.ID
	}
	if who.node != "" {
		next.Node = who.node
	}
	if who.role != "" {
		next.Role = who.role
	}
	next.Hostname, next.Heard = p.Hostname, now
	if next.Step != p.Step {
		next.Step, next.Since, next.Attempts, next.Error = p.Step, now, 0, ""
	}
	switch next.State = access.BootState(p.State); next.State {
	case access.BootStarted:
		if p.Error == "" {
			next.Attempts++
		} else { // it waits
			next.Error = p.Error
			if p.Step != "turn" { // for a CA or a server: others may not need it
				next.ReturnTurn()
			}
		}
	case access.BootFailed:
		next.Error = p.Error
		next.EndTurn()
	case access.BootDone:
		next.Error = ""
	default:
		return no(join.BadRequest, join.Params{Field: join.FieldState})
	}
	if p.Finished && next.Finished.IsZero() {
		next.Finished = now
	}
	if revision != 0 && says(*b, next) && now.Sub(b.Heard) < sameLasts {
		return nil
	}
	if err := access.FirstBootsIn(d.DB).Put(ctx, who.ref, next, revision); err != nil {
		return err
	}
	d.boots.change(who.ref, func(all map[string]access.FirstBoot) { all[next.Key()] = next })
	if d.OnFirstBoot != nil && (next.State == access.BootFailed || !next.Finished.Equal(b.Finished)) {
		d.OnFirstBoot(who.ref, next)
	}
	return nil
}

// says reports whether a report has no news. A repeated start of a step within a moment is no news.
func says(before, next access.FirstBoot) bool {
	next.Heard, next.Attempts = before.Heard, before.Attempts
	return reflect.DeepEqual(before, next)
}

// mayReport decides whether a token may report about a machine with record b. The machine must not have joined, and a
// join with this token must be able to get its name. ignored means that the report changes nothing and is no mistake.
// Then the machine has joined and its answer may be lost, or an operator allowed a new join.
func (d *Server) mayReport(ctx context.Context, who reporter, machine, boot string, b *access.FirstBoot) (ignored bool, err error) {
	if b != nil && b.Joined && b.Finished.IsZero() {
		if b.Token != who.token.ID { // a joined machine would report with its certificate
			return true, no(join.OtherToken, join.Params{})
		}
		return true, nil
	}
	if who.token.UsedUp() {
		return true, no(join.UsedUpToken, join.Params{Used: who.token.Used})
	}
	goesOn := b != nil && b.Finished.IsZero() && b.Token == who.token.ID
	if goesOn && (who.node == "" || who.node == b.Node) {
		return false, nil
	}
	joined := false
	if err := d.joined.use(ctx, who.ref, bootsLast, func(machines map[string]bool) { joined = machines[access.BootKey(machine, boot)] }); err != nil || joined {
		return true, err
	}
	if who.node != "" {
		f, err := access.JoinsIn(d.DB).Facts(ctx, who.token.ID, who.ref, who.node, machine, boot)
		if err != nil {
			return true, err
		}
		if f.Identity.Live() && f.Identity.Machine == machine {
			return true, nil
		}
		if f.Token == nil {
			return true, no(join.UnknownToken, join.Params{})
		}
		a := joining{Request: join.Request{Machine: join.Machine{ID: machine}}, node: who.node}
		// A machine that the environment does not call for fails at its join; its record shows operators why.
		if _, refused := roleOf(a, f); refused != nil && refused.Reason == join.WrongRole {
			return true, refused
		}
		if v := judgeName(a, f); v.refused != nil {
			return true, v.refused
		}
	}
	if refused := d.mayBegin(ctx, who, machine, boot); refused != nil {
		return true, refused
	}
	return false, nil
}

// mayBegin refuses a machine whose token has too many first boots, or whose name is locked. The cache may miss a
// record of another serve: the join decides on the name. A refusal needs a fresh read.
func (d *Server) mayBegin(ctx context.Context, who reporter, machine, boot string) error {
	var refused *join.RefusedError
	for _, age := range []time.Duration{bootsLast, 0} {
		err := d.boots.use(ctx, who.ref, age, func(all map[string]access.FirstBoot) { refused = who.mayBegin(all, machine, boot) })
		if err != nil || refused == nil {
			return err
		}
	}
	return refused
}

func (who reporter) mayBegin(all map[string]access.FirstBoot, machine, boot string) *join.RefusedError {
	most := maxMachines
	if who.token.Uses > 0 {
		most = min(who.token.Uses-who.token.Used+spareMachines, maxMachines)
	}
	count := 0
	for key, b := range all {
		if key == access.BootKey(machine, boot) {
			continue
		}
		if b.Token == who.token.ID && !b.Joined { // including one that claims to be finished
			if count++; count >= most {
				return no(join.TooManyMachines, join.Params{})
			}
		}
		if who.node != "" && b.Node == who.node && b.Machine != machine && b.Locks() {
			return no(join.LockedByAnother, join.Params{Node: who.node, Machine: begin(b.Machine), Step: b.Step})
		}
	}
	return nil
}

// bootOf returns the first-boot record of a joining machine.
func bootOf(a joining, f access.JoinFacts, role string, now time.Time) access.FirstBoot {
	b := access.FirstBoot{Machine: a.Machine.ID, ID: a.Machine.FirstBoot, Step: "join", State: access.BootStarted, Started: now, Since: now}
	if f.Machine != nil && f.Machine.Finished.IsZero() {
		b = *f.Machine
	}
	b.Hostname, b.Node, b.Role, b.Heard, b.Token, b.Joined, b.Unlocked = a.Machine.Hostname, a.node, role, now, a.id, true, nil
	return b
}
