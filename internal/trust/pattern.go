package trust

// matches says whether a whole string fits an OpenSSH pattern (ssh_config(5), PATTERNS): * is any run of characters, also
// none; ? is any one.
func matches(s, pattern string) bool {
	star, retry := -1, 0
	i, j := 0, 0
	for i < len(s) {
		switch {
		case j < len(pattern) && pattern[j] == '*': // before the next case: a star in s must not use this one up
			star, retry = j, i
			j++
		case j < len(pattern) && (pattern[j] == '?' || pattern[j] == s[i]):
			i++
			j++
		case star >= 0: // let the last star take one character more
			retry++
			i, j = retry, star+1
		default:
			return false
		}
	}
	for j < len(pattern) && pattern[j] == '*' {
		j++
	}
	return j == len(pattern)
}

// pattern is one element of a list; one that is negated takes away what the others give, wherever it stands.
type pattern struct {
	text string
	not  bool
}

// matchesList says whether a string fits a list: some pattern, and none that is negated.
func matchesList(s string, list []pattern) bool {
	found := false
	for _, p := range list {
		if matches(s, p.text) {
			if p.not {
				return false
			}
			found = true
		}
	}
	return found
}
