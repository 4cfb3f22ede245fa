package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// defragmentWithin bounds the defragmentation of one member, which rewrites its complete file of at most 8 GiB.
const defragmentWithin = 5 * time.Minute

// MakeRoom compacts etcd, defragments its members one after the other, the leader last, and clears the alarm about
// missing space. It returns the freed bytes. A member answers no request during its defragmentation. It needs an
// admin.
func (s *Cluster) MakeRoom(ctx context.Context) (freed int64, err error) {
	if err := s.Compact(ctx); err != nil {
		return 0, err
	}
	members, err := s.members(ctx)
	if err != nil {
		return 0, fmt.Errorf("cannot make room in etcd: %w", err)
	}
	for _, m := range members {
		one, cancel := context.WithTimeout(ctx, defragmentWithin)
		_, err := s.db.Client.Defragment(one, m.endpoint)
		cancel()
		var after int64
		if err == nil {
			after, err = s.size(ctx, m.endpoint)
		}
		if err != nil {
			return freed, fmt.Errorf("cannot make room in etcd at %s: %w", m.endpoint, s.db.Explain(err))
		}
		freed += m.bytes - after
	}
	within, cancel := context.WithTimeout(ctx, s.db.Timeout)
	defer cancel()
	// Without a member, this lists every alarm. An alarm about damaged data must stay.
	alarms, err := s.db.Client.AlarmList(within)
	for i := 0; err == nil && i < len(alarms.Alarms); i++ {
		if a := alarms.Alarms[i]; a.Alarm == etcdserverpb.AlarmType_NOSPACE {
			_, err = s.db.Client.AlarmDisarm(within, (*clientv3.AlarmMember)(a))
		}
	}
	if err != nil {
		return freed, fmt.Errorf("cannot have etcd accept writes again: %w", s.db.Explain(err))
	}
	return freed, nil
}

// member is a member of the cluster, as it was before.
type member struct {
	endpoint string
	bytes    int64
	leader   bool
}

// members returns the members of the cluster that a client can reach, the leader last. A single member is the one that
// answers, at any address.
func (s *Cluster) members(ctx context.Context) (members []member, err error) {
	within, cancel := context.WithTimeout(ctx, s.db.Timeout)
	defer cancel()
	list, err := s.db.Client.MemberList(within)
	if err != nil {
		return nil, s.db.Explain(err)
	}
	endpoints := s.db.Client.Endpoints()
	if len(endpoints) == 0 {
		endpoints = []string{s.db.Endpoints} // in etcd's own process
	}
	if len(list.Members) > 1 {
		endpoints = nil
		for _, m := range list.Members {
			if len(m.ClientURLs) == 0 {
				return nil, errors.New("a member has not started: " + m.Name)
			}
			endpoints = append(endpoints, m.ClientURLs[0])
		}
	}
	for _, endpoint := range endpoints[:min(len(endpoints), len(list.Members))] {
		st, err := s.db.Client.Status(within, endpoint)
		if err != nil {
			return nil, s.db.Explain(err)
		}
		members = append(members, member{endpoint, st.DbSize, st.Leader == st.Header.MemberId})
	}
	slices.SortStableFunc(members, func(a, b member) int {
		if a.leader != b.leader {
			if b.leader {
				return -1
			}
			return 1
		}
		return strings.Compare(a.endpoint, b.endpoint)
	})
	return members, nil
}

func (s *Cluster) size(ctx context.Context, endpoint string) (int64, error) {
	within, cancel := context.WithTimeout(ctx, s.db.Timeout)
	defer cancel()
	st, err := s.db.Client.Status(within, endpoint)
	if err != nil {
		return 0, err
	}
	return st.DbSize, nil
}
