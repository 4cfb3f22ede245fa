package store

import (
	"context"
	"errors"
	"fmt"
	"pulley/internal/clip"
	"time"

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
	value, err := encode(n)
	if err != nil {
		return false, err
	}
	key := s.keys.notice(n.ID)
	there, err := s.get(ctx, key, clientv3.WithCountOnly())
	if err == nil && there.Count > 0 {
		return false, nil // and no lease is made for nothing
	}
	if err != nil {
		return false, fmt.Errorf("cannot note what is to be told: %w", err)
	}
	lease, err := s.grant(ctx, noticesKept)
	if err != nil {
		return false, fmt.Errorf("cannot note what is to be told: %w", err)
	}
	resp, err := s.txn(ctx, []clientv3.Cmp{same(key, 0)}, []clientv3.Op{clientv3.OpPut(key, value, clientv3.WithLease(lease))}, nil)
	if err != nil {
		return false, fmt.Errorf("cannot note what is to be told: %w", err)
	}
	if !resp.Succeeded {
		s.settleLease(ctx, bootLease{fresh: lease}, ErrConflict)
	}
	return resp.Succeeded, nil
}

// Notices lists all notices. Those that can't be read are named in damaged.
func (s *noticesPart) Notices(ctx context.Context) (all []Notice, damaged []string, err error) {
	prefix := s.keys.notices()
	_, err = s.pageRecords(ctx, prefix, func(kv *mvccpb.KeyValue) {
		n := Notice{Revision: kv.ModRevision}
		if err := decode(string(kv.Key), kv.Value, &n); err != nil {
			damaged = append(damaged, err.Error())
			return
		}
		all = append(all, n)
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
	value, err := encode(n)
	if err != nil {
		return n, err
	}
	key := s.keys.notice(n.ID)
	resp, err := s.txn(ctx, []clientv3.Cmp{same(key, n.Revision)}, []clientv3.Op{clientv3.OpPut(key, value, clientv3.WithIgnoreLease())}, nil)
	if err == nil && !resp.Succeeded {
		err = ErrConflict
	}
	if err != nil {
		if errors.Is(err, ErrConflict) {
			return n, err
		}
		return n, fmt.Errorf("cannot note what became of a notice: %w", err)
	}
	n.Revision = resp.Header.Revision
	return n, nil
}

// pageRecords is pages for readers that need the revisions of what they read.
func (s *db) pageRecords(ctx context.Context, prefix string, each func(*mvccpb.KeyValue)) (revision int64, err error) {
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		resp, err := s.get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(500), clientv3.WithRev(revision))
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			each(kv)
		}
		if !resp.More {
			return revision, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}
