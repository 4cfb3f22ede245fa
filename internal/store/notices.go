package store

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/internal/clip"
	"pulley/internal/store/etcd"
)

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
	From        string      `json:"from,omitempty"` // address
	Step        string      `json:"step,omitempty"`
	Boots       []string    `json:"boots,omitempty"` // boot ids
	Bytes       int64       `json:"bytes,omitempty"`
	Writes      int64       `json:"writes,omitempty"`
	TookSeconds int64       `json:"took_seconds,omitempty"`
	Since       time.Time   `json:"since,omitzero"`
	Problem     agent.Prose `json:"problem,omitempty"` // as the machine reported it
	At          time.Time   `json:"at"`
	State       NoticeState `json:"state"`
	Attempts    int         `json:"attempts,omitempty"`
	Error       agent.Prose `json:"error,omitempty"` // of the last attempt, without secrets

	Revision int64 `json:"-"` // of the last write
}

// Add claims a notice for the caller, who then sends it. It returns false if the notice exists: another serve sends
// it.
func (s *Notices) Add(ctx context.Context, n Notice) (bool, error) {
	n.State, n.Hostname, n.Step, n.Problem = NoticeSending, clip.Text(n.Hostname, maxBootWord), clip.Text(n.Step, maxBootWord), agent.Prose(clip.Text(string(n.Problem), maxBootError))
	value, err := etcd.Encode(n)
	if err != nil {
		return false, err
	}
	key := s.db.Keys.Notice(n.ID)
	there, err := s.db.Get(ctx, key, clientv3.WithCountOnly())
	if err == nil && there.Count > 0 {
		return false, nil // before it creates a lease in vain
	}
	if err != nil {
		return false, fmt.Errorf("cannot store a notice: %w", err)
	}
	lease, err := s.db.Grant(ctx, noticesKept)
	if err != nil {
		return false, fmt.Errorf("cannot store a notice: %w", err)
	}
	resp, err := s.db.Txn(ctx, []clientv3.Cmp{etcd.Same(key, 0)}, []clientv3.Op{clientv3.OpPut(key, value, clientv3.WithLease(lease))}, nil)
	if err != nil {
		return false, fmt.Errorf("cannot store a notice: %w", err)
	}
	if !resp.Succeeded {
		s.db.SettleLease(ctx, etcd.LeaseSwap{Fresh: lease}, etcd.ErrConflict)
	}
	return resp.Succeeded, nil
}

// List lists all notices. damaged names the unreadable ones.
func (s *Notices) List(ctx context.Context) (all []Notice, damaged []string, err error) {
	prefix := s.db.Keys.Notices()
	_, err = s.db.Entries(ctx, prefix, etcd.PageKeys, func(kv *mvccpb.KeyValue) error {
		n := Notice{Revision: kv.ModRevision}
		if err := etcd.Decode(string(kv.Key), kv.Value, &n); err != nil {
			damaged = append(damaged, err.Error())
			return nil
		}
		all = append(all, n)
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list notices: %w", err)
	}
	return all, damaged, nil
}

// End stores the outcome of sending a notice. The caller's claim is its guard: no other serve writes the key.
func (s *Notices) End(ctx context.Context, n Notice) error {
	n.Error = agent.Prose(clip.Text(string(n.Error), 256))
	value, err := etcd.Encode(n)
	if err == nil {
		key := s.db.Keys.Notice(n.ID) // a concurrent destruction of the environment deleted its notices
		_, err = s.db.Txn(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), ">", 0)}, []clientv3.Op{clientv3.OpPut(key, value, clientv3.WithIgnoreLease())}, nil)
	}
	if err != nil {
		return fmt.Errorf("cannot store the outcome of a notice: %w", err)
	}
	return nil
}
