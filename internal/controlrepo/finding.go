package controlrepo

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Severity is the severity of a finding. Errors forbid publishing.
type Severity string

// The severities.
const (
	Error   Severity = "error"   // nodes cannot apply the release
	Warning Severity = "warning" // probably a mistake
)

// Finding is one problem in a control repository.
type Finding struct {
	File     string   `json:"file,omitempty"`   // relative to the repository; "" for the repository itself
	Line     int      `json:"line,omitempty"`   // from 1; 0 if unknown
	Column   int      `json:"column,omitempty"` // from 1, in characters; 0 if unknown
	Severity Severity `json:"severity"`
	Problem  string   `json:"problem"`
	Hint     string   `json:"hint,omitempty"` // remedy
}

// String formats the finding like a compiler: file:line:column: severity: problem.
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

// Report is the result of Validate.
type Report struct {
	Findings []Finding `json:"findings"` // sorted by file and place
	Files    int       `json:"files"`    // number of files read
}

// Errors counts the findings that forbid publishing.
func (r Report) Errors() int { return r.count(Error) }

// Warnings counts the findings that do not forbid publishing.
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

// sortFindings sorts by place and removes duplicates.
func sortFindings(all []Finding) []Finding {
	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Problem, b.Problem), cmp.Compare(a.Hint, b.Hint))
	})
	return slices.Compact(all)
}
