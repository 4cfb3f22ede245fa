package store

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"pulley/internal/store/etcd"

	version "github.com/hashicorp/go-version"
)

// SortReleases sorts releases by version, oldest first.
func SortReleases(all []SignedRelease) {
	slices.SortStableFunc(all, func(a, b SignedRelease) int { return compareVersions(a.Version, b.Version) })
}

func compareVersions(a, b string) int {
	va, errA := ParseVersion(a)
	vb, errB := ParseVersion(b)
	if errA != nil || errB != nil {
		return strings.Compare(a, b)
	}
	return va.Compare(vb)
}

// Resolve returns the newest published release that fits an exact version or a constraint (`~> 1.4`, `>= 1.2, < 2`).
// The target records the resolved version: a constraint never reaches a node.
func (s *Releases) Resolve(ctx context.Context, wish string) (SignedRelease, error) {
	_, err := ParseVersion(wish)
	if err == nil {
		return s.Get(ctx, wish)
	}
	if _, isVersion := version.NewVersion(wish); isVersion == nil {
		return SignedRelease{}, err // 1.0 as a constraint would mean "exactly 1.0.0": report it instead of guessing
	}
	constraint, err := version.NewConstraint(wish)
	if err != nil {
		return SignedRelease{}, fmt.Errorf("cannot use %q: it is neither a version like 1.4.0 nor a constraint like '~> 1.4'", wish)
	}
	all, err := s.List(ctx)
	var unreadable *UnreadableReleases
	if errors.As(err, &unreadable) { // it may be the newest fit
		return SignedRelease{}, fmt.Errorf("cannot find the newest release for %q: %w\nan exact version can be promoted all the same", wish, unreadable.Errors[0])
	}
	if err != nil {
		return SignedRelease{}, err
	}
	for _, r := range slices.Backward(all) {
		if v, err := ParseVersion(r.Version); err == nil && constraint.Check(v) {
			return r, nil
		}
	}
	return SignedRelease{}, fmt.Errorf("cannot find a release for %q: %w among the %d that are published\n`pulley releases` lists them", wish, etcd.ErrNotFound, len(all))
}

// canonical is the spelling of a version: MAJOR.MINOR.PATCH[-PRE] of https://semver.org, without build metadata.
// Go-version also accepts 1.0, v1.0.0 and 01.0.0, which would be one version under several keys.
var canonical = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-` + preRelease + `(\.` + preRelease + `)*)?$`)

const preRelease = `(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)`

// ParseVersion parses a release's version as hashicorp/go-version orders it. A version over 64 bytes or not in
// canonical spelling is an error.
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
