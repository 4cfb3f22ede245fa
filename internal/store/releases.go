package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/internal/content"
	"pulley/internal/store/etcd"
	"pulley/internal/trust"
)

// Release is the record of a published release. It never changes.
type Release struct {
	Version      string         `json:"version"`
	Content      content.Record `json:"content"`
	Commit       string         `json:"commit,omitempty"`  // of the published work tree
	Ref          string         `json:"ref,omitempty"`     // that resolved to the commit
	Dirty        bool           `json:"dirty,omitempty"`   // it had uncommitted changes
	Message      agent.Prose    `json:"message,omitempty"` // description of its content
	Author       string         `json:"author"`            // publisher
	CommitAuthor string         `json:"commit_author,omitempty"`
	Modules      string         `json:"modules,omitempty"` // tool that resolved its Puppetfile, like r10k; "" for none
	At           time.Time      `json:"at"`
}

// SignedRelease is a release with the exact bytes that its signatures cover. The signatures are unverified.
type SignedRelease struct {
	Release
	Record     []byte `json:"-"` // one line of JSON, without its newline
	Signatures []byte `json:"-"` // nil when it is not signed
	Revision   int64  `json:"-"` // of its last write
}

// Sign makes armored signatures over a record, for one namespace.
type Sign func(ctx context.Context, ns trust.Namespace, record []byte) (signatures []byte, err error)

// document joins a record and its signature. Without sign the record stays unsigned.
func (sign Sign) document(ctx context.Context, ns trust.Namespace, record []byte) (string, error) {
	var signatures []byte
	if sign != nil {
		var err error
		if signatures, err = sign(ctx, ns, record); err != nil {
			return "", err
		}
	}
	return string(trust.Join(record, signatures)), nil
}

// Put publishes a record whose objects are already stored, and the delta that leads to it (nil for none). It writes
// both in one transaction, and only while p is held. If the version exists with the same tree, it changes nothing and
// returns created false. Another tree is an error. ErrConflict means that another release already follows the previous
// one: the caller must rebuild after that release.
func (s *Releases) Put(ctx context.Context, p *Publishing, r Release, delta []byte, sign Sign) (created bool, err error) {
	if _, err := ParseVersion(r.Version); err != nil {
		return false, err
	}
	fail := func(err error) (bool, error) { return false, fmt.Errorf("cannot publish %s: %w", r.Version, err) }
	chain := r.Content.Chain
	switch {
	case (delta == nil) != (chain.Delta == nil):
		return fail(errors.New("its record and its delta don't belong together"))
	case len(delta) > MaxValueBytes:
		return fail(fmt.Errorf("its delta's %d bytes are more than the %d of one value", len(delta), MaxValueBytes))
	}
	key, position := s.db.Keys.Release(r.Version), s.db.Keys.Delta(chain.Line, chain.Seq)
	there, err := s.db.Get(ctx, key)
	if err != nil {
		return fail(err)
	}
	if len(there.Kvs) > 0 { // before a hardware key is touched in vain
		return false, s.published(key, there.Kvs[0].Value, r)
	}
	record, err := etcd.Encode(r)
	if err != nil {
		return fail(err)
	}
	document, err := sign.document(ctx, trust.Release, []byte(record))
	if err != nil {
		return fail(err)
	}
	if len(document) > MaxValueBytes {
		return fail(fmt.Errorf("its record's %d bytes are more than the %d of one value", len(document), MaxValueBytes))
	}
	cmps := []clientv3.Cmp{etcd.Same(key, 0), p.lock.Standing()}
	ops := []clientv3.Op{clientv3.OpPut(key, document)}
	if chain.Seq > 0 { // also without a delta: two releases at one position would be indistinguishable
		cmps = append(cmps, etcd.Same(position, 0))
		ops = append(ops, clientv3.OpPut(position, string(delta)))
	} else { // a pruned version may be published again, but its line must not continue from another tree
		cmps = append(cmps, etcd.NothingBelow(s.db.Keys.Line(chain.Line)))
	}
	resp, err := s.db.Txn(ctx, cmps, ops, []clientv3.Op{clientv3.OpGet(key), clientv3.OpGet(p.lock.Key(), clientv3.WithCountOnly())})
	if errors.Is(err, agent.ErrUnreachable) {
		if there, again := s.db.Get(ctx, key); again == nil && len(there.Kvs) > 0 && string(there.Kvs[0].Value) == document {
			return true, nil // only the answer was lost
		}
		err = fmt.Errorf("%w\nthe outcome is unknown: publish it again, which changes nothing if it is there", err)
	}
	switch {
	case err != nil:
		return fail(err)
	case resp.Succeeded:
		return true, nil
	}
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		return false, s.published(key, kvs[0].Value, r)
	}
	if resp.Responses[1].GetResponseRange().Count == 0 {
		return fail(errors.New("etcd had no sign of life from this publish for a minute, so what it found there may be pruned\npublish it again"))
	}
	if chain.Seq == 0 {
		return fail(errors.New("a release of this version was pruned, and others that follow it are still there\npublish this one under a new version"))
	}
	return fail(fmt.Errorf("position %d of line %s is taken: %w", chain.Seq, chain.Line, etcd.ErrConflict))
}

// published returns nil if a release's key already contains that release.
func (s *Releases) published(key string, value []byte, r Release) error {
	have, err := s.decodeRelease(key, value)
	if err != nil {
		return err
	}
	if have.Content.Tree != r.Content.Tree {
		return fmt.Errorf("cannot publish %s: it is published already, with another tree (%.12s, not %.12s)\na release never changes: publish this one under a new version",
			r.Version, have.Content.Tree, r.Content.Tree)
	}
	return nil
}

// decodeRelease reads a release's document. A record that was copied from another version's key is unreadable.
func (s *Releases) decodeRelease(key string, value []byte) (SignedRelease, error) {
	var r SignedRelease
	r.Record, r.Signatures = trust.Split(value)
	err := etcd.Decode(key, r.Record, &r.Release)
	if err == nil && s.db.Keys.Release(r.Version) != key {
		err = &etcd.UnreadableError{Key: key, Problem: fmt.Sprintf("it is the record of release %.64q", r.Version)}
	}
	var unreadable *etcd.UnreadableError
	if errors.As(err, &unreadable) && !unreadable.Newer {
		unreadable.Next = fmt.Sprintf("put it back from a backup, or `etcdctl del %s`", key)
	}
	if err != nil {
		return SignedRelease{}, err
	}
	return r, nil
}

// UnreadableReleases contains the unreadable records of a list, each an *UnreadableError.
type UnreadableReleases struct {
	Versions []string // by their keys
	Errors   []error
}

func (e *UnreadableReleases) Error() string {
	texts := make([]string, len(e.Errors))
	for i, err := range e.Errors {
		texts[i] = err.Error()
	}
	return "cannot list all releases: " + strings.Join(texts, "; ")
}

func (e *UnreadableReleases) Unwrap() []error { return e.Errors }

// Get reads one release. It returns ErrNotFound if the version does not exist.
func (s *Releases) Get(ctx context.Context, v string) (SignedRelease, error) {
	r, _, err := s.GetWithDelta(ctx, v, "", 0)
	return r, err
}

// GetWithDelta reads in one request a release and the delta to position seq of a line, which may be all that a node
// lacks. The delta is nil without a line, or if it does not exist. The record of the release says whether the delta
// belongs to it.
func (s *Releases) GetWithDelta(ctx context.Context, v, line string, seq int64) (r SignedRelease, delta []byte, err error) {
	key := s.db.Keys.Release(v)
	ops := []clientv3.Op{clientv3.OpGet(key)}
	if line != "" {
		ops = append(ops, clientv3.OpGet(s.db.Keys.Delta(line, seq)))
	}
	resp, err := s.db.Txn(ctx, nil, ops, nil)
	if err != nil {
		return SignedRelease{}, nil, err
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return SignedRelease{}, nil, fmt.Errorf("cannot find release %s: %w\n`pulley releases` lists what is published", v, etcd.ErrNotFound)
	}
	if r, err = s.decodeRelease(key, kvs[0].Value); err != nil {
		return SignedRelease{}, nil, err
	}
	r.Revision = kvs[0].ModRevision
	if line != "" {
		if kvs := resp.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 && len(kvs[0].Value) > 0 {
			delta = kvs[0].Value
		}
	}
	return r, delta, nil
}

// List lists every release in the order of versions; see SortReleases. With unreadable records it returns the others
// and *UnreadableReleases. A caller that needs all releases, such as a prune, must stop there.
func (s *Releases) List(ctx context.Context) ([]SignedRelease, error) {
	var all []SignedRelease
	var unreadable UnreadableReleases
	_, err := s.db.Scan(ctx, s.db.Keys.Releases(), func(rest string, value []byte) error {
		r, err := s.decodeRelease(s.db.Keys.Releases()+rest, value)
		if err != nil {
			unreadable.Versions, unreadable.Errors = append(unreadable.Versions, etcd.Unescape(rest)), append(unreadable.Errors, err)
			return nil
		}
		all = append(all, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list releases: %w", err)
	}
	SortReleases(all)
	if len(unreadable.Errors) > 0 {
		return all, &unreadable
	}
	return all, nil
}

// Sign replaces the signatures of a release by a new one, or adds it to those of other keys. The record itself stays
// byte for byte. It writes nothing that nodes would refuse to read. ErrConflict means a concurrent signature or prune.
func (s *Releases) Sign(ctx context.Context, v string, sign Sign, add bool) error {
	r, err := s.Get(ctx, v)
	if err != nil {
		return err
	}
	fail := func(err error) error { return fmt.Errorf("cannot sign release %s: %w", v, err) }
	signatures, err := sign(ctx, trust.Release, r.Record)
	if err != nil {
		return fail(err)
	}
	earlier := r.Signatures
	if !add {
		earlier = nil
	}
	if signatures, err = trust.AddSignatures(earlier, signatures); err != nil {
		if add {
			err = fmt.Errorf("%w\n--replace takes them away", err)
		}
		return fail(err)
	}
	document := trust.Join(r.Record, signatures)
	if len(document) > MaxValueBytes {
		return fail(fmt.Errorf("with one signature more its %d bytes are more than the %d of one value", len(document), MaxValueBytes))
	}
	key := s.db.Keys.Release(v)
	resp, err := s.db.Txn(ctx, []clientv3.Cmp{etcd.Same(key, r.Revision)}, []clientv3.Op{clientv3.OpPut(key, string(document))}, nil)
	if err == nil && !resp.Succeeded {
		err = etcd.ErrConflict
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// Target returns the release as part of a target.
func (r Release) Target() agent.Target {
	return agent.Target{Release: r.Version, Tree: r.Content.Tree}
}
