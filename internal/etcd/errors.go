package etcd

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/pki/connect"
)

// Wrap adds the action that failed to an error: "cannot list operators". It returns nil for nil.
func Wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

// ErrNotFound is wrapped by errors about a value that is known to be absent.
var ErrNotFound = errors.New("not found")

// ErrConflict is wrapped when another client changed the same value first.
var ErrConflict = errors.New("another command changed it at the same time")

// ErrRevoked means that etcd has no user for a certificate. The node was removed, the operator was revoked, or either
// joined again under another incarnation. The certificate never becomes valid again.
var ErrRevoked = model.ErrRevoked

// ErrFull means that etcd has no space left: it accepts only deletions until an administrator frees space.
var ErrFull = rpctypes.ErrNoSpace

// LargeAnswer is in the errors of gRPC and of `pulley serve` for a request with an answer that is too large.
const LargeAnswer = "received message larger than max"

// errTooLarge means that a request has a larger answer than this program accepts: ask for less.
var errTooLarge = fmt.Errorf("the answer of etcd is larger than %d MiB\nrun `pulley doctor`: it names nodes that wrote too much", maxAnswerBytes>>20)

// full is ErrFull with a remedy.
type full struct{}

func (full) Error() string { return "etcd has no space left: it accepts only deletions" }
func (full) Unwrap() error { return ErrFull }

// Hint returns the way back, which needs no other tool.
func (full) Hint() string {
	return "run `pulley doctor --fix` as an admin, then `pulley releases prune`; or raise the quota: `pulley serve --quota`"
}

// ErrNoRole means that a user was granted a role that does not exist.
var ErrNoRole = rpctypes.ErrRoleNotFound

// unreachable is the error that etcd did not answer.
type unreachable struct{ connect.Failures }

// Unwrap returns what callers branch on.
func (u *unreachable) Unwrap() []error {
	if u.Clock() {
		return []error{model.ErrUnreachable, model.ErrClock, u.Failures[0]}
	}
	return []error{model.ErrUnreachable, u.Failures[0]}
}

// silent returns the error for a missing answer. A connection that was lost gets a short probe if gRPC's error lacks the cause.
func (s *DB) silent(err error) error {
	var known *unreachable
	if errors.As(err, &known) {
		return known
	}
	if w := s.connecting; w != nil && s.Client.ActiveConnection().GetState() == connectivity.TransientFailure {
		ctx, cancel := context.WithTimeout(context.Background(), probeWithin)
		defer cancel()
		if found := w.probe(ctx, ""); found != nil {
			return &unreachable{found}
		}
	}
	target := connect.Target{Server: connect.Etcd, URL: strings.ReplaceAll(s.Endpoints, ",", ", "), Own: s.certificate(), Timeout: s.Timeout}
	return &unreachable{connect.Failures{target.Explain(err, time.Now())}}
}

// otherServer returns the error that something else than etcd answered.
func (s *DB) otherServer() error {
	if s.connecting == nil {
		return &unreachable{connect.Failures{{Code: connect.OtherServer, Server: connect.Etcd, URL: s.Endpoints}}}
	}
	var found connect.Failures
	for _, t := range s.connecting.targets {
		found = append(found, t.Identify())
	}
	return &unreachable{found}
}

// certificate returns this client's own certificate, as its file contains it now; nil for none.
func (s *DB) certificate() *x509.Certificate {
	if s.pair == nil {
		return nil
	}
	pair, err := s.pair()
	if err != nil {
		return nil
	}
	return pair.Leaf
}

// ErrUnknownOutcome is wrapped when etcd did not answer a write that it may have received. The write may be in force, or may still
// take effect: read again.
var ErrUnknownOutcome = errors.New("the outcome is unknown")

// ErrReadAgain is wrapped, beside ErrUnknownOutcome, by an error that names the command to read again with.
var ErrReadAgain = errors.New("the outcome is unknown")

// unknownOutcome is a missing answer to a write.
type unknownOutcome struct{ cause error }

func (u *unknownOutcome) Error() string   { return u.cause.Error() }
func (u *unknownOutcome) Unwrap() []error { return []error{ErrUnknownOutcome, u.cause} }

// Hint repeats nothing if the error already names the command that reads again.
func (u *unknownOutcome) Hint() string { return ErrUnknownOutcome.Error() }

// ExplainWrite is Explain for a write. It marks an error after which the write may be in force. Only err itself shows that a
// write was not sent: the last failed connection may be that to another member.
func (s *DB) ExplainWrite(err error) error {
	explained := s.Explain(err)
	switch {
	case err == nil, !errors.Is(explained, model.ErrUnreachable) && !interrupted(err):
	case errors.As(err, new(*unreachable)), errors.As(err, new(notSent)), strings.Contains(err.Error(), "Error while dialing"), strings.Contains(err.Error(), "authentication handshake failed"),
		strings.Contains(err.Error(), "error reading server preface"), errors.Is(err, rpctypes.ErrNoLeader), dropped(err): // it was never sent, or never proposed
	default:
		return &unknownOutcome{explained}
	}
	return explained
}

// interrupted reports whether the caller gave up.
func interrupted(err error) bool {
	return errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled
}

// Explain distinguishes a missing answer from a refusal by etcd.
func (s *DB) Explain(err error) error {
	if err == nil {
		return nil
	}
	switch {
	case errors.As(err, new(*unreachable)):
		return err
	case errors.Is(err, rpctypes.ErrNoSpace):
		return full{}
	case errors.Is(err, rpctypes.ErrKeyNotFound): // only a put that keeps the value of a Draft's key demands a key
		return ErrLeaseEnded
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, rpctypes.ErrNoLeader),
		errors.Is(err, rpctypes.ErrTimeout), errors.Is(err, rpctypes.ErrTimeoutDueToLeaderFail),
		errors.Is(err, rpctypes.ErrTimeoutDueToConnectionLost), errors.Is(err, rpctypes.ErrStopped), dropped(err):
		return s.silent(err)
	}
	switch {
	case strings.Contains(err.Error(), LargeAnswer):
		return errTooLarge
	case strings.Contains(err.Error(), "message larger than max"), errors.Is(err, rpctypes.ErrRequestTooLarge):
		return errors.New("the value is larger than etcd accepts, 1.5 MiB by default\nstore it in smaller parts")
	}
	code := status.Code(err)
	var ofEtcd rpctypes.EtcdError
	if errors.As(err, &ofEtcd) {
		code = ofEtcd.Code()
	}
	switch {
	case code == codes.Unavailable || code == codes.DeadlineExceeded:
		return s.silent(err)
	case notEtcd(err, code):
		return s.otherServer()
	case code == codes.PermissionDenied || code == codes.Unauthenticated || errors.Is(err, rpctypes.ErrUserEmpty) || errors.Is(err, rpctypes.ErrAuthFailed):
		return s.refused(err)
	}
	return err
}

// dropped reports whether a member without a leader refused a write: raft's ErrProposalDropped, to which etcd gives no code.
func dropped(err error) bool { return strings.Contains(err.Error(), "raft proposal dropped") }

// notEtcd reports whether another server than etcd answered. gRPC then reports an HTTP error or an unknown method.
func notEtcd(err error, code codes.Code) bool {
	return code == codes.Unimplemented || strings.Contains(err.Error(), "unexpected HTTP status code") || strings.Contains(err.Error(), "unexpected content-type")
}

// refused adds the remedy to a request that etcd refused. It makes one more request, to see whether the user still
// exists: every user may read itself.
func (s *DB) refused(err error) error {
	advice := "ask the administrator of etcd for a user with the right role; `--cert` and `--key` give its certificate"
	switch name, notPulleys := pki.ParseName(s.user); {
	case s.user == "" || notPulleys != nil:
	case !s.revoked():
		switch name.Kind {
		case pki.KindNode:
			advice = "an administrator repairs the grants of nodes with `pulley doctor --fix`"
		case pki.KindOperator:
			advice = "this needs an operator with another role: `pulley operators list` shows who is an admin"
		}
	case name.Kind == pki.KindNode:
		return fmt.Errorf("etcd refuses %s: %w\nthis node was removed, its certificate was revoked, or it joined after the backup from which etcd was restored; for it to join again: "+
			"`pulley token create -e %s --node %s`, then `pulley-agent bootstrap --token TOKEN` on the machine", s.CallerName, ErrRevoked, name.Environment, name.Subject)
	default:
		return fmt.Errorf("etcd refuses %s: %w\nthis certificate was revoked, or there is a newer one; ask an admin for a token, and `pulley login` with it", s.CallerName, ErrRevoked)
	}
	return fmt.Errorf("etcd refuses %s: %w\n%s", s.CallerName, err, advice)
}

// revoked asks etcd whether this connection's user still exists. Without an answer it returns false.
func (s *DB) revoked() bool {
	ctx, cancel := context.WithTimeout(context.Background(), s.Timeout)
	defer cancel()
	_, err := s.Client.UserGet(ctx, s.user)
	return errors.Is(err, rpctypes.ErrUserNotFound)
}

// WatchEnd returns the error of an ended watch if etcd gives no reason.
func WatchEnd(err error) error {
	if err == nil {
		return errors.New("etcd ended the watch")
	}
	return err
}

// NotOurs is the error for a key that has no form of Pulley's.
func NotOurs(kv *KV) error {
	return &UnreadableError{Key: string(kv.Key), Problem: "it is not a key of pulley's"}
}
