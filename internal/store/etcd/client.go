package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"pulley/agent"
)

// DefaultTimeout bounds every call to etcd.
const DefaultTimeout = 5 * time.Second

// maxAnswerBytes bounds the memory of one response. Normal reads are far smaller.
const maxAnswerBytes = 16 << 20

// Config describes the connection to etcd.
type Config struct {
	Endpoints         []string
	CACert, Cert, Key string        // files; all empty for plain text
	Prefix            string        // first part of every key; DefaultPrefix when empty
	Timeout           time.Duration // of each call; DefaultTimeout when 0
}

// DB is a connection to one fleet's keyspace. It is safe for concurrent use.
type DB struct {
	Client     *clientv3.Client
	Keys       Keys
	Timeout    time.Duration
	Endpoints  string
	CallerName string // name of the client in errors
	user       string // user that etcd derives from the certificate; "" without one
	peer       *peer  // nil in etcd's own process
}

// Open creates a client. The first call connects, within its deadline.
func Open(c Config) (*DB, error) {
	if len(c.Endpoints) == 0 {
		return nil, errors.New("cannot reach etcd: no endpoints are given\nset --endpoints or PULLEY_ENDPOINTS")
	}
	seen := &peer{}
	tlsConfig, err := c.tls(seen)
	if err != nil {
		return nil, err
	}
	if c.Timeout < 0 {
		return nil, fmt.Errorf("cannot reach etcd: %s is no time to wait for an answer\ngive a timeout above 0, like 5s", c.Timeout)
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: c.Endpoints, TLS: tlsConfig, DialTimeout: c.Timeout,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 5 * time.Second,
		MaxCallRecvMsgSize: maxAnswerBytes,
		Logger:             zap.NewNop(), // errors are returned; the client's own log would repeat them
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make an etcd client for %s: %w", strings.Join(c.Endpoints, ","), err)
	}
	return &DB{Client: client, Keys: NewKeys(c.Prefix), Timeout: c.Timeout, Endpoints: strings.Join(c.Endpoints, ","), CallerName: identityOf(tlsConfig), user: userOf(tlsConfig), peer: seen}, nil
}

// Over returns a connection over the client of an embedded member in the same process.
func Over(client *clientv3.Client, endpoint, prefix string, timeout time.Duration) *DB {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	return &DB{Client: client, Keys: NewKeys(prefix), Timeout: timeout, Endpoints: endpoint, CallerName: "pulley serve"}
}

// Prefix returns the first part of every key, without surrounding slashes. Names of users and roles begin with it.
func (s *DB) Prefix() string { return s.Keys.Prefix() }

// Close closes the connection.
func (s *DB) Close() error { return s.Client.Close() }

// Txn runs one transaction within the store's deadline.
func (s *DB) Txn(ctx context.Context, cmps []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	resp, err := s.Client.Txn(ctx).If(cmps...).Then(then...).Else(otherwise...).Commit()
	return resp, s.Explain(err)
}

// Get reads one key or a range, within the deadline.
func (s *DB) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	resp, err := s.Client.Get(ctx, key, opts...)
	return resp, s.Explain(err)
}

// unreachable is the error that etcd did not answer.
type unreachable struct {
	endpoints string
	cause     error
}

func (u *unreachable) Error() string {
	return fmt.Sprintf("etcd is unreachable at %s: %v", u.endpoints, u.cause)
}
func (u *unreachable) Unwrap() []error { return []error{agent.ErrUnreachable, u.cause} }

// Explain distinguishes a missing answer from a refusal by etcd.
func (s *DB) Explain(err error) error {
	if err == nil {
		return nil
	}
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("etcd has no space left: %w\nuntil there is room nothing can be written: `pulley doctor` says who fills it; raise the quota (`pulley serve --quota`), or compact and defragment etcd, then `etcdctl alarm disarm`; then `pulley releases prune`", err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, rpctypes.ErrNoLeader),
		errors.Is(err, rpctypes.ErrTimeout), errors.Is(err, rpctypes.ErrTimeoutDueToLeaderFail),
		errors.Is(err, rpctypes.ErrTimeoutDueToConnectionLost), errors.Is(err, rpctypes.ErrStopped):
		return &unreachable{s.Endpoints, PlainCause(err)}
	}
	code := status.Code(err)
	var ofEtcd rpctypes.EtcdError
	if errors.As(err, &ofEtcd) {
		code = ofEtcd.Code()
	}
	switch {
	case code == codes.Unavailable || code == codes.DeadlineExceeded:
		return &unreachable{s.Endpoints, PlainCause(err)}
	case notEtcd(err, code):
		return &unreachable{s.Endpoints, errors.New("what answers at " + s.Endpoints + " does not answer as etcd")}
	case code == codes.PermissionDenied || code == codes.Unauthenticated || errors.Is(err, rpctypes.ErrUserEmpty) || errors.Is(err, rpctypes.ErrAuthFailed):
		return s.refused(err)
	}
	return err
}

// notEtcd reports whether another server than etcd answered. gRPC then reports an HTTP error or an unknown method.
func notEtcd(err error, code codes.Code) bool {
	return code == codes.Unimplemented || strings.Contains(err.Error(), "unexpected HTTP status code") || strings.Contains(err.Error(), "unexpected content-type")
}

// PlainCause reduces gRPC's wording to the cause.
func PlainCause(err error) error {
	text := err.Error()
	if _, cause, ok := strings.Cut(text, "transport: "); ok {
		text = strings.TrimSuffix(cause, `"`)
	}
	if text == context.DeadlineExceeded.Error() {
		text = "no answer within the deadline"
	}
	return errors.New(text)
}

// NothingBelow guards that no key begins with prefix. For a range without keys etcd compares 0. For any other range it
// compares each key's revision, which is never 0.
func NothingBelow(prefix string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(prefix).WithPrefix(), "=", 0)
}

// Same guards that the key is unchanged since it was read at modRevision. Revision 0 means that the key did not exist.
func Same(key string, modRevision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", modRevision)
}
