package environments

import (
	"strings"

	"pulley/internal/model"
)

// Errors are all problems of one environment, in the order of the file. It is never empty.
type Errors []*model.Error

// Error returns one line per problem. If there are several, each hint follows its problem on its own, indented line.
func (es Errors) Error() string {
	if len(es) == 1 {
		return es[0].Error()
	}
	var lines []string
	for _, e := range es {
		lines = append(lines, e.Error())
		if e.Advice != "" {
			lines = append(lines, "  "+e.Advice)
		}
	}
	return strings.Join(lines, "\n")
}

// Hint returns the hint of a single problem. The hints of several problems are in Error, beside their problems.
func (es Errors) Hint() string {
	if len(es) == 1 {
		return es[0].Advice
	}
	return ""
}

// orNil returns the problems as an error; nil if there are none.
func (es Errors) orNil() error {
	if len(es) == 0 {
		return nil
	}
	return es
}

// Unwrap returns the problems for errors.As.
func (es Errors) Unwrap() []error {
	out := make([]error, len(es))
	for i, e := range es {
		out[i] = e
	}
	return out
}
