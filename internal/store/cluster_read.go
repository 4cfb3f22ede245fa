package store

import (
	"context"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"pulley/internal/store/etcd"
)

// MemberState is the state that one etcd member reports.
type MemberState struct {
	Endpoint, Version   string
	Stored, Used, Quota int64 // bytes; quota 0: etcd does not report it
}

// Member reads the state of the member at an endpoint.
func (s *Cluster) Member(ctx context.Context, endpoint string) (MemberState, error) {
	within, cancel := context.WithTimeout(ctx, s.db.Timeout)
	defer cancel()
	st, err := s.db.Client.Status(within, endpoint)
	if err != nil {
		return MemberState{Endpoint: endpoint}, etcd.PlainCause(err)
	}
	return MemberState{Endpoint: endpoint, Version: st.Version, Stored: st.DbSize, Used: st.DbSizeInUse, Quota: st.DbSizeQuota}, nil
}

// Alarm is an alarm of etcd.
type Alarm string

// The alarms of etcd.
const (
	AlarmNoSpace Alarm = "no_space"
	AlarmCorrupt Alarm = "corrupt"
)

// Alarms lists the alarms that etcd has raised.
func (s *Cluster) Alarms(ctx context.Context) (alarms []Alarm, err error) {
	within, cancel := context.WithTimeout(ctx, s.db.Timeout)
	defer cancel()
	resp, err := s.db.Client.AlarmList(within)
	if err != nil {
		return nil, etcd.PlainCause(err)
	}
	for _, a := range resp.Alarms {
		alarm := map[etcdserverpb.AlarmType]Alarm{etcdserverpb.AlarmType_NOSPACE: AlarmNoSpace, etcdserverpb.AlarmType_CORRUPT: AlarmCorrupt}[a.Alarm]
		if alarm != "" && !slices.Contains(alarms, alarm) {
			alarms = append(alarms, alarm)
		}
	}
	return alarms, nil
}
