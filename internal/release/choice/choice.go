// Package choice decides which release an environment takes for a version or a constraint that an operator wishes. It must never write, and
// never let a constraint reach a node.
package choice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	version "github.com/hashicorp/go-version"

	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/release"
)

// Taker is what takes a release. It takes releases of its own repository, which is the repository of the releases in its targets.
type Taker struct {
	Environment string
	Has         []release.Release // its targets
	Foreign     bool              // it takes releases of any repository
	Shows       bool              // it takes nothing, and may be shown any release; a version without a repository is of its own, as for a promotion
}

// refuses returns why a release is of another repository, or "". A repository that got the environment's file later is the same.
func (t Taker) refuses(r release.Release) string {
	owns := slices.Contains(r.Environments, t.Environment)
	other := slices.IndexFunc(t.Has, func(has release.Release) bool {
		return r.Repository() != has.Repository() || r.FirstCommit != "" && has.FirstCommit != "" && r.FirstCommit != has.FirstCommit
	})
	switch {
	case t.Foreign, t.Shows, slices.ContainsFunc(t.Has, r.Beside), owns && other < 0:
		return ""
	case len(t.Has) > 0:
		has := t.Has[max(other, 0)]
		return fmt.Sprintf("%s is of another repository (%s) than %s (%s), which %s has", r.Version, cmp.Or(r.Origin(), "no environments"),
			has.Version, cmp.Or(has.Origin(), "no environments"), t.Environment)
	case len(r.Environments) > 0:
		return fmt.Sprintf("%s is of a repository without environments/%s.yaml (it has %s)", r.Version, t.Environment, strings.Join(r.Environments, ", "))
	}
	return ""
}

// named returns the version in the taker's own repository that an exact version without a repository means.
func (t Taker) named(version string) string {
	if release.RepositoryOf(version) == "" && !t.Foreign {
		for _, r := range t.Has {
			if name := r.Repository(); name != "" {
				return version + "+" + name
			}
		}
	}
	return version
}

const foreignHint = "\nto let %s take releases of that repository, give --foreign"

// Of returns an environment with its releases in some targets. A release that is lost or unreadable does not count.
func Of(ctx context.Context, s *release.Releases, ref model.Ref, foreign bool, has ...string) (Taker, error) {
	t := Taker{Environment: ref.Environment, Foreign: foreign}
	for _, version := range has {
		if version == "" {
			continue
		}
		r, err := s.Get(ctx, version)
		switch {
		case err == nil:
			t.Has = append(t.Has, r.Release)
		case !errors.Is(err, etcd.ErrNotFound) && !errors.As(err, new(*etcd.UnreadableError)):
			return t, err
		}
	}
	return t, nil
}

// Resolve returns the release with an exact version, or the newest release that fits a constraint (`~> 1.4`, `>= 1.2, < 2`),
// that its taker takes and that is not withdrawn. The target records the resolved version: a constraint never reaches a node.
func (t Taker) Resolve(ctx context.Context, s *release.Releases, wish string) (release.SignedRelease, error) {
	withdrawn, err := s.Withdrawals(ctx)
	if err != nil {
		return release.SignedRelease{}, err
	}
	if _, err = release.ParseVersion(wish); err == nil {
		return t.exact(ctx, s, wish, withdrawn)
	}
	if _, isVersion := version.NewVersion(wish); isVersion == nil {
		return release.SignedRelease{}, err // 1.0 as a constraint would mean "exactly 1.0.0": report it instead of guessing
	}
	constraint, err := version.NewConstraint(wish)
	if err != nil {
		return release.SignedRelease{}, fmt.Errorf("cannot use %q: it is neither a version like 1.4.0 nor a constraint like '~> 1.4'", wish)
	}
	all, err := s.List(ctx)
	var unreadable *release.UnreadableReleases
	if errors.As(err, &unreadable) { // it may be the newest fit
		return release.SignedRelease{}, fmt.Errorf("cannot find the newest release for %q: %w\nan exact version can be promoted all the same", wish, unreadable.Errors[0])
	}
	if err != nil {
		return release.SignedRelease{}, err
	}
	var skipped, foreign []string
	for _, r := range slices.Backward(all) {
		v, err := release.ParseVersion(r.Version)
		if err != nil || !constraint.Check(v) {
			continue
		}
		_, is := withdrawn[r.Version]
		switch why := t.refuses(r.Release); {
		case why != "":
			foreign = append(foreign, why)
		case is:
			skipped = append(skipped, r.Version)
		default:
			return r, nil
		}
	}
	if len(skipped) > 0 {
		return release.SignedRelease{}, fmt.Errorf("cannot find a release for %q: %w: %s withdrawn\n`pulley releases` shows why", wish, etcd.ErrNotFound, strings.Join(skipped, ", "))
	}
	if len(foreign) > 0 {
		return release.SignedRelease{}, fmt.Errorf("cannot find a release for %q: %w: %s"+foreignHint, wish, etcd.ErrNotFound, foreign[0], t.Environment)
	}
	return release.SignedRelease{}, fmt.Errorf("cannot find a release for %q: %w among the %d that are published\n`pulley releases` lists them", wish, etcd.ErrNotFound, len(all))
}

// exact returns the release with a version, which may lack the name of the taker's repository.
func (t Taker) exact(ctx context.Context, s *release.Releases, wish string, withdrawn map[string]release.Withdrawal) (release.SignedRelease, error) {
	r, err := s.Get(ctx, t.named(wish))
	if errors.Is(err, etcd.ErrNotFound) {
		r, err = s.Get(ctx, wish)
	}
	if err != nil {
		return r, err
	}
	if why := t.refuses(r.Release); why != "" {
		return release.SignedRelease{}, fmt.Errorf("cannot use release %s in %s: %s"+foreignHint, r.Version, t.Environment, why, t.Environment)
	}
	if w, is := withdrawn[r.Version]; is {
		return release.SignedRelease{}, fmt.Errorf("cannot use release %s: %s withdrew it: %s\nto allow it again: `pulley releases withdraw %s --undo`", r.Version, cmp.Or(w.By, "an operator"), cmp.Or(string(w.Why), "no reason is given"), r.Version)
	}
	return r, nil
}
