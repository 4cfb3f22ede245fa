// Package journal stores staged rollouts and jobs: plans, progress and assignments. It reads what the next step needs, and takes a step in
// one transaction with its guards.
//
// It must never decide a step: package rollout does, with the time that its caller gives.
package journal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/desired"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/rollout"
)

// Campaigns stores staged rollouts, and carries out their steps.
type Campaigns struct {
	db      *etcd.DB
	targets *targets.Targets
	fleet   *fleet.Fleet
}

// In returns the rollouts and jobs of a fleet.
func In(db *etcd.DB) *Campaigns { return &Campaigns{db, targets.In(db), fleet.In(db)} }

// Limits of the transactions of a campaign.
const (
	membersInChunk = 2000      // about 160 KiB
	namesInChunk   = 256 << 10 // bytes of the components that the members have
	nodesInTxn     = 40        // three reads of each, or three guards
)

// JobLease is how long the nodes of a job wait when no serve advances it.
const JobLease = 15 * time.Minute

// LostError means that the staged rollout or job that owns an environment is not there, or cannot be read: only a recovery ends it.
type LostError struct {
	ID    string
	cause error
	ref   model.Ref
}

func (e *LostError) Error() string {
	return e.What() + fmt.Sprintf("\nend it: `pulley recover -e %s`; its nodes then take what is desired for them", e.ref)
}

// What is the error without its remedy.
func (e *LostError) What() string {
	return fmt.Sprintf("%s %s is in progress, and cannot be read: %v", model.Noun(e.ID), e.ID, e.cause)
}

// startedBy is what a plan adds to the history.
func startedBy(p rollout.Plan) *targets.Started {
	return &targets.Started{ID: p.ID, Target: p.Target, Agent: p.Agent.Version}
}

// Campaign is a staged rollout as it was read, with the guards for its next step.
type Campaign struct {
	Plan    rollout.Plan
	State   rollout.State
	Gate    model.Gate
	Desires targets.Desires // read after the state

	state int64 // revision
}

// chunk is a part of the nodes of a plan.
type chunk struct {
	Parts []part `json:"parts"`
}

// part is nodes of one group of a plan.
type part struct {
	Group   int              `json:"group"` // index, or outside
	Members []rollout.Member `json:"members"`
}

// outside is the group of the nodes outside of a plan's groups.
const outside = -1

// Start writes a campaign into the gate: from then on it owns the targets of the environment. The plan's ID and epoch are
// set here. It returns ErrCampaign if there is one already, and ErrConflict if the targets changed since d was read.
func (s *Campaigns) Start(ctx context.Context, ref model.Ref, d targets.Desires, p rollout.Plan, a targets.Author) (rollout.Plan, error) {
	fail := func(err error) (rollout.Plan, error) {
		if p.Kind == rollout.Run {
			return rollout.Plan{}, fmt.Errorf("cannot start a job in %s: %w", ref, err)
		}
		return rollout.Plan{}, fmt.Errorf("cannot start a rollout in %s: %w", ref, err)
	}
	k, scope, at := s.db.Env(ref), etcd.Scope{Role: p.Role}, a.At.UTC().Truncate(time.Second)
	switch {
	case d.Gate.Rollout != "":
		return fail(&targets.CampaignError{ID: d.Gate.Rollout})
	case p.Agent.Version != "" && p.Target != (model.Target{}):
		return fail(errors.New("its target has an agent and content, which never change together\nroll out the one, then the other"))
	case p.Role != "" && p.Target.Data != 0:
		return fail(errors.New("a generation of data is that of all nodes, and the rollout is of one role"))
	case p.Target.Data != 0 && p.Target.Release != "" && len(d.Pinned()) > 0:
		return fail(fmt.Errorf("its target has a release and data, and %s has a release of its own\nroll out the one, then the other", d.Pinned()[0]))
	}
	p.Epoch = d.Gate.Epoch + 1
	kind := targets.RolloutStarted
	p.ID = fmt.Sprintf("r%d", p.Epoch)
	if p.Kind == rollout.Run {
		kind, p.ID = targets.JobStarted, fmt.Sprintf("j%d", p.Epoch)
	}
	p.Nonce = etcd.Nonce()
	own := d.Target(scope)
	c := targets.Change{
		Epoch: p.Epoch, Kind: kind, Role: p.Role, Before: own, After: own, By: a.By, Why: model.Prose(a.Why), At: at,
		Rollout: startedBy(p),
	}
	if !targets.PossibleEpoch(c.Epoch, a.At) {
		return fail(fmt.Errorf("the gate has epoch %d, after which no change is possible", d.Gate.Epoch))
	}
	if p.Agent.Version != "" {
		if err := wish(d, p, a.At).Fits(); err != nil {
			return fail(err)
		}
	}
	b := s.targets.There(ref, p.Target).
		If(etcd.Same(k.Gate(), d.GateRevision), etcd.Same(k.Target(scope), d.Revisions[k.Target(scope)]), etcd.Same(k.Campaign(p.ID), 0)).
		If(etcd.Same(k.AgentChoice(), d.Revisions[k.AgentChoice()])).
		Put(k.Gate(), model.Gate{Epoch: p.Epoch, State: model.GateOpen, Rollout: p.ID, By: a.By, Why: model.Prose(a.Why), At: at}).
		Put(k.Campaign(p.ID), p).Put(k.CampaignState(p.ID), rollout.Start(at)).
		Put(k.Change(c.Epoch), c).Touch(s.db.Keys.Targets())
	if err := s.targets.SignStart(ctx, b, ref, d, c, a); err != nil { // before anything is written: it may take long, or need a person
		return fail(err)
	}
	draft, err := s.db.Draft(ctx)
	if err != nil {
		return fail(err)
	}
	defer draft.Close(ctx)
	for i, part := range chunks(p) {
		if err := draft.Put(ctx, k.CampaignNodes(p.ID, p.Nonce, i), part); err != nil {
			return fail(err)
		}
	}
	draft.Keep(b)
	var job etcd.LeaseSwap
	if p.Kind == rollout.Run {
		if job.Fresh, err = s.db.Grant(ctx, JobLease); err != nil {
			return fail(err)
		}
		b.Put(k.Job(), model.LiveJob{ID: p.ID}, clientv3.WithLease(job.Fresh))
	}
	err = s.db.Commit(ctx, b)
	s.db.SettleLease(ctx, job, err)
	if err != nil {
		return fail(err)
	}
	return p, nil
}

// chunks divides the nodes of a plan into values that etcd accepts.
func chunks(p rollout.Plan) (all []chunk) {
	last, nodes, names := chunk{}, 0, 0
	add := func(group int, members []rollout.Member) {
		from := 0
		for i, m := range members {
			size := 0
			for _, name := range m.Does {
				size += len(name.String()) + 50
			}
			if nodes > 0 && (nodes == membersInChunk || names+size > namesInChunk) {
				if from < i {
					last.Parts = append(last.Parts, part{group, members[from:i]})
				}
				all, last, nodes, names, from = append(all, last), chunk{}, 0, 0, i
			}
			nodes, names = nodes+1, names+size
		}
		if from < len(members) {
			last.Parts = append(last.Parts, part{group, members[from:]})
		}
	}
	add(outside, p.Outside)
	for i, g := range p.Groups {
		add(i, g.Nodes)
	}
	if len(last.Parts) > 0 {
		all = append(all, last)
	}
	return all
}

// Gated is how far the gate of an environment is, and the revision at which it was created: an environment that was made again begins with a new one.
type Gated struct {
	Epoch model.Epoch
	Since int64
}

// Open returns the campaign that owns an environment; nil if there is none; and how far its gate is. The nodes of the
// known plan, which never change, are not read again.
func (s *Campaigns) Open(ctx context.Context, ref model.Ref, known *rollout.Plan) (*Campaign, Gated, error) {
	var gate model.Gate
	var at Gated
	_, err := s.db.Read(ctx, map[string]int64{}, etcd.Point{Key: s.db.Env(ref).Gate(), Read: func(kv *etcd.KV) error {
		at.Since = kv.CreateRevision
		return etcd.Into(&gate)(kv)
	}})
	if err != nil {
		return nil, at, etcd.Wrap(err, "cannot read the rollout of %s", ref)
	}
	if at.Epoch = gate.Epoch; gate.Rollout == "" {
		return nil, at, nil
	}
	c, err := s.Get(ctx, ref, gate.Rollout, known)
	return c, at, err
}

// Get reads a campaign, also one that ended. It returns ErrNotFound if there was none, and a LostError for the one that owns the environment.
func (s *Campaigns) Get(ctx context.Context, ref model.Ref, id string, known *rollout.Plan) (*Campaign, error) {
	c, err := s.get(ctx, ref, id, known)
	damaged := new(etcd.UnreadableError)
	if errors.Is(err, etcd.ErrNotFound) || errors.As(err, &damaged) && strings.HasPrefix(damaged.Key, s.db.Env(ref).Campaigns()) && !damaged.Newer {
		gate, _, unread := etcd.Single[model.Gate](ctx, s.db, s.db.Env(ref).Gate())
		if unread == nil && gate != nil && gate.Rollout == id {
			return nil, &LostError{id, err, ref}
		}
	}
	return c, etcd.Wrap(err, "cannot read %s %s of %s", model.Noun(id), id, ref)
}

func (s *Campaigns) get(ctx context.Context, ref model.Ref, id string, known *rollout.Plan) (*Campaign, error) {
	k, c := s.db.Env(ref), &Campaign{}
	var state *rollout.State
	var plan *rollout.Plan
	revisions := map[string]int64{} // both before all else: the rest is not older
	_, err := s.db.Read(ctx, revisions, etcd.Point{Key: k.CampaignState(id), Read: etcd.Into(&state)}, etcd.Point{Key: k.Campaign(id), Read: etcd.Into(&plan)})
	switch {
	case err != nil:
		return nil, err
	case state == nil || plan == nil:
		return nil, etcd.ErrNotFound
	case plan.ID != id:
		return nil, &etcd.UnreadableError{Key: k.Campaign(id), Problem: "it is the plan of another rollout or job"}
	}
	c.State, c.state, c.Plan = *state, revisions[k.CampaignState(id)], *plan
	if known != nil && known.ID == id && known.Nonce == plan.Nonce {
		c.Plan = *known
	} else if err := s.members(ctx, k, &c.Plan); err != nil {
		return nil, err
	}
	c.Desires, err = s.targets.Desires(ctx, ref)
	c.Gate = c.Desires.Gate
	return c, err
}

// members reads the nodes of a plan.
func (s *Campaigns) members(ctx context.Context, k etcd.EnvKeys, p *rollout.Plan) error {
	key := k.CampaignMembers(p.ID, p.Nonce)
	err := s.db.Scan(ctx, key, func(_ string, kv *etcd.KV) error {
		var c chunk
		if err := etcd.Into(&c)(kv); err != nil {
			return err
		}
		for _, part := range c.Parts {
			switch {
			case part.Group == outside:
				p.Outside = append(p.Outside, part.Members...)
			case part.Group < 0 || part.Group >= len(p.Groups):
				return &etcd.UnreadableError{Key: string(kv.Key), Problem: "its plan has no such group"}
			default:
				g := &p.Groups[part.Group]
				g.Nodes = append(g.Nodes, part.Members...)
			}
		}
		return nil
	}, clientv3.WithLimit(4))
	if err == nil && len(p.Outside) != p.Others {
		err = &etcd.UnreadableError{Key: key, Problem: fmt.Sprintf("it has %d of %d other nodes", len(p.Outside), p.Others)}
	}
	for i, g := range p.Groups {
		if err == nil && len(g.Nodes) != g.Size {
			err = &etcd.UnreadableError{Key: key, Problem: fmt.Sprintf("group %d has %d of %d nodes", i, len(g.Nodes), g.Size)}
		}
	}
	return err
}

// Take carries out a step. It returns ErrConflict if the campaign or its gate changed since they were read: another
// serve, or an operator, was faster. Assignments and withdrawals of nodes that changed meanwhile are left out; the next
// step repeats them.
func (s *Campaigns) Take(ctx context.Context, ref model.Ref, c *Campaign, o rollout.Observed, step rollout.Step, now time.Time) error {
	k, p := s.db.Env(ref), c.Plan
	guards := []clientv3.Cmp{etcd.Same(k.Gate(), c.Desires.GateRevision), etcd.Same(k.CampaignState(p.ID), c.state)}
	if step.State != nil {
		return etcd.Wrap(s.move(ctx, ref, c, step, guards, now), "cannot advance %s %s of %s", model.Noun(p.ID), p.ID, ref)
	}
	for part := range slices.Chunk(step.Assign, nodesInTxn) {
		b := etcd.If(guards...)
		for _, a := range part {
			n := o.Nodes[a.Node]
			b.If(etcd.Same(k.Host(a.Node), n.HostAt), etcd.Same(k.Assignment(a.Node), n.AssignedAt)).Put(k.Assignment(a.Node), a.Assignment)
		}
		if err := s.db.Commit(ctx, b); err != nil {
			return etcd.Wrap(err, "cannot assign nodes to %s %s of %s", model.Noun(p.ID), p.ID, ref)
		}
	}
	for _, node := range step.Withdraw {
		n := o.Nodes[node]
		b := etcd.If(guards...).If(etcd.Same(k.Assignment(node), n.AssignedAt), etcd.Same(k.Status(node), n.StatusAt))
		if p.Kind == rollout.Run { // it waits like the others
			b.Put(k.Assignment(node), p.Waits(c.State.Slots[node].Machine))
		} else {
			b.Delete(k.Assignment(node))
		}
		if err := s.db.Commit(ctx, b); err != nil && !errors.Is(err, etcd.ErrConflict) {
			return etcd.Wrap(err, "cannot withdraw node %s from %s %s of %s", node, model.Noun(p.ID), p.ID, ref)
		}
	}
	return nil
}

// move writes the next state; and with it, at the end, the targets.
func (s *Campaigns) move(ctx context.Context, ref model.Ref, c *Campaign, step rollout.Step, guards []clientv3.Cmp, now time.Time) error {
	k, p := s.db.Env(ref), c.Plan
	b := etcd.If(guards...).Put(k.CampaignState(p.ID), step.State)
	switch {
	case p.Kind == rollout.Run && step.State.Phase != rollout.Advancing && step.State.Phase != rollout.Replaced:
		_, err := s.endJob(ctx, b, ref, c, *step.State, targets.Author{By: "pulley serve", At: now})
		return err
	case step.State.Phase == rollout.Completed:
		before := c.Desires.Target(etcd.Scope{Role: p.Role})
		signed, _, err := s.targets.Endings(ctx, ref, p.ID)
		if err != nil {
			return err
		}
		done := targets.Change{Kind: targets.Promoted, Role: p.Role, Before: before, After: p.Target.Overlay(before), Ending: &signed.Completed}
		if p.Agent.Version != "" {
			done.Rollout = startedBy(p)
			b.If(etcd.Same(k.AgentChoice(), c.Desires.Revisions[k.AgentChoice()])).Put(k.AgentChoice(), wish(c.Desires, p, now))
		}
		_, err = s.targets.Change(ctx, b, ref, c.Desires, done, targets.Author{By: p.By, Why: string(p.Why), At: now, Ends: p.ID})
		return err
	case step.State.Phase == rollout.Reverted:
		_, err := s.revert(ctx, b, ref, c, targets.Author{By: "pulley serve", At: now})
		return err
	case step.Close != nil:
		gate := c.Gate
		gate.State, gate.By, gate.Why, gate.At = model.GatePaused, "pulley serve", "", now.UTC().Truncate(time.Second)
		b.Put(k.Gate(), gate)
	}
	return s.db.Commit(ctx, b)
}

// Revert ends a campaign: with the next epoch its assignments are void, and each node takes what is desired for it, which the campaign
// never changed. Permit and statement are signed by the author or, without a key, were signed at the start: where nodes accept
// neither, the change is Unsigned or Unstated.
func (s *Campaigns) Revert(ctx context.Context, ref model.Ref, c *Campaign, a targets.Author) (targets.Change, error) {
	if c.Gate.Rollout != c.Plan.ID {
		return targets.Change{}, fmt.Errorf("cannot revert rollout %s of %s: %w", c.Plan.ID, ref, rollout.ErrEnded)
	}
	k := s.db.Env(ref)
	b := etcd.If(etcd.Same(k.CampaignState(c.Plan.ID), c.state)).Put(k.CampaignState(c.Plan.ID), c.State.Revert(a.At))
	done, err := s.revert(ctx, b, ref, c, a)
	return done, etcd.Wrap(err, "cannot revert rollout %s of %s", c.Plan.ID, ref)
}

func (s *Campaigns) revert(ctx context.Context, b *etcd.Batch, ref model.Ref, c *Campaign, a targets.Author) (targets.Change, error) {
	signed, _, err := s.targets.Endings(ctx, ref, c.Plan.ID)
	if err != nil {
		return targets.Change{}, err
	}
	own := c.Desires.Target(etcd.Scope{Role: c.Plan.Role})
	a.Ends = c.Plan.ID
	return s.targets.Change(ctx, b, ref, c.Desires, targets.Change{
		Kind: targets.Reverted, Role: c.Plan.Role, Before: own, After: own, Rollout: startedBy(c.Plan), Ending: &signed.Reverted,
	}, a)
}

// Abort ends a job: its nodes wait no longer.
func (s *Campaigns) Abort(ctx context.Context, ref model.Ref, c *Campaign, a targets.Author) (rollout.State, error) {
	if c.Gate.Rollout != c.Plan.ID {
		return c.State, fmt.Errorf("cannot abort job %s of %s: %w", c.Plan.ID, ref, rollout.ErrEnded)
	}
	k, next := s.db.Env(ref), c.State.Abort(a.At, a.By, model.Prose(a.Why))
	b := etcd.If(etcd.Same(k.CampaignState(c.Plan.ID), c.state)).Put(k.CampaignState(c.Plan.ID), next)
	_, err := s.endJob(ctx, b, ref, c, next, a)
	return next, etcd.Wrap(err, "cannot abort job %s of %s", c.Plan.ID, ref)
}

// endJob ends a job in a state: with the next epoch its assignments are void.
func (s *Campaigns) endJob(ctx context.Context, b *etcd.Batch, ref model.Ref, c *Campaign, end rollout.State, a targets.Author) (targets.Change, error) {
	signed, _, err := s.targets.Endings(ctx, ref, c.Plan.ID)
	if err != nil {
		return targets.Change{}, err
	}
	free, err := s.notHeld(ctx, ref, c, end)
	if err != nil {
		return targets.Change{}, err
	}
	with := free[:min(len(free), etcd.MaxDraft)]
	lease, err := s.keepWaiting(ctx, b, ref, c, with, a)
	if err != nil {
		return targets.Change{}, err
	}
	b.Delete(s.db.Env(ref).Job())
	own := c.Desires.Target(etcd.Scope{Role: c.Plan.Role})
	a.Ends = c.Plan.ID
	done, err := s.targets.Change(ctx, b, ref, c.Desires, targets.Change{
		Kind: targets.JobEnded, Role: c.Plan.Role, Before: own, After: own, Rollout: startedBy(c.Plan), Ending: &signed.Reverted,
	}, a)
	s.db.SettleLease(ctx, lease, err)
	if err != nil || len(with) == len(free) {
		return done, err
	}
	if err := s.keepOthersWaiting(ctx, ref, c, end, done, a); err != nil {
		err = fmt.Errorf("cannot hold all nodes that failed in it: %w\n`pulley job show %s -e %s` names them; hold them: `pulley hold -e %s --node NODE --stop --why TEXT`", err, c.Plan.ID, ref, ref)
		return done, err
	}
	return done, nil
}

// notHeld returns the nodes that failed in a job and that its policy holds. A node with a hold keeps it, also an unreadable one.
func (s *Campaigns) notHeld(ctx context.Context, ref model.Ref, c *Campaign, end rollout.State) ([]string, error) {
	if c.Plan.Policy.KeepWaiting == 0 || len(end.Failed) == 0 {
		return nil, nil
	}
	k, held := s.db.Env(ref), map[string]bool{}
	err := s.db.Scan(ctx, k.Holds(), func(_ string, kv *etcd.KV) error {
		held[string(kv.Key)] = true
		return nil
	}, clientv3.WithKeysOnly())
	return slices.DeleteFunc(slices.Sorted(maps.Keys(end.Failed)), func(node string) bool { return held[k.Hold(etcd.Scope{Node: node})] }), err
}

// keepWaiting adds holds of nodes to a batch. In the transaction that ends the job, they belong to that end: one that fails, is killed or loses
// a race holds no node. The caller then calls SettleLease.
func (s *Campaigns) keepWaiting(ctx context.Context, b *etcd.Batch, ref model.Ref, c *Campaign, nodes []string, a targets.Author) (l etcd.LeaseSwap, err error) {
	if len(nodes) == 0 {
		return l, nil
	}
	lasts, at := time.Duration(c.Plan.Policy.KeepWaiting), a.At.UTC().Truncate(time.Second)
	if l.Fresh, err = s.db.Grant(ctx, lasts); err != nil {
		return l, err
	}
	for _, node := range nodes {
		scope := etcd.Scope{Node: node}
		key := s.db.Env(ref).Hold(scope)
		b.If(etcd.Same(key, 0)).Put(key, model.Hold{
			Scope: scope.Segment("all"), Mode: model.Stop, Kind: model.OperatorHold, Who: c.Plan.By,
			Why: model.Prose("it failed in job " + c.Plan.ID), Since: at, Until: at.Add(lasts),
		}, clientv3.WithLease(l.Fresh))
	}
	return l, nil
}

// keepOthersWaiting holds the failed nodes that the transaction which ended the job had no room for, until there is a later change.
func (s *Campaigns) keepOthersWaiting(ctx context.Context, ref model.Ref, c *Campaign, end rollout.State, done targets.Change, a targets.Author) error {
	for {
		gate, revision, err := etcd.Single[model.Gate](ctx, s.db, s.db.Env(ref).Gate())
		if err != nil || gate == nil || gate.Epoch != done.Epoch {
			return err
		}
		free, err := s.notHeld(ctx, ref, c, end)
		if err != nil || len(free) == 0 {
			return err
		}
		b := etcd.If(etcd.Same(s.db.Env(ref).Gate(), revision))
		lease, err := s.keepWaiting(ctx, b, ref, c, free[:min(len(free), etcd.MaxDraft)], a)
		if err == nil {
			err = s.db.Commit(ctx, b)
			s.db.SettleLease(ctx, lease, err)
		}
		if err != nil && !errors.Is(err, etcd.ErrConflict) {
			return err
		}
	}
}

// KeepAlive renews the lease of a job. It does nothing when the job has ended.
func (s *Campaigns) KeepAlive(ctx context.Context, ref model.Ref) error {
	resp, err := s.db.Get(ctx, s.db.Env(ref).Job())
	if err == nil && len(resp.Kvs) > 0 && resp.Kvs[0].Lease != 0 {
		_, err = s.db.Client.KeepAliveOnce(ctx, clientv3.LeaseID(resp.Kvs[0].Lease))
	}
	return etcd.Wrap(err, "cannot renew the lease of the job in %s", ref)
}

// Set opens or closes the gate of a campaign for an operator, and replaces its state if next is not nil.
func (s *Campaigns) Set(ctx context.Context, ref model.Ref, c *Campaign, to model.GateState, next *rollout.State, a targets.Author) error {
	k, gate := s.db.Env(ref), c.Gate
	if gate.Rollout != c.Plan.ID {
		return fmt.Errorf("cannot change rollout %s of %s: %w", c.Plan.ID, ref, rollout.ErrEnded)
	}
	gate.State, gate.By, gate.Why, gate.At = to, a.By, model.Prose(a.Why), a.At.UTC().Truncate(time.Second)
	b := etcd.If(etcd.Same(k.Gate(), c.Desires.GateRevision)).Put(k.Gate(), gate)
	if next != nil {
		b.If(etcd.Same(k.CampaignState(c.Plan.ID), c.state)).Put(k.CampaignState(c.Plan.ID), next)
	}
	return etcd.Wrap(s.db.Commit(ctx, b), "cannot change rollout %s of %s", c.Plan.ID, ref)
}

// Update replaces the state of a campaign for an operator. It returns ErrConflict if the state or the gate changed since
// they were read.
func (s *Campaigns) Update(ctx context.Context, ref model.Ref, c *Campaign, to rollout.State) error {
	k := s.db.Env(ref)
	b := etcd.If(etcd.Same(k.Gate(), c.Desires.GateRevision), etcd.Same(k.CampaignState(c.Plan.ID), c.state)).Put(k.CampaignState(c.Plan.ID), to)
	return etcd.Wrap(s.db.Commit(ctx, b), "cannot change rollout %s of %s", c.Plan.ID, ref)
}

// List returns the campaigns of an environment, newest first, without their nodes and targets. damaged names unreadable keys.
func (s *Campaigns) List(ctx context.Context, ref model.Ref) (all []Campaign, damaged []string, err error) {
	k := s.db.Env(ref)
	var ids []string
	err = s.db.Scan(ctx, k.Campaigns(), func(rest string, _ *etcd.KV) error {
		if id, ok := strings.CutSuffix(rest, "/plan"); ok {
			ids = append(ids, id)
		}
		return nil
	}, clientv3.WithKeysOnly())
	for _, id := range ids {
		if err != nil {
			break
		}
		c := Campaign{}
		_, one := s.db.Read(ctx, map[string]int64{}, etcd.Point{Key: k.Campaign(id), Read: etcd.Into(&c.Plan)},
			etcd.Point{Key: k.CampaignState(id), Read: etcd.Into(&c.State)}, etcd.Point{Key: k.Gate(), Read: etcd.Into(&c.Gate)})
		switch {
		case errors.As(one, new(*etcd.UnreadableError)):
			damaged = append(damaged, one.Error())
		case one != nil:
			err = one
		case c.Plan.ID != "":
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b Campaign) int { return int(b.Plan.Epoch - a.Plan.Epoch) })
	return all, damaged, etcd.Wrap(err, "cannot list the rollouts of %s", ref)
}

// MayRevert reports whether nodes with allowed signers accept the revert of a campaign without a key: no target is lower, or its
// permit was signed at the start and did not end.
func (s *Campaigns) MayRevert(ctx context.Context, ref model.Ref, c *Campaign, now time.Time) (bool, error) {
	scope := etcd.Scope{Role: c.Plan.Role}
	lower, err := s.targets.Lowers(ctx, ref, c.Desires, scope, c.Desires.Target(scope), now)
	if err != nil || !lower {
		return err == nil, err
	}
	signed, _, err := s.targets.Endings(ctx, ref, c.Plan.ID)
	p, ok := signed.Reverted.PermitAt(c.Plan.Epoch + 1)
	return ok && !p.Ended(now), etcd.Wrap(err, "cannot read the permit to revert rollout %s of %s", c.Plan.ID, ref)
}

// wish returns the document with the version of an ended rollout.
func wish(d targets.Desires, p rollout.Plan, at time.Time) desired.AgentWish {
	w := d.Agents
	w.Roles, w.By, w.Why, w.At = maps.Clone(w.Roles), p.By, p.Why, at.UTC().Truncate(time.Second)
	w.Choose(etcd.Scope{Role: p.Role}, p.Agent)
	return w
}
