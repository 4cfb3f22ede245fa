package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"pulley/internal/etcd"
	"pulley/internal/model"
)

// Repository returns the name of the repository of a release: what follows + in its version. It is "" for a repository without a name.
// Each named repository has versions of its own.
func (r Release) Repository() string { return repositoryOf(r.Version) }

func repositoryOf(version string) string {
	_, name, _ := strings.Cut(version, "+")
	return name
}

// Beside reports whether two releases are of one repository. Without a name, they are if they begin with the same commit, or, where
// that is unknown, if they have an environment in common, or neither has one.
func (r Release) Beside(other Release) bool {
	switch name := r.Repository(); {
	case name != other.Repository():
		return false
	case name != "":
		return true
	case r.FirstCommit != "" && other.FirstCommit != "":
		return r.FirstCommit == other.FirstCommit
	case r.PuppetEnvironment != "" && len(r.Environments) == 0, other.PuppetEnvironment != "" && len(other.Environments) == 0:
		return true // without files, it can be of any
	case len(r.Environments) == 0 || len(other.Environments) == 0:
		return len(r.Environments) == len(other.Environments)
	}
	return slices.ContainsFunc(r.Environments, func(e string) bool { return slices.Contains(other.Environments, e) })
}

// Origin names the repository of a release for people: its name, or what tells it from others.
func (r Release) Origin() string {
	return cmp.Or(r.Repository(), strings.Join(r.Environments, " "), fmt.Sprintf("%.10s", r.FirstCommit))
}

// Taker is what takes a release. It takes releases of its own repository, which is that of the releases that it has.
type Taker struct {
	Environment string
	Has         []Release // its targets
	Foreign     bool      // it takes releases of any repository
	Shows       bool      // it takes nothing, and may be shown any release; a version without a repository is of its own, as for a promotion
}

// refuses returns why a release is of another repository, or "". A repository that got the environment's file later is the same.
func (t Taker) refuses(r Release) string {
	owns := slices.Contains(r.Environments, t.Environment)
	other := slices.IndexFunc(t.Has, func(has Release) bool {
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
	if repositoryOf(version) == "" && !t.Foreign {
		for _, r := range t.Has {
			if name := r.Repository(); name != "" {
				return version + "+" + name
			}
		}
	}
	return version
}

const foreignHint = "\nto let %s take releases of that repository, give --foreign"

// Taker returns an environment with its releases in some targets. A release that is lost or unreadable does not count.
func (s *Releases) Taker(ctx context.Context, ref model.Ref, foreign bool, has ...string) (Taker, error) {
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
