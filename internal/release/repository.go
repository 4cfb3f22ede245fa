package release

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Repository returns the name of the repository of a release: what follows + in its version. It is "" for a repository without a name.
// Each named repository has versions of its own.
func (r Release) Repository() string { return RepositoryOf(r.Version) }

// RepositoryOf returns the name of the repository in a version.
func RepositoryOf(version string) string {
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
