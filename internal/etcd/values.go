package etcd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// valueFormat is the version of the values that this program writes. It reads no newer version.
const valueFormat = 1

// Encode writes a value as a JSON object that begins with its format: {"v":1,…}.
func Encode(value any) (string, error) {
	b, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("cannot encode %T: %w", value, err)
	}
	head := fmt.Sprintf(`{"v":%d`, valueFormat)
	if len(b) > 2 {
		head += ","
	}
	return head + string(b[1:]), nil
}

// UnreadableError is the error of a value that is damaged, not Pulley's, or from a newer Pulley.
type UnreadableError struct {
	Key, Problem string
	Next         string // remedy, if it is not obvious

	Newer bool // a newer Pulley wrote it
}

// Hint returns the remedy.
func (e *UnreadableError) Hint() string { return e.Next }

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("cannot read key %s: %s", e.Key, e.Problem)
}

// Decode reads the result of Encode. It ignores unknown fields. A newer Pulley must raise the format if older versions
// would misread its values.
func Decode(key string, b []byte, into any) error {
	if err := CheckSize(key, b); err != nil {
		return err
	}
	if !bytes.HasPrefix(b, ownHead) { // else the format is known without a second pass over the value
		if err := checkFormat(key, b); err != nil {
			return err
		}
	}
	if err := json.Unmarshal(b, into); err != nil {
		return &UnreadableError{Key: key, Problem: "its value is damaged or was not written by pulley: " + err.Error()}
	}
	return nil
}

// ownHead begins the values that Encode writes.
var ownHead = fmt.Appendf(nil, `{"v":%d,`, valueFormat)

// checkFormat refuses a value that is not Pulley's, or from a newer Pulley.
func checkFormat(key string, b []byte) error {
	var head struct {
		V *int `json:"v"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return &UnreadableError{Key: key, Problem: "its value is damaged or was not written by pulley: " + err.Error()}
	}
	switch {
	case head.V == nil || !bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")):
		return &UnreadableError{Key: key, Problem: "its value was not written by pulley"}
	case *head.V > valueFormat:
		return &UnreadableError{Key: key, Problem: fmt.Sprintf("its format %d is newer than this program's %d; upgrade pulley here", *head.V, valueFormat), Newer: true}
	}
	return nil
}

// replaced begins what this package puts in the place of a value that is larger than its kind may be. No reader decodes it.
const replaced = "\x00too large: "

func tooLarge(size int) []byte { return fmt.Append(nil, replaced, size) }

// bound replaces the value of a key if it is larger than its kind may be.
func (k Keys) bound(kv *KV) {
	if limit := k.limit(string(kv.Key)); limit > 0 && len(kv.Value) > limit {
		kv.Value = tooLarge(len(kv.Value))
	}
}

// CheckSize returns an UnreadableError for a value that was larger than its kind may be, when a key of this package was read.
func CheckSize(key string, b []byte) error {
	rest, is := bytes.CutPrefix(b, []byte(replaced))
	if size, err := strconv.Atoi(string(rest)); is && err == nil {
		return &UnreadableError{Key: key, Problem: fmt.Sprintf("its value has %d KiB, more than any that pulley writes", size>>10)}
	}
	return nil
}

// KV is a key with its value and revisions.
type KV = mvccpb.KeyValue

// pageKeys is the number of keys in one response.
const pageKeys = 500

// Scan reads the keys of a prefix page by page at one revision, and calls each with the rest of every key. The size of
// a response does not grow with the fleet. WithLimit sets another page size, for large values or for keys alone. It reads
// a page that is too large for one answer in smaller ones, down to a single key. A value that is larger than its kind may
// be arrives as one that nothing decodes.
func (s *DB) Scan(ctx context.Context, prefix string, each func(rest string, kv *KV) error, more ...clientv3.OpOption) error {
	return s.scan(ctx, prefix, false, each, more)
}

// ErrEnough ends a scan before its last key. The scan then returns no error.
var ErrEnough = errors.New("no more keys are needed")

// ScanDown is Scan from the last key to the first. Its pages are of one revision only with WithRev.
func (s *DB) ScanDown(ctx context.Context, prefix string, each func(rest string, kv *KV) error, more ...clientv3.OpOption) error {
	return s.scan(ctx, prefix, true, each, append(more, clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend)))
}

func (s *DB) scan(ctx context.Context, prefix string, down bool, each func(rest string, kv *KV) error, more []clientv3.OpOption) error {
	from, end, revision := prefix, clientv3.GetPrefixRangeEnd(prefix), int64(0)
	for page := int64(pageKeys); ; {
		opts := append([]clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(pageKeys), clientv3.WithRev(revision)}, more...)
		if page < pageKeys {
			opts = append(opts, clientv3.WithLimit(page))
		}
		resp, err := s.Get(ctx, from, opts...)
		large := errors.Is(err, errTooLarge)
		switch {
		case large && page > 1:
			page = max(1, page/smallerPage)
			continue
		case large: // one value is larger than an answer
			resp, err = s.Get(ctx, from, append(opts, clientv3.WithKeysOnly())...)
		}
		if err != nil {
			return err
		}
		if revision == 0 && !down {
			revision = resp.Header.Revision
		}
		size := 0
		for _, kv := range resp.Kvs {
			size += len(kv.Value)
			if large {
				kv.Value = tooLarge(maxAnswerBytes)
			}
			s.Keys.bound(kv)
			if err := each(strings.TrimPrefix(string(kv.Key), prefix), kv); errors.Is(err, ErrEnough) {
				return nil
			} else if err != nil {
				return err
			}
		}
		if !resp.More {
			return nil
		}
		if last := string(resp.Kvs[len(resp.Kvs)-1].Key); down {
			end = last
		} else {
			from = last + "\x00"
		}
		if size < maxAnswerBytes/smallerPage {
			page = min(2*page, pageKeys)
		}
	}
}

// smallerPage divides the keys of a page that is too large for one answer.
const smallerPage = 4

// Segments lists the names that follow a prefix, up to the next slash. It skips the keys below each name, and what is no name.
func (s *DB) Segments(ctx context.Context, prefix string) (names []string, err error) {
	err = s.EachSegment(ctx, prefix, func(segment string, below bool) error {
		if below && IsSegment(segment) {
			names = append(names, Unescape(segment))
		}
		return nil
	})
	return names, err
}

// EachSegment calls each once with every segment that follows a prefix, and whether keys are below it; else it ends a key.
func (s *DB) EachSegment(ctx context.Context, prefix string, each func(segment string, below bool) error) error {
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		resp, err := s.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(1), clientv3.WithKeysOnly())
		if err != nil || len(resp.Kvs) == 0 {
			return err
		}
		key := string(resp.Kvs[0].Key)
		segment, _, below := strings.Cut(strings.TrimPrefix(key, prefix), "/")
		if err := each(segment, below); err != nil {
			return err
		}
		if from = key + "\x00"; below {
			from = clientv3.GetPrefixRangeEnd(prefix + segment + "/")
		}
	}
}

// Names lists names below root that begin with a prefix, in the order of keys, at most limit. It reads no values. If it leaves
// out names, it adds those that differ earlier than the others: a shell completes what all suggestions have in common.
func (s *DB) Names(ctx context.Context, root, prefix string, limit int64) ([]string, error) {
	start := root + escape(prefix)
	resp, err := s.Get(ctx, start, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(limit))
	if err != nil {
		return nil, err
	}
	for more := resp.More; more; {
		n := len(resp.Kvs)
		first, last := string(resp.Kvs[0].Key), string(resp.Kvs[n-1].Key)
		same := 0
		for same < min(len(first), len(last)) && first[same] == last[same] {
			same++
		}
		if same == len(start) {
			break
		}
		other, err := s.Get(ctx, clientv3.GetPrefixRangeEnd(first[:same]), clientv3.WithRange(clientv3.GetPrefixRangeEnd(start)), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
		if err != nil {
			return nil, err
		}
		resp.Kvs, more = append(resp.Kvs, other.Kvs...), len(other.Kvs) > 0
	}
	var names []string
	for _, kv := range resp.Kvs {
		if name := strings.TrimPrefix(string(kv.Key), root); !strings.Contains(name, "/") {
			names = append(names, Unescape(name))
		}
	}
	return names, nil
}

// Exists reports whether any key begins with prefix.
func (s *DB) Exists(ctx context.Context, prefix string) (bool, error) {
	resp, err := s.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	return err == nil && resp.Count > 0, err
}

// Single reads one value and its revision. It returns nil and 0 if the key does not exist. With an UnreadableError it
// returns the revision as well.
func Single[T any](ctx context.Context, s *DB, key string) (*T, int64, error) {
	resp, err := s.Get(ctx, key)
	if err != nil || len(resp.Kvs) == 0 {
		return nil, 0, err
	}
	var value T
	s.Keys.bound(resp.Kvs[0])
	if err := Decode(key, resp.Kvs[0].Value, &value); err != nil {
		return nil, resp.Kvs[0].ModRevision, err
	}
	return &value, resp.Kvs[0].ModRevision, nil
}

// Point is one key of a read, and the reader of its value.
type Point struct {
	Key  string
	Read func(*KV) error // nil: only the revision is read
}

// Into returns the reader of a value that Encode wrote.
func Into(value any) func(*KV) error {
	return func(kv *KV) error { return Decode(string(kv.Key), kv.Value, value) }
}

// Read reads points at one revision, in one request. It adds the revision of each key to guards, 0 for a missing key. Points that are
// too large for one answer take several requests.
func (s *DB) Read(ctx context.Context, guards map[string]int64, points ...Point) (revision int64, err error) {
	kvs := make([]*KV, len(points))
	if revision, err = s.read(ctx, 0, points, kvs); err != nil {
		return 0, err
	}
	for i, p := range points {
		guards[p.Key] = 0
		if kv := kvs[i]; kv != nil {
			guards[p.Key] = kv.ModRevision
			if p.Read == nil {
				continue
			}
			s.Keys.bound(kv)
			if err := p.Read(kv); err != nil {
				return 0, err
			}
		}
	}
	return revision, nil
}

// read reads points into kvs, nil for a missing key, at a revision; 0: the current one. It returns the revision.
func (s *DB) read(ctx context.Context, at int64, points []Point, kvs []*KV, more ...clientv3.OpOption) (int64, error) {
	ops := make([]clientv3.Op, len(points))
	for i, p := range points {
		opts := append(more[:len(more):len(more)], clientv3.WithRev(at))
		if p.Read == nil {
			opts = append(opts, clientv3.WithKeysOnly())
		}
		ops[i] = clientv3.OpGet(p.Key, opts...)
	}
	resp, err := s.Txn(ctx, nil, ops, nil)
	switch large := errors.Is(err, errTooLarge); {
	case large && len(points) > 1:
		half := len(points) / 2
		if at, err = s.read(ctx, at, points[:half], kvs[:half]); err == nil {
			_, err = s.read(ctx, at, points[half:], kvs[half:])
		}
		return at, err
	case large:
		at, err = s.read(ctx, at, points, kvs, clientv3.WithKeysOnly())
		if err == nil && kvs[0] != nil {
			kvs[0].Value = tooLarge(maxAnswerBytes)
		}
		return at, err
	case err != nil:
		return 0, err
	}
	for i := range points {
		for _, kv := range resp.Responses[i].GetResponseRange().Kvs {
			kvs[i] = kv
		}
	}
	return cmp.Or(at, resp.Header.Revision), nil
}

// ReadAll reads all values below a prefix, by name. damaged names the unreadable ones.
func ReadAll[T any](ctx context.Context, s *DB, prefix string, more ...clientv3.OpOption) (values map[string]T, damaged []string, err error) {
	values = map[string]T{}
	damaged, err = Collect(ctx, s, prefix, func(rest string, value T, _ int64) { values[Unescape(rest)] = value }, more...)
	return values, damaged, err
}

// Collect calls each with all values below a prefix and the revisions of their keys, in the order of keys. damaged names the unreadable ones. Values are
// decoded on all processors, while etcd sends the next ones.
func Collect[T any](ctx context.Context, s *DB, prefix string, each func(rest string, value T, revision int64), more ...clientv3.OpOption) (damaged []string, err error) {
	type one struct {
		rest     string
		kv       *KV
		value    T
		revision int64
		err      error
	}
	var parts [][]one
	var part []one
	var done sync.WaitGroup
	decode := func() {
		if now := part; len(now) > 0 {
			parts, part = append(parts, now), nil
			done.Go(func() {
				for i := range now {
					now[i].err = Decode(string(now[i].kv.Key), now[i].kv.Value, &now[i].value)
					now[i].kv = nil
				}
			})
		}
	}
	err = s.Scan(ctx, prefix, func(rest string, kv *KV) error {
		if part = append(part, one{rest: rest, kv: kv, revision: kv.ModRevision}); len(part) == decodedAtOnce {
			decode()
		}
		return nil
	}, more...)
	decode()
	done.Wait()
	for _, part := range parts {
		for _, v := range part {
			if v.err != nil {
				damaged = append(damaged, v.err.Error())
			} else {
				each(v.rest, v.value, v.revision)
			}
		}
	}
	return damaged, err
}

// decodedAtOnce is the number of values that one goroutine of Collect decodes.
const decodedAtOnce = 100
