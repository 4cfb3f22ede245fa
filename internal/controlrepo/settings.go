package controlrepo

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"pulley/agent/puppet"
	"pulley/hieradata"
)

// livePath matches a path in hiera.yaml to the node's folder of live data. The fact does not work as a datadir: Puppet
// prepends the release's folder before it expands interpolations (seen with Puppet 7.23).
var livePath = regexp.MustCompile(`%\{(::)?facts\.pulley\.data\}/`)

// checkSettings checks pulley.yaml, which may be missing (data is nil), and compares hiera.yaml with it.
func checkSettings(data, hiera []byte) []Finding {
	s, err := puppet.ParseReleaseSettings(data) // the same parser as on nodes
	if err != nil {
		f := yamlFinding("pulley.yaml", fmt.Errorf("yaml: %w", errors.Unwrap(err)))
		f.Hint = "its one setting is live_data: above or hierarchy"
		return []Finding{f}
	}
	names := livePath.Match(hiera)
	switch {
	case s.LiveData == puppet.LiveDataInHierarchy && !names:
		return []Finding{{File: "pulley.yaml", Severity: Error, Problem: "live_data is hierarchy, but hiera.yaml has no place for it: live data would be ignored",
			Hint: `add a level to hiera.yaml with paths such as "%{facts.pulley.data}/node.yaml"; the files are ` + strings.Join(hieradata.Files(), ", ")}}
	case s.LiveData == puppet.LiveDataAbove && names:
		return []Finding{{File: "pulley.yaml", Severity: Warning, Problem: "hiera.yaml has a place for live data, but live_data is above: it would be looked up twice",
			Hint: "write live_data: hierarchy"}}
	}
	return nil
}

// checkHiera checks a hiera.yaml of the environment or of a module.
func checkHiera(file string, data []byte) []Finding {
	err := hieradata.CheckHieraConfig(data)
	if err == nil {
		return nil
	}
	f := Finding{File: file, Severity: Error, Problem: err.Error()}
	var syntax *hieradata.SyntaxError
	if errors.As(err, &syntax) {
		f.Line, f.Column, f.Problem, f.Hint = syntax.Line, syntax.Column, syntax.Problem, syntax.Advice
	}
	return []Finding{f}
}
