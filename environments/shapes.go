package environments

import (
	"regexp"
	"sync"
)

// shapeTable is what values look like. The schemas have the same patterns: a test compares them.
type shapeTable struct {
	duration, batch, failures, label, word, owner, path, interval, bridge, url, pin, endpoint, fileURL, checksum, pack, version, line, schedule, script, step, instead *regexp.Regexp
}

// shapes compiles them at their first use: an agent reads no environment file, and starts each few minutes.
var shapes = sync.OnceValue(func() shapeTable {
	return shapeTable{
		duration: regexp.MustCompile(`^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$`),
		batch:    regexp.MustCompile(`^(1000000|[1-9][0-9]{0,5}|([1-9][0-9]?|100)%)$`),
		failures: regexp.MustCompile(`^(0|1000000|[1-9][0-9]{0,5}|([1-9][0-9]?|100)%)$`),
		label:    regexp.MustCompile(`^[A-Za-z0-9._/-]{1,63}$`),
		// word is what a provider calls a thing: printable, and no space at its ends.
		word:     regexp.MustCompile(`^[\p{L}\p{M}\p{N}\p{P}\p{S}]([\p{L}\p{M}\p{N}\p{P}\p{S} ]*[\p{L}\p{M}\p{N}\p{P}\p{S}])?$`),
		owner:    regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`),
		path:     regexp.MustCompile(`^/[\p{L}\p{M}\p{N}\p{P}\p{S} ]+$`),
		interval: regexp.MustCompile(`^(@every ([0-9]{1,6}[hms]){1,3}|[0-9A-Za-z*/,-]+( [0-9A-Za-z*/,-]+){4})$`),
		bridge:   regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$`),
		url:      regexp.MustCompile(`^https://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[1-9][0-9]{0,4})?(/[A-Za-z0-9._~/@:+,=-]*)?$`),
		pin:      regexp.MustCompile(`^sha256:[0-9a-f]{64}$`),
		endpoint: regexp.MustCompile(`^(https?://)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4}$`),
		fileURL:  regexp.MustCompile(`^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[1-9][0-9]{0,4})?(/[A-Za-z0-9._~/@:+,=?&%-]*)?$`),
		checksum: regexp.MustCompile(`^[0-9a-f]{64}$`),
		pack:     regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.+_-]*$`),
		version:  regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.+:~^_-]*$`),
		line:     regexp.MustCompile(`^(deb [^@\x00-\x1f\x7f]+|https?://[^@\s\x00-\x1f\x7f]+)$`),
		schedule: regexp.MustCompile(`^[0-9A-Za-z*/,-]+( [0-9A-Za-z*/,-]+){4}$`),
		script:   regexp.MustCompile(`^#!`),
		step:     regexp.MustCompile(`^[a-z]+$`),
		instead:  regexp.MustCompile(`^(off|/[\p{L}\p{M}\p{N}\p{P}\p{S} ]+)$`),
	}
})
