package controlrepo

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Severity says whether a finding forbids publishing.
type Severity string

// The severities.
const (
	Error   Severity = "error"   // nodes could not apply this
	Warning Severity = "warning" // probably not what was meant
)

// Finding is one thing that is wrong with a control repository.
type Finding struct {
	File     string   `json:"file,omitempty"`   // relative to the repository, with slashes; "" for the whole
	Line     int      `json:"line,omitempty"`   // from 1; 0 when unknown
	Column   int      `json:"column,omitempty"` // from 1, in characters; 0 when unknown
	Severity Severity `json:"severity"`
	Problem  string   `json:"problem"`
	Hint     string   `json:"hint,omitempty"` // what to do about it
}

// String is the finding as compilers write it: file:line:column: severity: problem.
func (f Finding) String() string {
	var b strings.Builder
	if f.File != "" {
		b.WriteString(f.File)
		if f.Line > 0 {
			fmt.Fprintf(&b, ":%d", f.Line)
			if f.Column > 0 {
				fmt.Fprintf(&b, ":%d", f.Column)
			}
		}
		b.WriteString(": ")
	}
	fmt.Fprintf(&b, "%s: %s", f.Severity, f.Problem)
	return b.String()
}

// Report is what Validate found.
type Report struct {
	Findings []Finding `json:"findings"` // by file and place
	Files    int       `json:"files"`    // how many were looked into
}

// Errors counts the findings that forbid publishing.
func (r Report) Errors() int { return r.count(Error) }

// Warnings counts the others.
func (r Report) Warnings() int { return r.count(Warning) }

func (r Report) count(s Severity) int {
	n := 0
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// sortFindings sorts by place and drops what was found twice.
func sortFindings(all []Finding) []Finding {
	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Problem, b.Problem), cmp.Compare(a.Hint, b.Hint))
	})
	return slices.Compact(all)
}
