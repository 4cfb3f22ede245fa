package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	version "github.com/hashicorp/go-version"
)

// SortReleases puts releases in the order of their versions, oldest first.
func SortReleases(all []Release) {
	slices.SortStableFunc(all, func(a, b Release) int {
		va, errA := ParseVersion(a.Version)
		vb, errB := ParseVersion(b.Version)
		if errA != nil || errB != nil {
			return strings.Compare(a.Version, b.Version)
		}
		return va.Compare(vb)
	})
}

// Resolve turns an exact version or a constraint (`~> 1.4`, `>= 1.2, < 2`) into the newest published release that fits.
// What a constraint resolved to is recorded in the target: the word "newest" never reaches a node.
func (s *Store) Resolve(ctx context.Context, wish string) (Release, error) {
	_, err := ParseVersion(wish)
	if err == nil {
		return s.Release(ctx, wish)
	}
	if _, isVersion := version.NewVersion(wish); isVersion == nil {
		return Release{}, err // 1.0 as a constraint would be "exactly 1.0.0": that is said, not guessed
	}
	constraint, err := version.NewConstraint(wish)
	if err != nil {
		return Release{}, fmt.Errorf("cannot use %q: it is neither a version like 1.4.0 nor a constraint like '~> 1.4'", wish)
	}
	all, err := s.Releases(ctx)
	if err != nil {
		return Release{}, err
	}
	for _, r := range slices.Backward(all) {
		if v, err := ParseVersion(r.Version); err == nil && constraint.Check(v) {
			return r, nil
		}
	}
	return Release{}, fmt.Errorf("cannot find a release for %q: %w among the %d that are published\n`pulley releases` lists them", wish, ErrNotFound, len(all))
}
