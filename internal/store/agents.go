package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/internal/content"
	"pulley/internal/store/etcd"
	"pulley/internal/trust"
)

// AgentRelease is the record of one version of pulley-agent. It never changes.
type AgentRelease struct {
	Version   string                     `json:"version"`
	Platforms map[string]content.Program `json:"platforms"` // by GOOS/GOARCH, like linux/amd64
	Message   agent.Prose                `json:"message,omitempty"`
	Author    string                     `json:"author"` // publisher
	At        time.Time                  `json:"at"`
}

// SignedAgent is an AgentRelease with the exact bytes that its signatures cover. The signatures are unverified.
type SignedAgent struct {
	AgentRelease
	Record     []byte `json:"-"` // one line of JSON, without its newline
	Signatures []byte `json:"-"` // nil when it is not signed
	Revision   int64  `json:"-"` // of its last write
}

// maxAgentPlatforms bounds the programs of one version.
const maxAgentPlatforms = 16

// check rejects a record that no node could use.
func (r AgentRelease) check() error {
	if _, err := ParseVersion(r.Version); err != nil {
		return err
	}
	if n := len(r.Platforms); n == 0 || n > maxAgentPlatforms {
		return fmt.Errorf("it has programs for %d platforms; there may be 1 to %d", n, maxAgentPlatforms)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Platforms)) {
		if err := r.Platforms[name].Check(); err != nil {
			return fmt.Errorf("its program for %.40q can't be used: %w", name, err)
		}
	}
	return nil
}

// PutAgent publishes a record whose chunks are already stored, and only while p is held. If the version exists with
// the same programs, it changes nothing and returns created false. Other programs are an error.
func (s *Releases) PutAgent(ctx context.Context, p *Publishing, r AgentRelease, sign Sign) (created bool, err error) {
	fail := func(err error) (bool, error) { return false, fmt.Errorf("cannot publish agent %s: %w", r.Version, err) }
	if err := r.check(); err != nil {
		return fail(err)
	}
	key := s.db.Keys.AgentRelease(r.Version)
	there, err := s.db.Get(ctx, key)
	if err != nil {
		return fail(err)
	}
	if len(there.Kvs) > 0 { // before a hardware key is touched in vain
		return false, s.agentPublished(key, there.Kvs[0].Value, r)
	}
	record, err := etcd.Encode(r)
	if err != nil {
		return fail(err)
	}
	document, err := sign.document(ctx, trust.Agent, []byte(record))
	if err != nil {
		return fail(err)
	}
	if len(document) > MaxValueBytes {
		return fail(fmt.Errorf("its record's %d bytes are more than the %d of one value", len(document), MaxValueBytes))
	}
	resp, err := s.db.Txn(ctx, []clientv3.Cmp{etcd.Same(key, 0), p.lock.Standing()}, []clientv3.Op{clientv3.OpPut(key, document)}, []clientv3.Op{clientv3.OpGet(key)})
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
		return false, s.agentPublished(key, kvs[0].Value, r)
	}
	return fail(errors.New("etcd had no sign of life from this publish for a minute, so what it stored may be pruned\npublish it again"))
}

// agentPublished returns nil if the stored record has the same programs.
func (s *Releases) agentPublished(key string, value []byte, r AgentRelease) error {
	have, err := s.decodeAgent(key, value)
	if err != nil {
		return err
	}
	sameProgram := func(a, b content.Program) bool { return a.SHA256 == b.SHA256 }
	if !maps.EqualFunc(have.Platforms, r.Platforms, sameProgram) {
		return fmt.Errorf("cannot publish agent %s: it is published already, with other programs\nan agent's release never changes: publish these under a new version", r.Version)
	}
	return nil
}

// decodeAgent reads an agent's document. A record that was copied from another version's key is unreadable.
func (s *Releases) decodeAgent(key string, value []byte) (SignedAgent, error) {
	var r SignedAgent
	r.Record, r.Signatures = trust.Split(value)
	err := etcd.Decode(key, r.Record, &r.AgentRelease)
	if err == nil && s.db.Keys.AgentRelease(r.Version) != key {
		err = &etcd.UnreadableError{Key: key, Problem: fmt.Sprintf("it is the record of agent %.64q", r.Version)}
	}
	if err == nil {
		if problem := r.check(); problem != nil {
			err = &etcd.UnreadableError{Key: key, Problem: problem.Error()}
		}
	}
	if err != nil {
		return SignedAgent{}, err
	}
	return r, nil
}

// Agent reads one version's record. It returns ErrNotFound if there is none.
func (s *Releases) Agent(ctx context.Context, version string) (SignedAgent, error) {
	key := s.db.Keys.AgentRelease(version)
	resp, err := s.db.Get(ctx, key)
	if err != nil {
		return SignedAgent{}, fmt.Errorf("cannot read agent %s: %w", version, err)
	}
	if len(resp.Kvs) == 0 {
		return SignedAgent{}, fmt.Errorf("cannot find agent %s: %w\n`pulley agents list` lists what is published", version, etcd.ErrNotFound)
	}
	r, err := s.decodeAgent(key, resp.Kvs[0].Value)
	r.Revision = resp.Kvs[0].ModRevision
	return r, err
}

// Agents lists every version, lowest first. An unreadable version is an error that names its key: a prune must not
// treat unread content as unneeded.
func (s *Releases) Agents(ctx context.Context) ([]SignedAgent, error) {
	var all []SignedAgent
	prefix := s.db.Keys.AgentReleases()
	_, err := s.db.Pages(ctx, prefix, 50, func(rest string, value []byte) error {
		r, err := s.decodeAgent(prefix+rest, value)
		all = append(all, r)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list agents: %w", err)
	}
	slices.SortStableFunc(all, func(a, b SignedAgent) int { return CompareVersions(a.Version, b.Version) })
	return all, nil
}

// SignAgent adds a signature to an agent's record. The record itself stays byte for byte. ErrConflict means a
// concurrent change.
func (s *Releases) SignAgent(ctx context.Context, version string, sign Sign) error {
	r, err := s.Agent(ctx, version)
	if err != nil {
		return err
	}
	fail := func(err error) error { return fmt.Errorf("cannot sign agent %s: %w", version, err) }
	signatures, err := sign(ctx, trust.Agent, r.Record)
	if err == nil {
		signatures, err = trust.AddSignatures(r.Signatures, signatures)
	}
	if err != nil {
		return fail(err)
	}
	document := trust.Join(r.Record, signatures)
	if len(document) > MaxValueBytes {
		return fail(fmt.Errorf("with one signature more its %d bytes are more than the %d of one value", len(document), MaxValueBytes))
	}
	key := s.db.Keys.AgentRelease(version)
	resp, err := s.db.Txn(ctx, []clientv3.Cmp{etcd.Same(key, r.Revision)}, []clientv3.Op{clientv3.OpPut(key, string(document))}, nil)
	if err == nil && !resp.Succeeded {
		err = etcd.ErrConflict
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// CompareVersions orders two versions like hashicorp/go-version. It orders any other string by its bytes.
func CompareVersions(a, b string) int { return compareVersions(a, b) }
