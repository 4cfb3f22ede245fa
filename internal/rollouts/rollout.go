// Package rollouts is an operator's work on staged rollouts and jobs: plan and start one, act on one in progress, revert or repeat it, and look
// at one. It writes what `pulley serve` then carries out, one step at a time (internal/serve/control). It must never print or prompt.
package rollouts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pulley/environments/applications"
	"pulley/hieradata"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/model/refusal"
	"pulley/internal/promotion"
	"pulley/internal/release"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
	"pulley/internal/rollouts/preview"
	"pulley/internal/specs"
)

// Rollout is a staged rollout, or a job, as operators see it.
type Rollout struct {
	ID       string          `json:"id"`
	Kind     rollout.Kind    `json:"kind"`
	Noop     bool            `json:"noop,omitempty"` // of a job: its runs make no changes
	State    RolloutState    `json:"state"`
	Role     string          `json:"role,omitempty"` // scope; "": all nodes
	Target   model.Target    `json:"target"`
	Agent    string          `json:"agent,omitempty"` // version of the agent, instead of a target
	Origin   model.Target    `json:"origin"`          // of the scope, at the start
	By       string          `json:"by"`
	Why      model.Prose     `json:"why,omitempty"`
	At       time.Time       `json:"at"`
	Ended    time.Time       `json:"ended,omitzero"`
	EndedBy  string          `json:"ended_by,omitempty"` // who aborted a job
	EndedWhy model.Prose     `json:"ended_why,omitempty"`
	Nodes    int             `json:"nodes"` // of all groups
	Done     int             `json:"done"`  // nodes that took the target
	Failed   int             `json:"failed"`
	Skipped  int             `json:"skipped"`
	Excluded []string        `json:"excluded,omitzero"` // nodes with a release of their own or of their role
	Daemons  []string        `json:"daemons,omitzero"`  // nodes beside which Puppet's own daemon runs
	MayFail  int             `json:"may_fail"`          // nodes that may fail in all
	Policy   *rollout.Policy `json:"policy,omitempty"`  // below: only of one rollout
	Groups   []RolloutGroup  `json:"groups,omitempty"`
	Members  []RolloutNode   `json:"members,omitempty"` // nodes in progress, failed or skipped
	Unready  []UnreadyNodes  `json:"unready,omitempty"` // of a start: nodes that could not begin then
	Wait     *rollout.Wait   `json:"wait,omitempty"`    // what a rollout in progress waits for
	Changes  *RolloutChanges `json:"changes,omitempty"` // of one that ended
	Stop     *rollout.Stop   `json:"stop,omitempty"`    // why one that was reverted had stopped by itself
	Notes    []string        `json:"-"`                 // of a start, about its canaries

	took map[string]bool // nodes that took the target
	plan *rollout.Plan
}

// RolloutState is the state of a staged rollout: its phase, or that of its gate.
type RolloutState string

// The states. A rollout in one of the first three owns the targets of its environment.
const (
	RolloutAdvancing RolloutState = "advancing"
	RolloutPaused    RolloutState = "paused"
	RolloutAborted   RolloutState = "aborted"
	RolloutCompleted RolloutState = "completed"
	RolloutReverted  RolloutState = "reverted"
	RolloutReplaced  RolloutState = "replaced"

	JobFailed  RolloutState = "failed"  // the rest of its nodes did not run
	JobAborted RolloutState = "aborted" // it has ended
	JobLost    RolloutState = "lost"
)

// RolloutGroup is the progress of a group.
type RolloutGroup struct {
	Name    string `json:"name"`
	Nodes   int    `json:"nodes"`
	Batch   int    `json:"batch"`              // nodes at a time
	Batches int    `json:"batches"`            // 0: not known yet
	Begun   int    `json:"begun"`              // nodes that were ordered, or left out
	MayFail *int   `json:"may_fail,omitempty"` // nodes of one batch that may fail; nil: only the limit of the rollout counts

	From    time.Time `json:"from,omitzero"`                   // when its first node was ordered
	To      time.Time `json:"to,omitzero"`                     // when its last node ended
	Slowest int       `json:"slowest_batch,omitempty"`         // number of the slowest batch that ended, from 1
	Seconds int64     `json:"slowest_batch_seconds,omitempty"` // that it took
}

// UnreadyNodes are nodes that could not begin for one cause.
type UnreadyNodes struct {
	Cause rollout.UnreadyCause `json:"cause"`
	Does  rollout.Unready      `json:"does"` // the policy
	Nodes []string             `json:"nodes"`
}

// RolloutNode is a node of a rollout that is in progress, failed, or was left out.
type RolloutNode struct {
	Node  string               `json:"node"`
	State RolloutNodeState     `json:"state"`
	Since time.Time            `json:"since,omitzero"`  // of a node in progress
	Quiet bool                 `json:"quiet,omitempty"` // ordered, and has reported nothing since
	Heard time.Time            `json:"heard,omitzero"`  // its last report before, if it is quiet; absent: none
	Code  rollout.FailureCode  `json:"code,omitempty"`
	Cause rollout.UnreadyCause `json:"cause,omitempty"` // of a failed node that could not begin
	Skip  rollout.SkipCode     `json:"skip,omitempty"`
	Run   string               `json:"run,omitempty"` // that failed

	Problem model.Problem  `json:"problem,omitzero"`  // of the agent that the node dropped or refused
	Refusal *refusal.Error `json:"refusal,omitempty"` // of the target that the node refused

	Does []applications.Name `json:"does,omitempty"` // of a job: the components of the node
}

// RolloutNodeState is the state of a node in a rollout.
type RolloutNodeState string

// The states of nodes, beside those of a slot.
const (
	NodeFailed  RolloutNodeState = "failed"
	NodeAgain   RolloutNodeState = "again" // it failed, and waits to be ordered again
	NodeSkipped RolloutNodeState = "skipped"
)

// errNoRollout means that an environment has no rollout in progress.
var errNoRollout = errors.New("no rollout is in progress")

// noRollout returns the error of an environment without a rollout in progress.
func noRollout(ref model.Ref) error {
	return fmt.Errorf("%w in %s\n`pulley rollout list -e %s` lists earlier ones", errNoRollout, ref, ref)
}

// isJob returns the error of a verb for rollouts while a job is in progress.
func isJob(ref model.Ref, id string) error {
	return fmt.Errorf("%w in %s: %s is a job\n`pulley job show -e %s` shows it, `pulley job abort -e %s` ends it", errNoRollout, ref, id, ref, ref)
}

// Noun is what people call the campaign.
func (r Rollout) Noun() string {
	if r.Noop {
		return "noop job"
	}
	return noun(r.Kind)
}

func noun(k rollout.Kind) string {
	if k == rollout.Run {
		return "job"
	}
	return "rollout"
}

// RolloutTarget is what a staged rollout brings to nodes: a release, a generation of live data, or both.
type RolloutTarget struct {
	Version string           // of a release; "": nodes keep theirs
	Data    model.Generation // 0: nodes keep theirs

	Agent     string // version of the agent, without the others
	Downgrade bool   // of the agent
}

// find reads the target. remedy is what signs the part of it that nobody signed; "" if all of it is signed.
func (t RolloutTarget) find(ctx context.Context, s *etcd.DB, ref model.Ref, scope promotion.Scope, a promotion.Author) (target model.Target, remedy string, err error) {
	if t.Version != "" {
		d, err := targets.In(s).Desires(ctx, ref)
		if err != nil {
			return target, "", err
		}
		taker, err := promotion.Taker(ctx, s, ref, d, scope, a)
		if err != nil {
			return target, "", err
		}
		release, err := taker.Resolve(ctx, release.In(s), t.Version)
		if err != nil {
			return target, "", err
		}
		if target = release.Target(); len(release.Signatures) == 0 {
			remedy = fmt.Sprintf("sign the release: `pulley releases sign %s --sign-key FILE`", release.Version)
		}
	}
	if t.Data != 0 {
		g, err := targets.In(s).Generation(ctx, ref.String(), t.Data)
		if errors.Is(err, etcd.ErrNotFound) {
			err = fmt.Errorf("%w\nrun `pulley data history -e %s` to list the generations", err, ref)
		}
		if err != nil {
			return target, "", err
		}
		if target.Data, target.DataDigest = t.Data, hieradata.Digest(g.Record); len(g.Signatures) == 0 {
			remedy = fmt.Sprintf("sign its data, as a new generation: `pulley data revert %d -e %s --rollout --sign-key FILE`", t.Data, ref)
		}
	}
	return target, remedy, nil
}

// Author is the author of a rollout.
type Author struct {
	promotion.Author
	Look  Look              // runs the preview that the policy of rollouts may demand
	based *model.Generation // of the data that a rollout of data was made from; nil: any
}

// Look runs a preview and shows its page. It returns the time of its end.
type Look func(context.Context, *etcd.DB, model.Ref, preview.Query) (preview.Page, time.Time, error)

// StartRollout starts a staged rollout of a target to all nodes, or to those of a role. From then on `pulley serve`
// orders its nodes to take the target, batch by batch.
func StartRollout(ctx context.Context, s *etcd.DB, ref model.Ref, scope promotion.Scope, to RolloutTarget, a Author) (r Rollout, err error) {
	if scope.Node != "" {
		return r, errors.New("a rollout is for all nodes or for a role: promote the release for one node")
	}
	err = promotion.Retry(func() error {
		if to.Agent != "" {
			r, err = startAgentRollout(ctx, s, ref, scope, to.Agent, to.Downgrade, a.Author)
			return err
		}
		target, remedy, err := to.find(ctx, s, ref, scope, a.Author)
		if err == nil {
			r, err = begin(ctx, s, ref, scope, target, remedy, a)
		}
		return err
	})
	return r, err
}

// errDataChanged means that a rollout would undo a change of live data that was made after its generation.
var errDataChanged = errors.New("the live data changed meanwhile")

// begin starts a rollout of a target: one attempt. remedy is what signs an unsigned one.
func begin(ctx context.Context, s *etcd.DB, ref model.Ref, scope promotion.Scope, target model.Target, remedy string, a Author) (r Rollout, err error) {
	if scope.Role != "" && target.Data != 0 {
		return r, errors.New("a generation of data is that of all nodes, and the rollout is of one role\nroll it out without --role")
	}
	p, err := PlanRollout(ctx, s, ref, target, scope.Role, a.Author.Author)
	if err != nil {
		return r, err
	}
	if a.based != nil && p.Desires.Default.Data != *a.based {
		return r, errDataChanged
	}
	if !a.Unsigned && p.demandsSigned && remedy != "" {
		return r, promotion.UnsignedError("roll out "+target.String(), ref, remedy)
	}
	if !a.Unsigned && p.demandsSigned && a.Key == nil {
		return r, promotion.UnsignedError("start a rollout of "+target.String(), ref, "sign its way back: give --sign-key FILE")
	}
	if own := p.Plan.Origin.Overlay(p.Desires.Default); p.Plan.Target.Overlay(own) == own {
		return r, fmt.Errorf("cannot start a rollout in %s: %s is the target of %s already", ref, target, scope)
	}
	if p.demandsPreview {
		if a.At, err = lookFirst(ctx, s, ref, &p, a); err != nil {
			return r, err
		}
	}
	if !a.Rollout || !a.DryRun { // else the generation is not there, and the plan is all that can be said
		if p.Plan, err = journal.In(s).Start(ctx, ref, p.Desires, p.Plan, a.Signing()); err != nil {
			return r, err
		}
	}
	r = describeRollout(p.Plan, rollout.Start(a.At), model.Gate{Rollout: p.Plan.ID, State: model.GateOpen})
	r.Notes, r.Unready = p.Notes, p.Unready
	return r, nil
}

// lookFirst runs the preview that the policy demands, and refuses a target that the policy does not allow. It returns the time of its
// end. The start compares the targets that were read before it: a change in the meantime repeats it.
func lookFirst(ctx context.Context, s *etcd.DB, ref model.Ref, p *PlannedRollout, a Author) (time.Time, error) {
	target, scope := p.Plan.Target, promotion.Scope{Role: p.Plan.Role}
	if p.Desires.Gate.Rollout != "" { // the start refuses it
		return p.Plan.At, nil
	}
	again := fmt.Sprintf("pulley preview %s -e %s%s", cmp.Or(target.Release, p.Desires.Target(scope).Release, p.Desires.Default.Release), ref, promotion.Flags(scope))
	if target.Data != 0 {
		again += fmt.Sprintf(" --data %d", target.Data)
	}
	if target.Release != "" {
		r, err := release.In(s).Get(ctx, target.Release)
		if err != nil {
			return p.Plan.At, err
		}
		if r.PuppetEnvironment != "" {
			p.Notes = append(p.Notes, fmt.Sprintf("%s names environment %s of a Puppet server: no preview of it is possible, and rollout.preview demands none", r.Version, r.PuppetEnvironment))
			return p.Plan.At, nil
		}
	}
	if a.DryRun {
		p.Notes = append(p.Notes, fmt.Sprintf("rollout.preview demands a preview first, and a dry run orders none: `%s`", again))
		return p.Plan.At, nil
	}
	q := preview.Query{Release: target.Release, Generation: target.Data, Except: slices.Concat(p.Plan.Excluded, p.Plan.Daemons), Sample: preview.DefaultSample, By: p.Plan.By}
	if p.Plan.Role != "" {
		q.Selection.Roles = []string{p.Plan.Role}
	}
	page, at, err := a.Look(ctx, s, ref, q)
	if err != nil {
		return at, err
	}
	if objections := page.Objections(p.maxChanged); len(objections) > 0 {
		return at, fmt.Errorf("cannot start a rollout of %s in %s: its preview shows what rollout.preview of the environment does not allow\n%s\n"+
			"roll out another target, or change the policy and run `pulley env apply`; to see the preview again: `%s`", target, ref, strings.Join(objections, "\n"), again)
	}
	p.Plan.At = at.UTC().Truncate(time.Second)
	return at, nil
}

// Act is an operator's act on the rollout in progress.
type Act string

// The acts.
const (
	Pause   Act = "pause"
	Resume  Act = "resume" // accepts the failures so far
	Again   Act = "retry"  // only what failed; it continues the rollout, also an aborted one
	Abort   Act = "abort"
	Approve Act = "approve" // of the groups after the canaries, or of the next batch
	Skip    Act = "skip"    // of one node
)

// ActOnRollout carries out an operator's act on the rollout in progress. node is for Skip only.
func ActOnRollout(ctx context.Context, s *etcd.DB, ref model.Ref, act Act, node string, a promotion.Author) (r Rollout, err error) {
	err = promotion.Retry(func() error {
		c, _, err := journal.In(s).Open(ctx, ref, nil)
		switch {
		case err != nil:
			return err
		case c == nil:
			return noRollout(ref)
		case c.Plan.Kind != rollout.Take:
			return isJob(ref, c.Plan.ID)
		}
		to, err := c.State, error(nil)
		switch act {
		case Pause:
			if c.Gate.State == model.GateAborted {
				return fmt.Errorf("cannot pause rollout %s of %s: it was aborted", c.Plan.ID, ref)
			}
			c.Gate.State, err = model.GatePaused, journal.In(s).Set(ctx, ref, c, model.GatePaused, nil, a.Author)
		case Abort:
			c.Gate.State, err = model.GateAborted, journal.In(s).Set(ctx, ref, c, model.GateAborted, nil, a.Author)
		case Resume:
			if c.Gate.State != model.GatePaused {
				return fmt.Errorf("cannot resume rollout %s of %s: it is not paused", c.Plan.ID, ref)
			}
			to = c.State.Resume()
			c.Gate.State, err = model.GateOpen, journal.In(s).Set(ctx, ref, c, model.GateOpen, &to, a.Author)
		case Again:
			n := 0
			if to, n, err = c.State.Retry(c.Plan); err == nil && n == 0 && c.Gate.State != model.GateAborted {
				err = errors.New("no node failed that has ended")
			}
			if err != nil {
				return fmt.Errorf("cannot repeat rollout %s of %s: %w", c.Plan.ID, ref, err)
			}
			c.Gate.State, err = model.GateOpen, journal.In(s).Set(ctx, ref, c, model.GateOpen, &to, a.Author)
		case Approve:
			if to, err = c.State.Approve(c.Plan); err == nil {
				err = journal.In(s).Update(ctx, ref, c, to)
			}
		case Skip:
			if to, err = c.State.Skip(c.Plan, node); err == nil {
				err = journal.In(s).Update(ctx, ref, c, to)
			}
		}
		if errors.Is(err, rollout.ErrPassed) || errors.Is(err, rollout.ErrUnknown) {
			err = fmt.Errorf("cannot skip %s: %w\n`pulley explain %s -e %s` shows its place", node, err, node, ref)
		} else if errors.Is(err, rollout.ErrNotWaiting) {
			err = fmt.Errorf("cannot approve rollout %s of %s: %w", c.Plan.ID, ref, err)
		}
		r = describeRollout(c.Plan, to, c.Gate)
		return err
	})
	return r, err
}

// Rollouts lists the staged rollouts, or the jobs, of an environment, newest first. damaged names unreadable keys.
func Rollouts(ctx context.Context, s *etcd.DB, ref model.Ref, kind rollout.Kind) (all []Rollout, damaged []string, err error) {
	campaigns, damaged, err := journal.In(s).List(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	if len(campaigns) == 0 {
		if _, err := fleet.FindEnvironment(ctx, specs.In(s), ref); err != nil {
			return nil, nil, err
		}
	}
	for _, c := range campaigns {
		if c.Plan.Kind != kind {
			continue
		}
		r := describeRollout(c.Plan, c.State, c.Gate)
		r.Policy, r.Groups, r.Members = nil, nil, nil
		all = append(all, r)
	}
	return all, damaged, nil
}

// LookAtRollout reads one rollout or job, also one that ended; "" is the one in progress, or else the newest, of this kind. It computes
// what it waits for as `pulley serve` does. With an id, an empty kind is any.
func LookAtRollout(ctx context.Context, s *etcd.DB, ref model.Ref, kind rollout.Kind, id string, now time.Time) (Rollout, error) {
	var known *rollout.Plan
	if id == "" {
		c, _, err := journal.In(s).Open(ctx, ref, nil)
		if err != nil {
			return Rollout{}, err
		}
		if c != nil && c.Plan.Kind == kind {
			id, known = c.Plan.ID, &c.Plan
		}
	}
	if id == "" {
		campaigns, _, err := journal.In(s).List(ctx, ref)
		if err != nil {
			return Rollout{}, err
		}
		at := slices.IndexFunc(campaigns, func(c journal.Campaign) bool { return c.Plan.Kind == kind })
		if at < 0 {
			if _, err := fleet.FindEnvironment(ctx, specs.In(s), ref); err != nil {
				return Rollout{}, err
			}
			start := "rollout start VERSION"
			if kind == rollout.Run {
				start = "job run"
			}
			return Rollout{}, fmt.Errorf("%s never had a %s\n`pulley %s -e %s` starts one", ref, noun(kind), start, ref)
		}
		id = campaigns[at].Plan.ID
	}
	r, _, err := lookAtRollout(ctx, s, ref, id, known, now)
	if errors.Is(err, etcd.ErrNotFound) || err == nil && kind != "" && r.Kind != kind {
		err = fmt.Errorf("%s has no %s %s\n`pulley %s list -e %s` lists them", ref, noun(kind), id, noun(kind), ref)
	}
	return r, err
}

// Again reads the same rollout or job again, but not its plan, which never changes and may be of ten thousand nodes.
func (r Rollout) Again(ctx context.Context, s *etcd.DB, ref model.Ref, now time.Time) (Rollout, error) {
	r, _, err := lookAtRollout(ctx, s, ref, r.ID, r.plan, now)
	return r, err
}

// lookAtRollout reads one rollout or job. known is its plan, or nil.
func lookAtRollout(ctx context.Context, s *etcd.DB, ref model.Ref, id string, known *rollout.Plan, now time.Time) (r Rollout, c *journal.Campaign, err error) {
	c, err = journal.In(s).Get(ctx, ref, id, known)
	if err != nil {
		return r, nil, err
	}
	r = describeRollout(c.Plan, c.State, c.Gate)
	if c.State.Phase != rollout.Advancing || c.Gate.Rollout != c.Plan.ID {
		return r, c, nil
	}
	quiet := map[string]time.Time{}
	step, _, err := rollout.Decide(c.Plan, c.State, now, func(needs rollout.Needs) (rollout.Observed, error) {
		o, err := journal.In(s).Observe(ctx, ref, c, needs, records.Away, now)
		for node, n := range o.Nodes {
			if n.Assigned == nil || n.StatusAt > n.AssignedAt {
				continue
			}
			if quiet[node] = (time.Time{}); n.Status != nil {
				quiet[node] = n.Status.SeenAt
			}
		}
		return o, err
	})
	if err != nil {
		return r, c, err
	}
	for i, m := range r.Members {
		if at, is := quiet[m.Node]; is && m.State == RolloutNodeState(rollout.Ordered) {
			r.Members[i].Quiet, r.Members[i].Heard = true, at
		}
	}
	r.Wait = &step.Wait
	if !step.Empty() {
		r.Wait = &rollout.Wait{Code: rollout.WaitServe}
	}
	return r, c, nil
}

func describeRollout(p rollout.Plan, s rollout.State, gate model.Gate) Rollout {
	r := Rollout{
		ID: p.ID, Kind: p.Kind, Noop: p.Noop, EndedBy: s.EndedBy, EndedWhy: s.EndedWhy, State: RolloutState(s.Phase), Role: p.Role, Target: p.Target, Agent: p.Agent.Version, Origin: p.Origin, By: p.By, Why: p.Why, At: p.At, Ended: s.Ended,
		Nodes: s.Nodes(p), MayFail: p.Policy.MayFail(p.Policy.Failures, s.Nodes(p), s.Nodes(p)), Done: s.Done, Failed: len(s.Failed), Skipped: len(s.Skipped), Excluded: p.Excluded, Daemons: p.Daemons, Policy: &p.Policy,
		took: map[string]bool{}, plan: &p,
	}
	if s.Phase == rollout.Reverted || s.Phase == rollout.Failed {
		r.Stop = s.Stop
	}
	switch {
	case s.Phase != rollout.Advancing:
	case gate.Rollout != p.ID: // serve did not notice it yet
		r.State = RolloutReplaced
	case gate.State == model.GatePaused:
		r.State = RolloutPaused
	case gate.State == model.GateAborted:
		r.State = RolloutAborted
	}
	does := map[string][]applications.Name{}
	for i, g := range s.Groups(p) {
		one := RolloutGroup{Name: g.Name(), Nodes: g.Size, Batch: g.Batch, Batches: g.Batches()}
		if g.Failures != "" {
			may := p.Policy.MayFail(g.Failures, g.Batch, min(g.Batch, g.Size))
			one.MayFail = &may
		}
		switch {
		case i < s.Group || s.Phase == rollout.Completed:
			one.Begun = g.Size
		case i == s.Group:
			one.Begun = s.Next
		}
		if i < len(s.Times) {
			at := s.Times[i]
			one.From, one.To, one.Slowest, one.Seconds = at.From, at.To, at.Slowest, at.Seconds
		}
		for _, m := range g.Nodes[:min(one.Begun, len(g.Nodes))] {
			does[m.Node] = m.Does
			_, running := s.Slots[m.Node]
			_, failed := s.Failed[m.Node]
			_, skipped := s.Skipped[m.Node]
			r.took[m.Node] = !running && !failed && !skipped && !slices.Contains(s.Again, m.Node)
		}
		r.Groups = append(r.Groups, one)
	}
	for node, slot := range s.Slots {
		n := RolloutNode{Node: node, State: RolloutNodeState(slot.State), Since: slot.At}
		if slot.State == rollout.Healthy {
			n.Since = slot.Since
		}
		r.Members = append(r.Members, n)
	}
	for node, f := range s.Failed {
		if _, running := s.Slots[node]; !running {
			n := RolloutNode{Node: node, State: NodeFailed, Code: f.Code, Cause: f.Cause, Run: f.Run, Refusal: f.Refusal}
			if f.Code == rollout.AgentDropped || f.Code == rollout.NodeRefused {
				n.Problem = f.Problem
			}
			r.Members = append(r.Members, n)
		}
	}
	for _, node := range s.Again {
		r.Members = append(r.Members, RolloutNode{Node: node, State: NodeAgain})
	}
	for node, code := range s.Skipped {
		r.Members = append(r.Members, RolloutNode{Node: node, State: NodeSkipped, Skip: code})
	}
	for i := range r.Members {
		r.Members[i].Does = does[r.Members[i].Node]
	}
	slices.SortFunc(r.Members, func(a, b RolloutNode) int {
		return cmp.Or(rank(a.State)-rank(b.State), fleet.CompareNatural(a.Node, b.Node))
	})
	return r
}
