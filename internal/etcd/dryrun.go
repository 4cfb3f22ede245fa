package etcd

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// dryRun answers the calls of a dry run. Reads reach etcd. Of a transaction, the guards and the reads reach etcd; its puts
// and deletions are read instead, and answered as etcd would answer them. Each other call writes: dryRun answers it as a
// success, and etcd never sees it.
func dryRun(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	switch r := req.(type) {
	case *pb.RangeRequest, *pb.StatusRequest, *pb.MemberListRequest, *pb.HashKVRequest, *pb.AuthStatusRequest, *pb.AuthUserGetRequest,
		*pb.AuthUserListRequest, *pb.AuthRoleGetRequest, *pb.AuthRoleListRequest, *pb.LeaseTimeToLiveRequest, *pb.LeaseLeasesRequest:
		return call(ctx, method, req, reply, cc, opts...)
	case *pb.AlarmRequest:
		if r.Action == pb.AlarmRequest_GET {
			return call(ctx, method, req, reply, cc, opts...)
		}
	case *pb.LeaseGrantRequest:
		granted := reply.(*pb.LeaseGrantResponse)
		granted.ID, granted.TTL = 1, r.TTL // no put with this lease is ever sent
	case *pb.TxnRequest:
		read := &pb.TxnRequest{Compare: r.Compare, Success: readsOf(r.Success), Failure: readsOf(r.Failure)}
		answer := new(pb.TxnResponse)
		if err := call(ctx, method, read, answer, cc, opts...); err != nil {
			return err
		}
		answered(r, answer)
		full := reply.(*pb.TxnResponse)
		full.Header, full.Succeeded, full.Responses = answer.Header, answer.Succeeded, answer.Responses
	}
	return nil
}

// readsOf replaces puts and deletions by reads of the same keys.
func readsOf(ops []*pb.RequestOp) []*pb.RequestOp {
	reads := make([]*pb.RequestOp, len(ops))
	for i, op := range ops {
		reads[i] = op
		if p := op.GetRequestPut(); p != nil {
			reads[i] = rangeOp(&pb.RangeRequest{Key: p.Key, KeysOnly: !p.PrevKv})
		}
		if d := op.GetRequestDeleteRange(); d != nil {
			reads[i] = rangeOp(&pb.RangeRequest{Key: d.Key, RangeEnd: d.RangeEnd, CountOnly: !d.PrevKv})
		}
		if t := op.GetRequestTxn(); t != nil {
			inner := &pb.TxnRequest{Compare: t.Compare, Success: readsOf(t.Success), Failure: readsOf(t.Failure)}
			reads[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: inner}}
		}
	}
	return reads
}

func rangeOp(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

// answered replaces the answers of reads by those of the puts and deletions in their place.
func answered(r *pb.TxnRequest, answer *pb.TxnResponse) {
	ops := r.Success
	if !answer.Succeeded {
		ops = r.Failure
	}
	for i, op := range ops {
		read := answer.Responses[i].GetResponseRange()
		switch {
		case op.GetRequestPut() != nil:
			put := &pb.PutResponse{Header: answer.Header}
			if op.GetRequestPut().PrevKv && len(read.Kvs) > 0 {
				put.PrevKv = read.Kvs[0]
			}
			answer.Responses[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: put}}
		case op.GetRequestDeleteRange() != nil:
			deleted := &pb.DeleteRangeResponse{Header: answer.Header, Deleted: read.Count, PrevKvs: read.Kvs}
			answer.Responses[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: deleted}}
		case op.GetRequestTxn() != nil:
			answered(op.GetRequestTxn(), answer.Responses[i].GetResponseTxn())
		}
	}
}
