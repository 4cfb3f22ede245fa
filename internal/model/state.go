package model

import (
	"cmp"
	"slices"
	"time"

	"pulley/internal/model/refusal"
)

// State is the node's memory between ticks, in state.json. The agent writes the complete file, and only after a change.
type State struct {
	Format       int       `json:"v"`
	LastGood     Target    `json:"last_good"`      // the last target that was applied and verified
	LastGoodData string    `json:"last_good_data"` // digest of those of its layers that concern this node
	PreviousGood Target    `json:"previous_good"`  // with another tree: a rollback needs no download
	Enforcing    Target    `json:"enforcing"`      // LastGood, or the newer target that a run left unfinished
	Before       Target    `json:"before"`         // the target in place before the open run
	OpenRun      string    `json:"open_run,omitempty"`
	Attempts     []Attempt `json:"attempts,omitempty"`
	Refusal      *Refusal  `json:"refusal,omitempty"` // of the wanted target; nil: not refused, or not checked yet
	Holds        []Hold    `json:"holds,omitempty"`   // as last seen in etcd; obeyed while etcd is unreachable
	RanAt        time.Time `json:"ran_at,omitzero"`   // when Puppet last applied Enforcing successfully
	Outcome      Outcome   `json:"outcome,omitempty"`
	Unclassified bool      `json:"unclassified,omitempty"` // of the last good run's catalog; see Result
	Rivals       string    `json:"rivals,omitempty"`       // see Status.Rivals
	NoopPending  int       `json:"noop_pending,omitempty"` // of the last good run; see Status
	LastRun      string    `json:"last_run,omitempty"`
	Sequence     int64     `json:"sequence"`             // of runs; never decreases
	Assignment   string    `json:"assignment,omitempty"` // id of the last one: another one begins without the attempts of the one before
	Epoch        Epoch     `json:"epoch,omitempty"`      // the highest that came with an assignment: no older rollout starts anything

	Enforce string `json:"enforce,omitempty"` // puppet.enforce of the last good release

	Served *Served `json:"served,omitempty"` // of the last good run; nil: its catalog came from the release
	Away   []Away  `json:"away,omitempty"`   // of the wanted and the enforced target, if no Puppet server answered for it

	Hosts HostView `json:"hosts,omitzero"`

	Preview *PreviewState `json:"preview,omitempty"` // of the newest preview order, until it ends

	Ordered string  `json:"ordered,omitempty"` // the assignment of a job that the open run answers
	Ran     *Answer `json:"ran,omitempty"`     // to the last assignment of a job that was answered

	Asked  string  `json:"asked,omitempty"`  // the request that the open run answers
	Answer *Answer `json:"answer,omitempty"` // to the last request that was answered
	Retire string  `json:"retire,omitempty"` // request of the retirement; the node runs nothing until it is cancelled
}

// Away records that no Puppet server answered for a target.
type Away struct {
	Target  Target    `json:"target"`
	Problem Problem   `json:"problem"`
	Since   time.Time `json:"since"`
	At      time.Time `json:"at"` // when the node last tried
}

// HostView is what the node knows about the nodes that it sees. Digests name data files; "" means that the node sees none.
type HostView struct {
	List    int64         `json:"list,omitempty"`    // revision of the host list on this disk, or an older one
	Noticed time.Time     `json:"noticed,omitzero"`  // when a newer list was noticed; zero: there is none
	Settle  time.Duration `json:"settle,omitempty"`  // the wait from then until the node reads it
	Shown   string        `json:"shown,omitempty"`   // digest of the newest file
	Applied string        `json:"applied,omitempty"` // digest of the file of the last good run
	Told    string        `json:"told,omitempty"`    // digest of the file that all hooks of hosts.d/ know
	Telling string        `json:"telling,omitempty"` // digest of the file that they learn next; "" with no hook named: none
	Hook    string        `json:"hook,omitempty"`    // the last hook that acknowledged it
	Failed  Prose         `json:"failed,omitempty"`  // why the next one failed
	Number  int64         `json:"number,omitempty"`  // of the differences so far: the same nodes may leave and join again
	Again   time.Time     `json:"again,omitzero"`    // when the node reads the list again, although it is the same; zero: never
	Watch   Watch         `json:"watch,omitzero"`
}

// StateFormat is the version of state.json that this agent writes; it reads no newer one.
const StateFormat = 1

// Reported is the content that this node last wrote to etcd. It may be lost: the next tick then writes to etcd again.
type Reported struct {
	Fingerprint string    `json:"fingerprint"`
	At          time.Time `json:"at"`
	Runs        []RunRef  `json:"runs,omitempty"`     // records in etcd, oldest first; the node limits their total size
	Facts       string    `json:"facts,omitempty"`    // fingerprint of the facts in etcd, and of the node's registration
	Export      string    `json:"export,omitempty"`   // fingerprint of the exported facts in etcd, and of the registration
	Revision    int64     `json:"revision,omitempty"` // of etcd, as the tick of the last report read it

	Turn string    `json:"turn,omitempty"` // the last assignment that the node fulfilled
	Took time.Time `json:"took,omitzero"`  // when a report first said so

	Alive  time.Duration `json:"alive,omitempty"` // of the export in etcd
	Signed time.Time     `json:"signed,omitzero"` // when the node last wrote it; zero: it gives no sign of life
}

// RunRef is one run record that the node keeps in etcd.
type RunRef struct {
	ID    string `json:"id"`
	Bytes int    `json:"bytes"`
}

// Attempt returns the count of attempts at t, or nil when there was none since the last success.
func (s *State) Attempt(t Target) *Attempt {
	for i := range s.Attempts {
		if s.Attempts[i].Target == t {
			return &s.Attempts[i]
		}
	}
	return nil
}

// GoodSince reports whether a run applied and verified the node's target since then, and none failed afterwards.
func (s *State) GoodSince(then time.Time) bool {
	return !s.LastGood.IsZero() && s.Enforcing == s.LastGood && s.OpenRun == "" && s.Outcome != Failed && s.RanAt.After(then)
}

// KeepAttempts deletes what is known of targets that are neither wanted nor enforced, and reports whether it deleted
// any. Attempts at the wanted target outlive runs that enforce another one.
func (s *State) KeepAttempts(wanted Target) (forgot bool) {
	kept := slices.DeleteFunc(slices.Clone(s.Attempts), func(a Attempt) bool {
		return a.Target != wanted && a.Target != s.Enforcing
	})
	away := slices.DeleteFunc(slices.Clone(s.Away), func(a Away) bool { return a.Target != wanted && a.Target != s.Enforcing })
	forgot = len(kept) < len(s.Attempts) || len(away) < len(s.Away)
	s.Attempts, s.Away = kept, away
	return forgot
}

// Refuse records the refusal of t.
func (s *State) Refuse(t Target, why *refusal.Error, now time.Time) {
	r := Refusal{Target: t, Error: *why, At: now.UTC().Truncate(time.Second)}.Clipped(MaxDetailInHead)
	s.Refusal = &r
}

// KeepRefusal deletes the refusal of a target that is in place or no longer wanted. It reports whether it deleted one.
func (s *State) KeepRefusal(wanted Target) (forgot bool) {
	if s.Refusal == nil || s.Refusal.Target == wanted && wanted != s.Enforcing {
		return false
	}
	s.Refusal = nil
	return true
}

// Leave records that no Puppet server answered for t.
func (s *State) Leave(t Target, why Problem, now time.Time) {
	now = now.UTC().Truncate(time.Second)
	a := Away{Target: t, Problem: why.Clipped(160), Since: now, At: now}
	if before := s.AwayFrom(t); before != nil && !before.Since.After(now) {
		a.Since = before.Since
	}
	s.Away = append(slices.DeleteFunc(slices.Clone(s.Away), func(a Away) bool { return a.Target == t || a.Target != s.Enforcing }), a)
}

// AwayFrom returns the record that no Puppet server answered for t, or nil.
func (s *State) AwayFrom(t Target) *Away {
	for i := range s.Away {
		if s.Away[i].Target == t {
			return &s.Away[i]
		}
	}
	return nil
}

// Returned records that the Puppet server of t answers again.
func (s *State) Returned(t Target) {
	s.Away = slices.DeleteFunc(slices.Clone(s.Away), func(a Away) bool { return a.Target == t })
}

// Begin opens a run at t. It answers the turn of a job, or a request; both may be nil.
func (s *State) Begin(run string, t Target, now time.Time, afresh bool, turn *Assignment, r *Request) {
	if afresh {
		s.forgive(t)
	}
	a := s.Attempt(t)
	if a == nil {
		s.Attempts = append(s.Attempts, Attempt{Target: t})
		a = &s.Attempts[len(s.Attempts)-1]
	}
	a.Started++
	a.Open = true
	a.Last = now
	s.Before, s.Enforcing, s.OpenRun, s.Asked, s.Ordered = s.Enforcing, t, run, "", ""
	switch {
	case turn != nil:
		s.Ordered = turn.ID
	case r != nil:
		s.Asked = r.ID
	}
}

// Succeed ends the open run. The run's target becomes the last good one.
func (s *State) Succeed(r Run, dataDigest string, now time.Time) {
	if s.LastGood.Tree != r.Target.Tree {
		s.PreviousGood = s.LastGood
	}
	s.LastGood, s.LastGoodData, s.Enforcing, s.RanAt = r.Target, dataDigest, r.Target, now
	s.Unclassified, s.NoopPending, s.Served = r.Unclassified, r.Counts.Pending, r.Served
	s.Returned(r.Target)
	// Attempts at another target stay: this run shows nothing about that target.
	s.forgive(r.Target)
	s.close(r.ID, r.Outcome, Problem{})
}

// Endure ends the open run of a target that was applied but cannot be verified without etcd. The node enforces the
// target, and the last good one does not change.
func (s *State) Endure(r Run, now time.Time) {
	s.RanAt, s.Unclassified, s.NoopPending = now, r.Unclassified, r.Counts.Pending
	s.Returned(r.Target)
	s.forgive(r.Target)
	s.close(r.ID, r.Outcome, Problem{})
}

// Fail ends the open run. When it left the machine untouched, the node enforces the target from before it. A run that found no
// Puppet server counts as none.
func (s *State) Fail(r Run, now time.Time) {
	if r.Problem.Code == PuppetServerAway {
		s.Forget()
		s.Leave(r.Target, r.Problem, now)
		return
	}
	if r.Kind == Untouched {
		s.Enforcing = s.Before
	}
	if a := s.Attempt(r.Target); a != nil {
		a.Finished++
		a.Open = false
		a.Last = now
		a.Kind, a.Problem = r.Kind, r.Problem.Clipped(160)
	}
	s.close(r.ID, Failed, r.Problem)
}

// Forget removes an open run in which Puppet never started.
func (s *State) Forget() {
	if a := s.Attempt(s.Enforcing); a != nil && a.Open {
		a.Started--
		a.Open = false
		if a.Started == 0 && (a.Kind == "" || s.Enforcing != s.LastGood) {
			s.forgive(s.Enforcing)
		}
	}
	s.Enforcing = s.Before
	s.Before, s.OpenRun, s.Asked, s.Ordered = Target{}, "", "", ""
}

// Restart makes an attempt at t due without those before it. At the last good target they show that the node fails, or that a run was
// interrupted, and stay with a count of zero until a run succeeds.
func (s *State) Restart(t Target) {
	if t != s.LastGood {
		s.forgive(t)
	} else if a := s.Attempt(t); a != nil {
		a.Started, a.Finished, a.Kind = 0, 0, cmp.Or(a.Kind, Between)
	}
}

// forgive deletes the attempts at t.
func (s *State) forgive(t Target) {
	s.Attempts = slices.DeleteFunc(slices.Clone(s.Attempts), func(a Attempt) bool { return a.Target == t })
}

func (s *State) close(run string, o Outcome, problem Problem) {
	s.Outcome, s.LastRun = o, run
	if s.Asked != "" {
		s.Settle(s.Asked, problem)
	}
	if s.Ordered != "" {
		s.Ran = &Answer{ID: s.Ordered, Problem: problem.Clipped(MaxAnswer)}
	}
	s.Before, s.OpenRun, s.Asked, s.Ordered = Target{}, "", "", ""
}

// Apply records the file of a successful run.
func (h *HostView) Apply(seen Seen) {
	if seen.Digest == "" { // the list on disk may become old
		h.List, h.Noticed = 0, time.Time{}
	}
	h.Shows(seen)
	h.Applied = seen.Digest
}

// Shows records the newest file. With another hosts.alive, the node watches anew.
func (h *HostView) Shows(seen Seen) {
	h.Shown, h.Settle, h.Again = seen.Digest, seen.Settle, seen.Again
	if seen.Alive != h.Watch.Alive {
		h.Watch = Watch{Alive: seen.Alive}
	}
}

// moved reports whether the nodes that this node sees changed since its last good run.
func (h HostView) moved() bool { return h.Shown != h.Applied }

// Seen is the data file with the nodes that this node sees. The zero Seen means that it sees none.
type Seen struct {
	File   string // absolute path
	Digest string // of its content
	Settle time.Duration
	Alive  time.Duration // hosts.alive; 0: not set
	Again  time.Time     // newer values of some nodes are kept back until then; zero: of none
}
