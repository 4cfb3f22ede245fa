package release

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/release/content"
	"pulley/internal/release/trust"
)

// AgentRelease is the record of one version of pulley-agent. It never changes.
type AgentRelease struct {
	Version   string                     `json:"version"`
	Platforms map[string]content.Program `json:"platforms"` // by GOOS/GOARCH, like linux/amd64
	Message   model.Prose                `json:"message,omitempty"`
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

func (r AgentRelease) samePrograms(other AgentRelease) error {
	if maps.EqualFunc(r.Platforms, other.Platforms, func(a, b content.Program) bool { return a.SHA256 == b.SHA256 }) {
		return nil
	}
	return errors.New("it is published already, with other programs\nan agent's release never changes: publish these under a new version")
}

// PutAgent publishes a record whose chunks are already stored, and only while p is held. If the version exists with
// the same programs, it changes nothing and returns created false. Other programs are an error.
func (s *Releases) PutAgent(ctx context.Context, p *Publishing, r AgentRelease, sign Sign) (created bool, err error) {
	if err = r.check(); err == nil {
		created, err = s.publish(ctx, p, etcd.If(), s.db.Keys.AgentRelease(r.Version), trust.Agent, r, sign, func(kv *etcd.KV) error {
			have, err := s.DecodeAgent(kv)
			if err == nil {
				err = have.samePrograms(r)
			}
			return err
		})
	}
	return created, etcd.Wrap(err, "cannot publish agent %s", r.Version)
}

// PublishedAgent reports whether a version exists with these programs. Other programs are an error, as for PutAgent.
func (s *Releases) PublishedAgent(ctx context.Context, r AgentRelease) (bool, error) {
	have, err := s.Agent(ctx, r.Version)
	switch {
	case errors.Is(err, etcd.ErrNotFound):
		return false, nil
	case err == nil:
		err = have.samePrograms(r)
	}
	return err == nil, etcd.Wrap(err, "cannot publish agent %s", r.Version)
}

// DecodeAgent reads an agent's document. A record that was copied from another version's key is unreadable.
func (s *Releases) DecodeAgent(kv *etcd.KV) (SignedAgent, error) {
	key, r := string(kv.Key), SignedAgent{Revision: kv.ModRevision}
	r.Record, r.Signatures = trust.Split(kv.Value)
	if err := etcd.Decode(key, r.Record, &r.AgentRelease); err != nil {
		return SignedAgent{}, err
	}
	if s.db.Keys.AgentRelease(r.Version) != key {
		return SignedAgent{}, &etcd.UnreadableError{Key: key, Problem: fmt.Sprintf("it is the record of agent %.64q", r.Version)}
	}
	if problem := r.check(); problem != nil {
		return SignedAgent{}, &etcd.UnreadableError{Key: key, Problem: problem.Error()}
	}
	return r, nil
}

// Agent reads one version's record. It returns ErrNotFound if there is none.
func (s *Releases) Agent(ctx context.Context, version string) (SignedAgent, error) {
	resp, err := s.db.Get(ctx, s.db.Keys.AgentRelease(version))
	if err != nil {
		return SignedAgent{}, fmt.Errorf("cannot read agent %s: %w", version, err)
	}
	if len(resp.Kvs) == 0 {
		return SignedAgent{}, fmt.Errorf("cannot find agent %s: %w\n`pulley agents list` lists what is published", version, etcd.ErrNotFound)
	}
	return s.DecodeAgent(resp.Kvs[0])
}

// AgentNames is Names for versions of the agent.
func (s *Releases) AgentNames(ctx context.Context, prefix string, limit int64) ([]string, error) {
	versions, err := s.db.Names(ctx, s.db.Keys.AgentReleases(), prefix, limit)
	slices.SortFunc(versions, func(a, b string) int { return CompareVersions(b, a) })
	return versions, err
}

// Agents lists every version, lowest first. With unreadable records it returns the others and *UnreadableReleases: a prune must not treat
// unread content as unneeded.
func (s *Releases) Agents(ctx context.Context) (all []SignedAgent, err error) {
	var unreadable UnreadableReleases
	err = s.db.Scan(ctx, s.db.Keys.AgentReleases(), func(rest string, kv *etcd.KV) error {
		r, err := s.DecodeAgent(kv)
		if err != nil {
			unreadable.Versions, unreadable.Errors = append(unreadable.Versions, etcd.Unescape(rest)), append(unreadable.Errors, err)
			return nil
		}
		all = append(all, r)
		return nil
	}, clientv3.WithLimit(50))
	if err != nil {
		return nil, fmt.Errorf("cannot list agents: %w", err)
	}
	slices.SortStableFunc(all, func(a, b SignedAgent) int { return CompareVersions(a.Version, b.Version) })
	if len(unreadable.Errors) > 0 {
		return all, &unreadable
	}
	return all, nil
}

// SignAgent adds a signature to an agent's record. The record itself stays byte for byte. ErrConflict means a
// concurrent change.
func (s *Releases) SignAgent(ctx context.Context, version string, sign Sign) error {
	r, err := s.Agent(ctx, version)
	if err != nil {
		return err
	}
	err = s.sign(ctx, s.db.Keys.AgentRelease(version), r.Revision, trust.Agent, r.Record, r.Signatures, sign, "")
	return etcd.Wrap(err, "cannot sign agent %s", version)
}

// PlainVersion returns a version in the published form: git tags often begin with v.
func PlainVersion(v string) string { return strings.TrimPrefix(v, "v") }
