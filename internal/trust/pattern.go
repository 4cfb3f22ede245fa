package trust

// matches reports whether s matches an OpenSSH pattern (ssh_config(5), PATTERNS): * matches any number of characters,
// including none; ? matches one.
func matches(s, pattern string) bool {
	star, retry := -1, 0
	i, j := 0, 0
	for i < len(s) {
		switch {
		case j < len(pattern) && pattern[j] == '*': // before the next case, in which a star in s would consume this one
			star, retry = j, i
			j++
		case j < len(pattern) && (pattern[j] == '?' || pattern[j] == s[i]):
			i++
			j++
		case star >= 0: // the last star matches one character more
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

// pattern is one element of a list. A match of a negated pattern excludes the string, at any place in the list.
type pattern struct {
	text string
	not  bool
}

// matchesList reports whether a string matches at least one pattern of a list and no negated one.
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
