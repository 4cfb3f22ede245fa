package release

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/release/content"
)

// MaxValueBytes bounds every value of content.
const MaxValueBytes = 512 << 10

// Bounds of many values in one answer: etcd builds the answer in memory.
const (
	answerBytes = 1 << 20
	mostDeltas  = 64 // of the usual size of a few kilobytes; larger ones are read in smaller pages
)

var _ content.Source = (*Releases)(nil)

// contentTimeout bounds one read of content. Half a megabyte arrives in that time over a very slow link. All other
// reads are small.
const contentTimeout = 45 * time.Second

// DeltaKey names a delta: its line and its target position.
type DeltaKey struct {
	Line string `json:"line"`
	Seq  int64  `json:"seq"`
}

// Object reads immutable bytes by their hash. A serializable read is enough: a member's value under a hash is right,
// and the reader verifies it. A member that lags may lack the value. Object therefore repeats a read without a result
// as a read of the cluster.
func (s *Releases) Object(ctx context.Context, hash string) ([]byte, error) {
	resp, err := s.getContent(ctx, s.db.Keys.Object(hash), clientv3.WithSerializable())
	if err == nil && len(resp.Kvs) == 0 {
		resp, err = s.getContent(ctx, s.db.Keys.Object(hash))
	}
	if err != nil {
		return nil, err
	}
	if len(resp.Kvs) == 0 {
		return nil, fmt.Errorf("cannot read content %.12s: %w in etcd", hash, etcd.ErrNotFound)
	}
	return resp.Kvs[0].Value, nil
}

func (s *Releases) getContent(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, max(s.db.Timeout, contentTimeout))
	defer cancel()
	resp, err := s.db.Client.Get(ctx, key, opts...)
	return resp, s.db.Explain(err)
}

// PutObject stores immutable bytes under their hash if they are missing. It reports whether it wrote them. Only bytes
// that are stored during a Publishing are safe from a prune before a release names them.
func (s *Releases) PutObject(ctx context.Context, hash string, b []byte) (bool, error) {
	if len(b) > MaxValueBytes {
		return false, fmt.Errorf("cannot store content %.12s: %d bytes are more than the %d of one value", hash, len(b), MaxValueBytes)
	}
	key := s.db.Keys.Object(hash)
	err := s.db.Commit(ctx, etcd.If(etcd.Same(key, 0)).Op(clientv3.OpPut(key, string(b))))
	if errors.Is(err, etcd.ErrConflict) {
		return false, nil
	}
	return err == nil, etcd.Wrap(err, "cannot store content %.12s", hash)
}

// Deltas reads the deltas of a line to the positions from..to, in order. A missing delta is an error that wraps
// ErrNotFound and names its position.
func (s *Releases) Deltas(ctx context.Context, line string, from, to int64) ([][]byte, error) {
	var all [][]byte
	limit := int64(mostDeltas)
	for next := from; next <= to; next = from + int64(len(all)) {
		page, err := s.deltas(ctx, line, next, to, limit)
		if err != nil {
			return nil, fmt.Errorf("cannot read the deltas of line %s: %w", line, err)
		}
		size := 0
		for _, b := range page {
			size += len(b)
		}
		all = append(all, page...)
		limit = max(1, min(mostDeltas, int64(answerBytes*len(page)/max(size, 1))))
	}
	return all, nil
}

// deltas reads consecutive deltas up to the first gap, and at least one. Like Object, it reads one member first.
func (s *Releases) deltas(ctx context.Context, line string, from, to, limit int64) ([][]byte, error) {
	for _, opts := range [][]clientv3.OpOption{{clientv3.WithSerializable()}, nil} {
		opts = append(opts, clientv3.WithRange(s.db.Keys.Delta(line, to)+"\x00"), clientv3.WithLimit(limit))
		resp, err := s.getContent(ctx, s.db.Keys.Delta(line, from), opts...)
		if err != nil {
			return nil, err
		}
		var found [][]byte
		for i, kv := range resp.Kvs {
			// An empty value only marks the position as taken, by a release without a delta.
			if string(kv.Key) != s.db.Keys.Delta(line, from+int64(i)) || len(kv.Value) == 0 {
				break
			}
			found = append(found, kv.Value)
		}
		if len(found) > 0 {
			return found, nil
		}
	}
	return nil, fmt.Errorf("there is none to position %d: %w in etcd", from, etcd.ErrNotFound)
}

// DeltaKeys lists the taken positions of all lines, by line and position.
func (s *Releases) DeltaKeys(ctx context.Context) ([]DeltaKey, error) {
	var all []DeltaKey
	err := s.db.Scan(ctx, s.db.Keys.Deltas(), func(rest string, kv *etcd.KV) error {
		line, position, _ := strings.Cut(rest, "/")
		seq, err := strconv.ParseInt(position, 10, 64)
		k := DeltaKey{Line: etcd.Unescape(line), Seq: seq}
		if err != nil || s.db.Keys.Delta(k.Line, k.Seq) != string(kv.Key) {
			return etcd.NotOurs(kv)
		}
		all = append(all, k)
		return nil
	}, clientv3.WithKeysOnly(), clientv3.WithLimit(1000))
	if err != nil {
		return nil, fmt.Errorf("cannot list deltas: %w", err)
	}
	return all, nil
}

// Objects lists the hashes of all objects, in order.
func (s *Releases) Objects(ctx context.Context, each func(hash string) error) error {
	err := s.db.Scan(ctx, s.db.Keys.Objects(), func(rest string, kv *etcd.KV) error {
		hash := etcd.Unescape(rest)
		if s.db.Keys.Object(hash) != string(kv.Key) {
			return etcd.NotOurs(kv)
		}
		return each(hash)
	}, clientv3.WithKeysOnly(), clientv3.WithLimit(1000))
	return etcd.Wrap(err, "cannot list objects")
}
