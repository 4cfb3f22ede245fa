// Package pattern has regular expressions that are compiled at their first use: an agent starts every few minutes, a command at each
// key of a completion, and each uses few of them.
package pattern

import (
	"regexp"
	"sync"
)

// Lazy returns a function that returns the compiled expression. It panics at the first use of a wrong one, as regexp.MustCompile.
func Lazy(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}
