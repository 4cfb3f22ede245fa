package store

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

// maxAnswerBytes bounds the memory that one answer can take. What is read at a time is far smaller.
const maxAnswerBytes = 16 << 20

// Config says how to reach etcd.
type Config struct {
	Endpoints         []string
	CACert, Cert, Key string        // files; all empty for plain text
	Prefix            string        // first part of every key; DefaultPrefix when empty
	Timeout           time.Duration // of each call; DefaultTimeout when 0
}

// db is a connection to one fleet's keyspace. It is safe for concurrent use.
type db struct {
	client    *clientv3.Client
	keys      keys
	timeout   time.Duration
	endpoints string
	identity  string // as errors name it
	user      string // whom etcd takes it for; "" without a certificate
	peer      *peer  // nil inside of etcd's process
}

// Open makes a client. It does not wait for a connection: the first call does, within its deadline.
func Open(c Config) (*Store, error) {
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
		Logger:             zap.NewNop(), // errors are returned; the client's own log would say them a second time
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make an etcd client for %s: %w", strings.Join(c.Endpoints, ","), err)
	}
	return newStore(&db{client: client, keys: newKeys(c.Prefix), timeout: c.Timeout, endpoints: strings.Join(c.Endpoints, ","), identity: identityOf(tlsConfig), user: userOf(tlsConfig), peer: seen}), nil
}

// Over is a store over a client that is there: that of an embedded member, inside of its process.
func Over(client *clientv3.Client, endpoint, prefix string, timeout time.Duration) *Store {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	return newStore(&db{client: client, keys: newKeys(prefix), timeout: timeout, endpoints: endpoint, identity: "pulley serve"})
}

// Close ends the connection.
func (s *db) Close() error { return s.client.Close() }

// txn runs one transaction within the store's deadline.
func (s *db) txn(ctx context.Context, cmps []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	resp, err := s.client.Txn(ctx).If(cmps...).Then(then...).Else(otherwise...).Commit()
	return resp, s.explain(err)
}

func (s *db) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	resp, err := s.client.Get(ctx, key, opts...)
	return resp, s.explain(err)
}

// scan pages through a prefix at one revision, so that no single answer grows with the fleet.
func (s *db) scan(ctx context.Context, prefix string, each func(rest string, value []byte) error) (revision int64, err error) {
	return s.pages(ctx, prefix, pageKeys, each)
}

// pageKeys is how many keys are read at a time.
const pageKeys = 500

// pages is scan with a page of so many keys, for values that are large, and with further options.
func (s *db) pages(ctx context.Context, prefix string, page int64, each func(rest string, value []byte) error, more ...clientv3.OpOption) (revision int64, err error) {
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		opts := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(revision)}
		resp, err := s.get(ctx, from, append(opts, more...)...)
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			if err := each(strings.TrimPrefix(string(kv.Key), prefix), kv.Value); err != nil {
				return 0, err
			}
		}
		if !resp.More {
			return revision, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// unreachable is how "etcd gave no answer" reads.
type unreachable struct {
	endpoints string
	cause     error
}

func (u *unreachable) Error() string {
	return fmt.Sprintf("etcd is unreachable at %s: %v", u.endpoints, u.cause)
}
func (u *unreachable) Unwrap() []error { return []error{agent.ErrUnreachable, u.cause} }

// explain tells apart that etcd gave no answer and that it refused.
func (s *db) explain(err error) error {
	if err == nil {
		return nil
	}
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("etcd has no space left: %w\nuntil there is room nothing can be written: `pulley doctor` says who fills it; raise the quota (`pulley serve --quota`), or compact and defragment etcd, then `etcdctl alarm disarm`; then `pulley releases prune`", err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, rpctypes.ErrNoLeader),
		errors.Is(err, rpctypes.ErrTimeout), errors.Is(err, rpctypes.ErrTimeoutDueToLeaderFail),
		errors.Is(err, rpctypes.ErrTimeoutDueToConnectionLost), errors.Is(err, rpctypes.ErrStopped):
		return &unreachable{s.endpoints, plainCause(err)}
	}
	code := status.Code(err)
	var ofEtcd rpctypes.EtcdError
	if errors.As(err, &ofEtcd) {
		code = ofEtcd.Code()
	}
	switch {
	case code == codes.Unavailable || code == codes.DeadlineExceeded:
		return &unreachable{s.endpoints, plainCause(err)}
	case notEtcd(err, code):
		return &unreachable{s.endpoints, errors.New("what answers at " + s.endpoints + " does not answer as etcd")}
	case code == codes.PermissionDenied || code == codes.Unauthenticated || errors.Is(err, rpctypes.ErrUserEmpty) || errors.Is(err, rpctypes.ErrAuthFailed):
		return s.refused(err)
	}
	return err
}

// notEtcd reports whether something else than etcd answered, as gRPC tells it: with HTTP's own words, or with no such method.
func notEtcd(err error, code codes.Code) bool {
	return code == codes.Unimplemented || strings.Contains(err.Error(), "unexpected HTTP status code") || strings.Contains(err.Error(), "unexpected content-type")
}

// plainCause cuts gRPC's wording down to what happened.
func plainCause(err error) error {
	text := err.Error()
	if _, cause, ok := strings.Cut(text, "transport: "); ok {
		text = strings.TrimSuffix(cause, `"`)
	}
	if text == context.DeadlineExceeded.Error() {
		text = "no answer within the deadline"
	}
	return errors.New(text)
}

// nothingBelow is the guard that no key begins with a prefix. Of a range without keys etcd compares 0; of any other, the
// revision of each, which is never 0.
func nothingBelow(prefix string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(prefix).WithPrefix(), "=", 0)
}

// same is the guard of a write: the key is as it was when it was read. Revision 0 means that it did not exist.
func same(key string, modRevision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", modRevision)
}
