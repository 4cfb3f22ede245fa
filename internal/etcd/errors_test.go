package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"pulley/internal/model"
	"pulley/internal/pki/connect"
)

// While members elect a leader, a member answers a write with this text and without a code. A tick then must end like one without
// etcd, and an operator must read that nothing was written.
func TestDroppedProposalIsUnreachable(t *testing.T) {
	t.Parallel()
	err := (&DB{Endpoints: "https://etcd1:2379"}).ExplainWrite(status.Error(codes.Unknown, "raft proposal dropped"))
	if !errors.Is(err, model.ErrUnreachable) {
		t.Errorf("it is no missing etcd: %v", err)
	}
	if errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("etcd proposed nothing, and the outcome is unknown: %v", err)
	}
}

// An endpoint received a write, did not answer it, and fails since because of a clock. That says nothing about the write.
func TestLaterFailureIsNoOutcome(t *testing.T) {
	t.Parallel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://127.0.0.1:1"}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	within, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for conn := client.ActiveConnection(); conn.GetState() != connectivity.TransientFailure; {
		if conn.Connect(); !conn.WaitForStateChange(within, conn.GetState()) {
			t.Fatal("a closed port is no failure")
		}
	}
	expired := connect.Failures{{Code: connect.ServerTime, Server: connect.Etcd, URL: "https://etcd1:2379"}}
	db := &DB{Client: client, Endpoints: "https://etcd1:2379", connecting: &connecting{probed: time.Now().Add(time.Minute), found: expired}}
	if err := db.ExplainWrite(context.DeadlineExceeded); !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, model.ErrClock) {
		t.Errorf("the write may be in force, and its error is: %v", err)
	}
	handshake := `connection error: desc = "transport: authentication handshake failed: tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2026-01-02T00:00:00Z is after 2026-01-01T00:00:00Z"`
	if err := db.ExplainWrite(status.Error(codes.Unavailable, handshake)); errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, model.ErrClock) {
		t.Errorf("the write was never sent, and its error is: %v", err)
	}
}

// A command that is interrupted, or whose time ends, before the first connection has sent nothing. It must not report that its
// write may be in force.
func TestCallThatWasNeverSentHasAnOutcome(t *testing.T) {
	t.Parallel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://127.0.0.1:1"}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for name, end := range map[string]func() (context.Context, context.CancelFunc){
		"interrupted": func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return ctx, cancel
		},
		"its time ended": func() (context.Context, context.CancelFunc) { return context.WithTimeout(t.Context(), -time.Second) },
	} {
		w := &connecting{timeout: time.Second, probed: time.Now().Add(time.Minute)} // the probe finds that an endpoint answers
		ctx, cancel := end()
		sent := false
		err := w.intercept(ctx, "/etcdserverpb.KV/Txn", nil, nil, client.ActiveConnection(), func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			sent = true
			return nil
		})
		cancel()
		db := &DB{Client: client, Endpoints: "http://127.0.0.1:1"}
		if explained := db.ExplainWrite(err); err == nil || sent || errors.Is(explained, ErrUnknownOutcome) {
			t.Errorf("%s: sent %v, and its error is: %v", name, sent, explained)
		}
	}
}
