package environments

import (
	"regexp"
	"sync"
)

// shapeTable contains the patterns of values. The schemas have the same patterns; a test compares them.
type shapeTable struct {
	duration, batch, failures, label, word, owner, path, bridge *regexp.Regexp
}

// shapes compiles the patterns at their first use: an agent starts every few minutes and reads no environment file.
var shapes = sync.OnceValue(func() shapeTable {
	return shapeTable{
		duration: regexp.MustCompile(`^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$`),
		batch:    regexp.MustCompile(`^(1000000|[1-9][0-9]{0,5}|([1-9][0-9]?|100)%)$`),
		failures: regexp.MustCompile(`^(0|1000000|[1-9][0-9]{0,5}|([1-9][0-9]?|100)%)$`),
		label:    regexp.MustCompile(`^[A-Za-z0-9._/-]{1,63}$`),
		// word is a name at a provider: printable, and without spaces at its ends.
		word:   regexp.MustCompile(`^[\p{L}\p{M}\p{N}\p{P}\p{S}]([\p{L}\p{M}\p{N}\p{P}\p{S} ]*[\p{L}\p{M}\p{N}\p{P}\p{S}])?$`),
		owner:  regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`),
		path:   regexp.MustCompile(`^/[\p{L}\p{M}\p{N}\p{P}\p{S} ]+$`),
		bridge: regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$`),
	}
})
