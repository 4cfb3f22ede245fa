package etcdtest

import (
	"context"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Full makes the server refuse writes, like a server whose quota is used up, or accept them again.
func (s *Server) Full(ctx context.Context, full bool) error {
	action := etcdserverpb.AlarmRequest_DEACTIVATE
	if full {
		action = etcdserverpb.AlarmRequest_ACTIVATE
	}
	members, err := s.Client().MemberList(ctx)
	if err != nil {
		return err
	}
	_, err = etcdserverpb.NewMaintenanceClient(s.Client().ActiveConnection()).Alarm(ctx, &etcdserverpb.AlarmRequest{
		Action: action, MemberID: members.Members[0].ID, Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	return err
}
