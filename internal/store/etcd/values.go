package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrNotFound is wrapped by errors about a value that is known to be absent.
var ErrNotFound = errors.New("not found")

// ErrConflict is wrapped when another client changed the same value first.
var ErrConflict = errors.New("somebody else changed it at the same moment")

// PageKeys is the number of keys in one read.
const PageKeys = 500

// Scan reads a prefix page by page at one revision. The size of one response does not grow with the fleet.
func (s *DB) Scan(ctx context.Context, prefix string, each func(rest string, value []byte) error) (revision int64, err error) {
	return s.Pages(ctx, prefix, PageKeys, each)
}

// Pages is Scan with another page size, for large values, and with further options.
func (s *DB) Pages(ctx context.Context, prefix string, page int64, each func(rest string, value []byte) error, more ...clientv3.OpOption) (revision int64, err error) {
	return s.Entries(ctx, prefix, page, func(kv *mvccpb.KeyValue) error {
		return each(strings.TrimPrefix(string(kv.Key), prefix), kv.Value)
	}, more...)
}

// Entries is Pages for readers that need the revision of each value.
func (s *DB) Entries(ctx context.Context, prefix string, page int64, each func(*mvccpb.KeyValue) error, more ...clientv3.OpOption) (revision int64, err error) {
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		opts := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(revision)}
		resp, err := s.Get(ctx, from, append(opts, more...)...)
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			if err := each(kv); err != nil {
				return 0, err
			}
		}
		if !resp.More {
			return revision, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// Segments lists the names that follow a prefix, up to the next slash. It skips the keys below each name.
func (s *DB) Segments(ctx context.Context, prefix string) ([]string, error) {
	var names []string
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		resp, err := s.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(1), clientv3.WithKeysOnly())
		if err != nil {
			return nil, err
		}
		if len(resp.Kvs) == 0 {
			return names, nil
		}
		key := string(resp.Kvs[0].Key)
		name, _, below := strings.Cut(strings.TrimPrefix(key, prefix), "/")
		if !below { // a key of unknown meaning
			from = key + "\x00"
			continue
		}
		names = append(names, Unescape(name))
		from = clientv3.GetPrefixRangeEnd(prefix + name + "/")
	}
}

// Single reads one value and its revision. It returns nil and 0 if the key does not exist.
func Single[T any](ctx context.Context, s *DB, key string) (*T, int64, error) {
	resp, err := s.Get(ctx, key)
	if err != nil || len(resp.Kvs) == 0 {
		return nil, 0, err
	}
	var value T
	if err := Decode(key, resp.Kvs[0].Value, &value); err != nil {
		return nil, 0, err
	}
	return &value, resp.Kvs[0].ModRevision, nil
}

// ReadAll reads all values below a prefix, by name. damaged names the unreadable ones.
func ReadAll[T any](ctx context.Context, s *DB, prefix string, more ...clientv3.OpOption) (values map[string]T, damaged []string, err error) {
	values = map[string]T{}
	damaged, err = Collect(ctx, s, prefix, func(rest string, value T) { values[Unescape(rest)] = value }, more...)
	return values, damaged, err
}

// Collect calls each with all values below a prefix. damaged names the unreadable ones.
func Collect[T any](ctx context.Context, s *DB, prefix string, each func(rest string, value T), more ...clientv3.OpOption) (damaged []string, err error) {
	_, err = s.Pages(ctx, prefix, PageKeys, func(rest string, b []byte) error {
		var value T
		if err := Decode(prefix+rest, b, &value); err != nil {
			damaged = append(damaged, err.Error())
			return nil
		}
		each(rest, value)
		return nil
	}, more...)
	return damaged, err
}

// Each calls do with all values below a prefix. An unreadable value is an error.
func Each[T any](ctx context.Context, s *DB, prefix string, do func(name string, value T)) error {
	_, err := s.Scan(ctx, prefix, func(rest string, b []byte) error {
		var value T
		if err := Decode(prefix+rest, b, &value); err != nil {
			return err
		}
		do(Unescape(rest), value)
		return nil
	})
	return err
}

// Replace writes one key and returns the new revision. It returns ErrConflict if the key was written since revision.
func (s *DB) Replace(ctx context.Context, key string, value any, revision int64) (int64, error) {
	b, err := Encode(value)
	if err != nil {
		return 0, err
	}
	return s.swap(ctx, key, b, revision)
}

// swap is Replace for bytes.
func (s *DB) swap(ctx context.Context, key, value string, revision int64) (int64, error) {
	resp, err := s.Txn(ctx, []clientv3.Cmp{Same(key, revision)}, []clientv3.Op{clientv3.OpPut(key, value)}, nil)
	if err != nil {
		return 0, err
	}
	if !resp.Succeeded {
		return 0, ErrConflict
	}
	return resp.Header.Revision, nil
}

// Touch announces a change with an unguarded put in the transaction of the change. Readers use the key's ModRevision.
// A compare would make concurrent changes conflict.
func Touch(key string) clientv3.Op {
	return clientv3.OpPut(key, fmt.Sprintf(`{"v":%d}`, valueFormat))
}
