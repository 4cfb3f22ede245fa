package notify

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/access"
	"pulley/internal/clip"
	"pulley/internal/etcd"
	"pulley/internal/model"
)

// Notices stores notices to people. Each notice is sent once.
type Notices struct{ db *etcd.DB }

// NoticesIn returns the notices of a fleet.
func NoticesIn(db *etcd.DB) *Notices { return &Notices{db} }

// noticesKept is the lifetime of a notice. Within this time no serve sends the same notice twice.
const noticesKept = 7 * 24 * time.Hour

// NoticeKind is the code of an event for a notice. Package notify renders it.
type NoticeKind string

// The kinds of notices.
const (
	FirstBootFinished NoticeKind = "first_boot_finished"
	FirstBootFailed   NoticeKind = "first_boot_failed"
	FirstBootStalled  NoticeKind = "first_boot_stalled"
	DuplicateRefused  NoticeKind = "duplicate_refused"
	DuplicateRuns     NoticeKind = "duplicate_runs"
	NodeFloods        NoticeKind = "node_floods"
	SecretsGiven      NoticeKind = "secrets_given" // to a machine that joined

	RolloutPaused NoticeKind = "rollout_paused" // by itself or an operator, or aborted
	RolloutWaits  NoticeKind = "rollout_waits"  // for an approval
	RolloutEnded  NoticeKind = "rollout_ended"
	RolloutLost   NoticeKind = "rollout_lost"    // a node began, and did not answer before its deadline
	RolloutBlocks NoticeKind = "rollout_blocked" // by a gate
	RolloutStalls NoticeKind = "rollout_stalled" // a node is held beyond its deadline, or its place is full for too long

	HoldEnded NoticeKind = "hold_ended" // by its time

	// Troubles begin and end. Nodes, count and problem are those of one cause.
	NodesFail       NoticeKind = "nodes_failed"     // on the target in place, or for another reason than a new target
	PromotionFails  NoticeKind = "promotion_failed" // nodes fail to take release
	NodesStuck      NoticeKind = "nodes_stuck"      // one of these two whose nodes retry rarely
	NodesSilent     NoticeKind = "nodes_silent"
	Degraded        NoticeKind = "environment_degraded" // by nodes that are missing, unregistered, pending, or held on their machines
	CertificatesEnd NoticeKind = "certificates_end"
	NodesDrifted    NoticeKind = "nodes_drifted" // and their runs corrected them
	NodesRemoved    NoticeKind = "nodes_removed"

	WentBack NoticeKind = "etcd_went_back" // in time

	ConnectionsRefused NoticeKind = "connections_refused"
	CallsRefused       NoticeKind = "calls_refused"
)

// NoticeState is the progress of sending a notice.
type NoticeState string

// The states of a notice.
const (
	NoticeSending NoticeState = "sending"
	NoticeSent    NoticeState = "sent"
	NoticeFailed  NoticeState = "failed"
	NoticeUnsure  NoticeState = "unsure" // a receiver did not answer: it may have been sent
)

// Notice is one event for people, sent once. Its fields are the facts; each kind uses some of them.
type Notice struct {
	ID          string      `json:"id"` // the same for the same event, in every serve
	Kind        NoticeKind  `json:"kind"`
	Environment string      `json:"environment,omitempty"`
	Node        string      `json:"node,omitempty"`
	Machine     string      `json:"machine,omitempty"`
	Hostname    string      `json:"hostname,omitempty"`
	From        string      `json:"from,omitempty"`  // address
	Token       string      `json:"token,omitempty"` // ID
	Step        string      `json:"step,omitempty"`
	Boots       []string    `json:"boots,omitempty"` // boot ids
	Bytes       int64       `json:"bytes,omitempty"`
	Writes      int64       `json:"writes,omitempty"`
	Calls       int64       `json:"calls,omitempty"`       // refused calls to etcd
	Shown       int64       `json:"shown,omitempty"`       // changes of what other nodes see
	Listener    string      `json:"listener,omitempty"`    // that refuses connections
	Connections int64       `json:"connections,omitempty"` // open ones of From
	Operator    string      `json:"operator,omitempty"`
	Rollout     string      `json:"rollout,omitempty"`
	Release     string      `json:"release,omitempty"`
	Nodes       []string    `json:"nodes,omitempty"` // the first of Count
	Count       int         `json:"count,omitempty"`
	Cause       string      `json:"cause,omitempty"`  // digest of a trouble's kind and cause
	Number      int         `json:"number,omitempty"` // of the notices of this cause
	Ended       bool        `json:"ended,omitempty"`  // the trouble did
	Again       bool        `json:"again,omitempty"`  // it began, and an earlier one ended within the hour before
	Hold        *model.Hold `json:"hold,omitempty"`
	TookSeconds int64       `json:"took_seconds,omitempty"`
	Since       time.Time   `json:"since,omitzero"`
	Problem     model.Prose `json:"problem,omitempty"` // as the machine reported it
	At          time.Time   `json:"at"`
	State       NoticeState `json:"state"`
	Attempts    int         `json:"attempts,omitempty"`
	Error       model.Prose `json:"error,omitempty"` // of the last attempt, without secrets

	Revision int64 `json:"-"` // of the last write
}

// Add claims a notice for the caller, who then sends it. It returns false if the notice exists: another serve sends
// it.
func (s *Notices) Add(ctx context.Context, n Notice) (added bool, err error) {
	n.State, n.Hostname, n.Step = NoticeSending, clip.Text(n.Hostname, access.MaxBootWord), clip.Text(n.Step, access.MaxBootWord)
	n.Problem = model.Prose(clip.Text(string(n.Problem), access.MaxBootError))
	key := s.db.Keys.Notice(n.ID)
	exists, err := s.db.Get(ctx, key, clientv3.WithCountOnly())
	if err == nil && exists.Count > 0 {
		return false, nil // before it creates a lease in vain
	}
	var lease clientv3.LeaseID
	if err == nil {
		lease, err = s.db.Grant(ctx, noticesKept)
	}
	if err == nil {
		err = s.db.Commit(ctx, etcd.If(etcd.Same(key, 0)).Put(key, n, clientv3.WithLease(lease)))
		s.db.SettleLease(ctx, etcd.LeaseSwap{Fresh: lease}, err)
	}
	if errors.Is(err, etcd.ErrConflict) {
		return false, nil
	}
	return err == nil, etcd.Wrap(err, "cannot store a notice")
}

// List lists all notices. damaged names the unreadable ones.
func (s *Notices) List(ctx context.Context) (all []Notice, damaged []string, err error) {
	err = s.db.Scan(ctx, s.db.Keys.Notices(), func(_ string, kv *etcd.KV) error {
		n := Notice{Revision: kv.ModRevision}
		if err := etcd.Into(&n)(kv); err != nil {
			damaged = append(damaged, err.Error())
			return nil
		}
		all = append(all, n)
		return nil
	})
	return all, damaged, etcd.Wrap(err, "cannot list notices")
}

// End stores the outcome of sending a notice. The caller's claim is its guard: no other serve writes the key.
func (s *Notices) End(ctx context.Context, n Notice) error {
	n.Error = model.Prose(clip.Text(string(n.Error), 256))
	key := s.db.Keys.Notice(n.ID)
	err := s.db.Commit(ctx, etcd.If(etcd.Exists(key)).Put(key, n, clientv3.WithIgnoreLease()))
	if errors.Is(err, etcd.ErrConflict) { // a concurrent destruction of the environment deleted its notices
		return nil
	}
	return etcd.Wrap(err, "cannot store the outcome of a notice")
}

// Of returns the keys of the notices of an environment.
func (s *Notices) Of(ctx context.Context, env string) (keys []string, err error) {
	all, _, err := s.List(ctx)
	for _, n := range all {
		if n.Environment == env {
			keys = append(keys, s.db.Keys.Notice(n.ID))
		}
	}
	return keys, err
}
