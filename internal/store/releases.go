package store

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	version "github.com/hashicorp/go-version"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/internal/content"
)

// MaxValueBytes bounds every value of content.
const MaxValueBytes = 512 << 10

// Release is the record of a published release. It never changes.
type Release struct {
	Version string         `json:"version"`
	Content content.Record `json:"content"`
	Commit  string         `json:"commit,omitempty"` // of the work tree that was published
	Dirty   bool           `json:"dirty,omitempty"`  // it had changes that are in no commit
	Message string         `json:"message,omitempty"`
	Author  string         `json:"author"`
	At      time.Time      `json:"at"`
}

// ErrNotFound is wrapped by errors about something that is positively absent.
var ErrNotFound = errors.New("not found")

// ErrConflict is wrapped when somebody else changed the same thing first.
var ErrConflict = errors.New("somebody else changed it at the same moment")

var _ content.Source = (*Store)(nil)

// Object reads immutable bytes by their hash. A serializable read is enough: what a member has under a hash is right, and
// the reader checks it. A member that lags may lack it, so absence is asked for again, of the whole cluster.
func (s *Store) Object(ctx context.Context, hash string) ([]byte, error) {
	resp, err := s.get(ctx, s.keys.object(hash), clientv3.WithSerializable())
	if err == nil && len(resp.Kvs) == 0 {
		resp, err = s.get(ctx, s.keys.object(hash))
	}
	if err != nil {
		return nil, err
	}
	if len(resp.Kvs) == 0 {
		return nil, fmt.Errorf("cannot read content %.12s: %w in etcd", hash, ErrNotFound)
	}
	return resp.Kvs[0].Value, nil
}

// PutObject stores immutable bytes under their hash unless they are there. It reports whether it wrote them.
func (s *Store) PutObject(ctx context.Context, hash string, b []byte) (bool, error) {
	if len(b) > MaxValueBytes {
		return false, fmt.Errorf("cannot store content %.12s: %d bytes are more than the %d of one value", hash, len(b), MaxValueBytes)
	}
	key := s.keys.object(hash)
	resp, err := s.txn(ctx, []clientv3.Cmp{same(key, 0)}, []clientv3.Op{clientv3.OpPut(key, string(b))}, nil)
	if err != nil {
		return false, fmt.Errorf("cannot store content %.12s: %w", hash, err)
	}
	return resp.Succeeded, nil
}

// PutRelease publishes a record whose objects are stored already. The same tree under the same version is no error and
// changes nothing (created is false); another tree is.
func (s *Store) PutRelease(ctx context.Context, r Release) (created bool, err error) {
	if _, err := ParseVersion(r.Version); err != nil {
		return false, err
	}
	b, err := encode(r)
	if err != nil {
		return false, err
	}
	key := s.keys.release(r.Version)
	resp, err := s.txn(ctx, []clientv3.Cmp{same(key, 0)}, []clientv3.Op{clientv3.OpPut(key, b)}, []clientv3.Op{clientv3.OpGet(key)})
	if err != nil {
		return false, fmt.Errorf("cannot publish %s: %w", r.Version, err)
	}
	if resp.Succeeded {
		return true, nil
	}
	var have Release
	if err := decode(key, resp.Responses[0].GetResponseRange().Kvs[0].Value, &have); err != nil {
		return false, err
	}
	if have.Content.Tree != r.Content.Tree {
		return false, fmt.Errorf("cannot publish %s: it is published already, with another tree (%.12s, not %.12s)\na release never changes: publish this one under a new version",
			r.Version, have.Content.Tree, r.Content.Tree)
	}
	return false, nil
}

// Release reads one record; ErrNotFound when there is none of that version.
func (s *Store) Release(ctx context.Context, v string) (Release, error) {
	key := s.keys.release(v)
	resp, err := s.get(ctx, key)
	if err != nil {
		return Release{}, err
	}
	if len(resp.Kvs) == 0 {
		return Release{}, fmt.Errorf("cannot find release %s: %w\n`pulley releases` lists what is published", v, ErrNotFound)
	}
	var r Release
	if err := decode(key, resp.Kvs[0].Value, &r); err != nil {
		return Release{}, err
	}
	return r, nil
}

// Releases lists every record. Their order is that of versions; see SortReleases.
func (s *Store) Releases(ctx context.Context) ([]Release, error) {
	var all []Release
	_, err := s.scan(ctx, s.keys.releases(), func(rest string, value []byte) error {
		var r Release
		if err := decode(s.keys.releases()+rest, value, &r); err != nil {
			return err
		}
		all = append(all, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list releases: %w", err)
	}
	SortReleases(all)
	return all, nil
}

// Target names a release as part of a target.
func (r Release) Target() agent.Target {
	return agent.Target{Release: r.Version, Tree: r.Content.Tree}
}

// canonical is how a version is spelled: MAJOR.MINOR.PATCH[-PRE] of https://semver.org, without build metadata. Go-version
// also takes 1.0, v1.0.0 and 01.0.0, which would be one version under several keys.
var canonical = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-` + preRelease + `(\.` + preRelease + `)*)?$`)

const preRelease = `(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)`

// ParseVersion reads a release's version as hashicorp/go-version orders it; one that is longer than 64 bytes or not in its
// canonical spelling is an error that says so.
func ParseVersion(v string) (*version.Version, error) {
	if len(v) > 64 {
		return nil, fmt.Errorf("cannot use version %.64q…: it is longer than 64 bytes", v)
	}
	parsed, err := version.NewVersion(v)
	if err == nil && canonical.MatchString(v) {
		return parsed, nil
	}
	hint := ""
	if err == nil && len(parsed.Segments()) == 3 {
		meant := parsed.Core().String()
		if pre := strings.Trim(parsed.Prerelease(), "-"); pre != "" {
			meant += "-" + pre
		}
		if canonical.MatchString(meant) {
			hint = "\ndid you mean " + meant + "?"
		}
	}
	return nil, fmt.Errorf("cannot use version %q: it is not like 1.4.0 or 1.4.0-rc1%s", v, hint)
}
