package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pulley/internal/clip"
	"pulley/internal/store/etcd"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// noticesKept is how long a notice stays, sent or not: so long the same thing is not told twice.
const noticesKept = 7 * 24 * time.Hour

// NoticeState is how far the telling of a notice is.
type NoticeState string

// The states of a notice.
const (
	NoticeWaiting NoticeState = "waiting" // nobody sends it at the moment
	NoticeClaimed NoticeState = "claimed" // Owner sends it
	NoticeSent    NoticeState = "sent"
	NoticeFailed  NoticeState = "failed" // it was tried often enough
	NoticeUnsure  NoticeState = "unsure" // it may have been sent or not: nobody tries again
)

// Notice is something that people are told, once.
type Notice struct {
	ID          string      `json:"id"` // the same for the same thing, whichever serve notices it
	Kind        string      `json:"kind"`
	Environment string      `json:"environment,omitempty"`
	Node        string      `json:"node,omitempty"`
	Title       string      `json:"title"`
	Text        string      `json:"text,omitempty"`
	At          time.Time   `json:"at"`
	State       NoticeState `json:"state"`
	Owner       string      `json:"owner,omitempty"` // the serve that claimed it last
	Attempts    int         `json:"attempts,omitempty"`
	After       time.Time   `json:"after,omitzero"`  // not to be tried before, by the owner's clock
	Done        []string    `json:"done,omitempty"`  // to whom it was sent: digests of their URLs, which are secrets
	Error       string      `json:"error,omitempty"` // of the last attempt, without secrets

	Revision int64 `json:"-"` // at which it was last written
}

// AddNotice puts a notice to be told, unless one of this id is there: then it reports false.
func (s *noticesPart) AddNotice(ctx context.Context, n Notice) (bool, error) {
	n.State, n.Title, n.Text = NoticeWaiting, clip.Text(n.Title, 256), clip.Text(n.Text, 1024)
	value, err := etcd.Encode(n)
	if err != nil {
		return false, err
	}
	key := s.Keys.Notice(n.ID)
	there, err := s.Get(ctx, key, clientv3.WithCountOnly())
	if err == nil && there.Count > 0 {
		return false, nil // and no lease is made for nothing
	}
	if err != nil {
		return false, fmt.Errorf("cannot note what is to be told: %w", err)
	}
	lease, err := s.Grant(ctx, noticesKept)
	if err != nil {
		return false, fmt.Errorf("cannot note what is to be told: %w", err)
	}
	resp, err := s.Txn(ctx, []clientv3.Cmp{etcd.Same(key, 0)}, []clientv3.Op{clientv3.OpPut(key, value, clientv3.WithLease(lease))}, nil)
	if err != nil {
		return false, fmt.Errorf("cannot note what is to be told: %w", err)
	}
	if !resp.Succeeded {
		s.SettleLease(ctx, etcd.LeaseSwap{Fresh: lease}, etcd.ErrConflict)
	}
	return resp.Succeeded, nil
}

// Notices lists all notices. Those that can't be read are named in damaged.
func (s *noticesPart) Notices(ctx context.Context) (all []Notice, damaged []string, err error) {
	prefix := s.Keys.Notices()
	_, err = s.Entries(ctx, prefix, etcd.PageKeys, func(kv *mvccpb.KeyValue) error {
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

// ChangeNotice writes what became of a notice unless it was written since it was read: then ErrConflict. It returns the
// notice as it is then.
func (s *noticesPart) ChangeNotice(ctx context.Context, n Notice) (Notice, error) {
	n.Error = clip.Text(n.Error, 256)
	value, err := etcd.Encode(n)
	if err != nil {
		return n, err
	}
	key := s.Keys.Notice(n.ID)
	resp, err := s.Txn(ctx, []clientv3.Cmp{etcd.Same(key, n.Revision)}, []clientv3.Op{clientv3.OpPut(key, value, clientv3.WithIgnoreLease())}, nil)
	if err == nil && !resp.Succeeded {
		err = etcd.ErrConflict
	}
	if err != nil {
		if errors.Is(err, etcd.ErrConflict) {
			return n, err
		}
		return n, fmt.Errorf("cannot note what became of a notice: %w", err)
	}
	n.Revision = resp.Header.Revision
	return n, nil
}
