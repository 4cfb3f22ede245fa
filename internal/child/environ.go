package child

import (
	"slices"
	"strings"
)

// common are the variables that every child process may have: no setting and no secret is among them.
var common = []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_*", "TZ", "TMPDIR"}

// Filtered returns the variables of an environment that every child process may have, and those that patterns name: NAME,
// or PREFIX_*.
func Filtered(environ []string, also ...string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(v string) bool { return !named(v, common) && !named(v, also) })
}

// own are the variables of this program's settings: some contain keys of etcd.
var own = []string{"PULLEY_*", "ETCDCTL_*", "ETCD_*"}

// WithoutOwn returns an environment without the settings of this program and of etcd's tools. It is for tools that
// an operator configures by the environment of a shell, such as git, r10k, Puppet and ssh-keygen.
func WithoutOwn(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(v string) bool { return named(v, own) })
}

// named reports whether a variable has one of the names.
func named(variable string, patterns []string) bool {
	name, _, _ := strings.Cut(variable, "=")
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		prefix, many := strings.CutSuffix(pattern, "*")
		return name == pattern || many && strings.HasPrefix(name, prefix)
	})
}
