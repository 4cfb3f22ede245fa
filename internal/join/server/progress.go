package server

import (
	"context"
	"errors"
	"reflect"
	"regexp"
	"sync"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/clip"
	"pulley/internal/join"
	"pulley/internal/store"
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
	var p join.Told
	if err := c.read(&p); err != nil {
		return nil, err
	}
	if !machineID.MatchString(p.Machine) {
		return nil, no(join.BadRequest, join.Params{Field: join.FieldMachine})
	}
	if !stepName.MatchString(p.Step) {
		return nil, no(join.BadRequest, join.Params{Field: join.FieldStep})
	}
	c.about("machine", p.Machine, "step", p.Step)
	who, err := d.teller(ctx, c, p)
	if err != nil {
		return nil, err
	}
	for attempt := range maxAttempts {
		err := d.note(ctx, who, p.Progress)
		if !errors.Is(err, store.ErrConflict) {
			return nil, err
		}
		if err := pause(ctx, attempt); err != nil {
			return nil, err
		}
	}
	return nil, store.ErrConflict
}

// teller is the sender of a progress report.
type teller struct {
	ref   environments.Ref
	token store.Token // zero for a sender with a certificate
	node  string      // "" while it is not known
	role  string
}

func (d *Server) teller(ctx context.Context, c *caller, p join.Told) (teller, error) {
	if p.Token == "" {
		who, err := d.node(ctx, c)
		if err != nil {
			return teller{}, err
		}
		if p.Machine != who.identity.Machine {
			d.clone(ctx, who.ref, who.identity.Node, join.Machine{ID: p.Machine, Hostname: p.Hostname}, c.from)
			return teller{}, wrongMachine(who, p.Machine)
		}
		return teller{ref: who.ref, node: who.identity.Node, role: who.identity.Role}, nil
	}
	id, secret, err := store.ParseToken(p.Token)
	if err != nil {
		return teller{}, no(join.MalformedToken, join.Params{})
	}
	c.about("token", id)
	t, err := d.Store.Tokens.Find(ctx, id)
	if err != nil {
		return teller{}, err
	}
	if refused := judgeToken(t, secret, d.Now()); refused != nil {
		return teller{}, refused
	}
	if err := d.within("token " + id + " machine " + p.Machine); err != nil { // mayBegin bounds the number of machines
		return teller{}, err
	}
	if t.Operator != "" {
		return teller{}, no(join.OperatorToken, join.Params{})
	}
	c.about("env", t.Environment)
	if refused := judgeScope(*t, join.Request{Environment: p.Environment, Node: p.Node, Role: p.Role}); refused != nil {
		return teller{}, refused
	}
	ref, err := environments.ParseRef(t.Environment)
	if err != nil {
		return teller{}, err
	}
	who := teller{ref: ref, token: *t, node: t.Node, role: t.Role}
	if who.node == "" && p.Node != "" {
		n, err := environments.ParseNode(p.Node)
		if err == nil && t.Role != "" && n.Role != t.Role {
			if member, err := d.isMember(ctx, ref, p.Node, t.Role); err != nil {
				return teller{}, err
			} else if !member {
				return teller{}, no(join.WrongRole, join.Params{Node: p.Node, Role: n.Role})
			}
		}
		if err := environments.CheckMember(p.Node); err != nil {
			return teller{}, no(join.BadRequest, join.Params{Field: join.FieldNode, Problem: agent.Prose(clip.Text(err.Error(), maxSaid))})
		}
		who.node = p.Node
	}
	if who.node != "" {
		c.about("node", who.node)
	}
	return who, nil
}

// isMember reports whether a machine is a member of a role with another name.
func (d *Server) isMember(ctx context.Context, ref environments.Ref, node, role string) (bool, error) {
	e, _, err := d.Store.Environments.Spec(ctx, ref)
	if err != nil || e == nil {
		return false, err
	}
	r, ok := e.RoleOf(node)
	return ok && r.Name == role, nil
}

// note writes one report. After a conflict the caller repeats it.
func (d *Server) note(ctx context.Context, who teller, p join.Progress) error {
	b, revision, err := d.Store.FirstBoots.Get(ctx, who.ref, p.Machine)
	if err != nil {
		return err
	}
	now := d.Now().UTC()
	byToken := who.token.ID != ""
	if byToken {
		if ignored, err := d.mayTell(ctx, who, p.Machine, b); err != nil || ignored {
			return err
		}
	}
	if b == nil || byToken && !b.Finished.IsZero() { // a new first boot, or a repeated one
		b = &store.FirstBoot{Machine: p.Machine, Started: now, Token: who.token.ID}
	}
	word := *b
	if byToken {
		word.Token = who.token.ID
	}
	if who.node != "" {
		word.Node = who.node
	}
	if who.role != "" {
		word.Role = who.role
	}
	word.Hostname, word.Heard = p.Hostname, now
	if word.Step != p.Step {
		word.Step, word.Since, word.Attempts, word.Error = p.Step, now, 0, ""
	}
	switch word.State = store.BootState(p.State); word.State {
	case store.BootStarted:
		word.Attempts++
	case store.BootFailed:
		word.Error = p.Error
	case store.BootDone:
		word.Error = ""
	default:
		return no(join.BadRequest, join.Params{Field: join.FieldState})
	}
	if p.Finished && word.Finished.IsZero() {
		word.Finished = now
	}
	if revision != 0 && says(*b, word) && now.Sub(b.Heard) < sameLasts {
		return nil
	}
	if err := d.Store.FirstBoots.Put(ctx, who.ref, word, revision); err != nil {
		return err
	}
	d.boots.put(who.ref, word)
	if d.OnFirstBoot != nil && (word.State == store.BootFailed || !word.Finished.Equal(b.Finished)) {
		d.OnFirstBoot(who.ref, word)
	}
	return nil
}

// says reports whether a report has no news. A repeated start of a step within a moment is no news.
func says(before, word store.FirstBoot) bool {
	word.Heard, word.Attempts = before.Heard, before.Attempts
	return reflect.DeepEqual(before, word)
}

// mayTell decides whether a token may report about a machine with record b. The machine must not have joined, and a
// join with this token must be able to get its name. ignored means that the report changes nothing and is no mistake.
// Then the machine has joined and its answer may be lost, or an operator allowed a new join.
func (d *Server) mayTell(ctx context.Context, who teller, machine string, b *store.FirstBoot) (ignored bool, err error) {
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
	if joined, err := d.boots.joined(ctx, d, who.ref, machine); err != nil || joined {
		return true, err
	}
	if who.node != "" {
		f, err := d.Store.Joins.Facts(ctx, who.token.ID, who.ref, who.node, machine)
		if err != nil {
			return true, err
		}
		if f.Identity.Live() && f.Identity.Machine == machine {
			return true, nil
		}
		if f.Token == nil {
			return true, no(join.UnknownToken, join.Params{})
		}
		if v := judgeName(ask{Request: join.Request{Machine: join.Machine{ID: machine}}, node: who.node}, f); v.refused != nil {
			return true, v.refused
		}
	}
	if refused := d.mayBegin(ctx, who, machine); refused != nil {
		return true, refused
	}
	return false, nil
}

// mayBegin refuses a machine whose token has too many first boots, or whose name is locked. The cache may miss a
// record of another serve: the join decides on the name. A refusal needs a fresh read.
func (d *Server) mayBegin(ctx context.Context, who teller, machine string) error {
	var refused *join.RefusedError
	for _, age := range []time.Duration{bootsLast, 0} {
		err := d.boots.read(ctx, d, who.ref, age, func(all map[string]store.FirstBoot) { refused = who.mayBegin(all, machine) })
		if err != nil || refused == nil {
			return err
		}
	}
	return refused
}

func (who teller) mayBegin(all map[string]store.FirstBoot, machine string) *join.RefusedError {
	most := maxMachines
	if who.token.Uses > 0 {
		most = min(who.token.Uses-who.token.Used+spareMachines, maxMachines)
	}
	count := 0
	for id, b := range all {
		if id == machine {
			continue
		}
		if b.Token == who.token.ID && !b.Joined { // including one that claims to be finished
			if count++; count >= most {
				return no(join.TooManyMachines, join.Params{})
			}
		}
		if who.node != "" && b.Node == who.node && b.Locks() {
			return no(join.LockedByAnother, join.Params{Node: who.node, Machine: begin(id), Step: b.Step})
		}
	}
	return nil
}

// boots caches the first boots of environments for a moment, because hundreds of machines may begin at the same time.
type boots struct {
	mu  sync.Mutex
	all map[string]*bootView

	whoMu sync.Mutex
	who   map[string]*joinedView
}

// joinedView is the machines of an environment that hold a name.
type joinedView struct {
	at       time.Time
	machines map[string]bool
}

// joined reports whether a machine holds a name in an environment. The data is at most bootsLast old.
func (b *boots) joined(ctx context.Context, d *Server, ref environments.Ref, machine string) (bool, error) {
	b.whoMu.Lock()
	defer b.whoMu.Unlock() // other callers wait for the same read
	now := d.Now()
	v := b.who[ref.String()]
	if v == nil || now.Sub(v.at) < 0 || now.Sub(v.at) >= bootsLast {
		all, _, err := d.Store.Identities.List(ctx, ref)
		if err != nil {
			return false, err
		}
		v = &joinedView{now, map[string]bool{}}
		for _, i := range all {
			if i.Live() {
				v.machines[i.Machine] = true
			}
		}
		b.who[ref.String()] = v
	}
	return v.machines[machine], nil
}

type bootView struct {
	at  time.Time
	all map[string]store.FirstBoot
}

// read calls look with the first boots of an environment. The data is at most age old.
func (b *boots) read(ctx context.Context, d *Server, ref environments.Ref, age time.Duration, look func(map[string]store.FirstBoot)) error {
	b.mu.Lock()
	defer b.mu.Unlock() // other callers wait for the same read
	now := d.Now()
	v := b.all[ref.String()]
	if v == nil || now.Sub(v.at) < 0 || now.Sub(v.at) >= age {
		all, _, err := d.Store.FirstBoots.List(ctx, ref)
		if err != nil {
			return err
		}
		v = &bootView{now, all}
		b.all[ref.String()] = v
	}
	look(v.all)
	return nil
}

// put adds a record that this serve wrote.
func (b *boots) put(ref environments.Ref, word store.FirstBoot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if v := b.all[ref.String()]; v != nil {
		v.all[word.Machine] = word
	}
}

// bootOf returns the first-boot record of a joining machine.
func bootOf(a ask, f store.JoinFacts, role string, now time.Time) store.FirstBoot {
	b := store.FirstBoot{Machine: a.Machine.ID, Step: "join", State: store.BootStarted, Started: now, Since: now}
	if f.Machine != nil && f.Machine.Finished.IsZero() {
		b = *f.Machine
	}
	b.Hostname, b.Node, b.Role, b.Heard, b.Token, b.Joined, b.Unlocked = a.Machine.Hostname, a.node, role, now, a.id, true, nil
	return b
}
