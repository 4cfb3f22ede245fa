package etcd

import (
	"context"
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

// One of three members has an expired certificate, and another one does not answer a write that it has received. The connections to
// the first fail again and again, and say nothing about the write.
func TestFailureOfAnotherMemberIsNoOutcome(t *testing.T) {
	t.Parallel()
	expired := errors.New("x509: certificate has expired or is not yet valid: current time 2026-01-02T00:00:00Z is after 2026-01-01T00:00:00Z")
	db := &DB{Endpoints: "https://etcd1:2379,https://etcd2:2379,https://etcd3:2379", peer: &peer{}}
	db.peer.failure.Store(&expired)
	if err := db.ExplainWrite(context.DeadlineExceeded); !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, agent.ErrUnreachable) {
		t.Errorf("the write may be in force, and its error is: %v", err)
	}
	if err := db.ExplainWrite(status.Error(codes.Unavailable, expired.Error())); errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, agent.ErrClock) {
		t.Errorf("the write was never sent, and its error is: %v", err)
	}
}
