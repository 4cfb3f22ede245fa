package etcd

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"pulley/agent"
)

// While members elect a leader, a member answers a write with this text and without a code. A tick then must end like one without
// etcd, and an operator must read that nothing was written.
func TestDroppedProposalIsUnreachable(t *testing.T) {
	t.Parallel()
	err := (&DB{Endpoints: "https://etcd1:2379"}).ExplainWrite(status.Error(codes.Unknown, "raft proposal dropped"))
	if !errors.Is(err, agent.ErrUnreachable) {
		t.Errorf("it is no missing etcd: %v", err)
	}
	if errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("etcd proposed nothing, and the outcome is unknown: %v", err)
	}
}
