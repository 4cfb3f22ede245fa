package controlrepo

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/moby/patternmatcher"
)

// silence holds the patterns of pulley.yaml, by rule. Their syntax is that of .pulleyignore.
type silence map[Rule]*patternmatcher.PatternMatcher

// parseSilence reads the setting silence of pulley.yaml.
func parseSilence(settings map[string][]string) (silence, []Finding) {
	s := silence{}
	var found []Finding
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if !slices.ContainsFunc(Rules, func(t RuleText) bool { return string(t.Rule) == name }) {
			found = append(found, finding(Settings, settingsFile, 0, 0, fmt.Sprintf("silence names the unknown rule %q", name)))
			continue
		}
		matcher, err := patternmatcher.New(settings[name])
		if err == nil {
			_, err = matcher.MatchesOrParentMatches("x") // the library compiles patterns on first use
		}
		if err != nil {
			found = append(found, finding(Settings, settingsFile, 0, 0, fmt.Sprintf("silence of %s has an invalid pattern: %v", name, err)))
			continue
		}
		s[Rule(name)] = matcher
	}
	return s, found
}

// comment matches a comment that silences rules for its own line and the next: # pulley:silence RULE RULE.
var comment = regexp.MustCompile(`#[ \t]*pulley:silence((?:[ \t,]+\w+)+)`)

// covers reports whether the repository silences a finding: by pulley.yaml, or by a comment in the file.
func (s silence) covers(f Finding, file []byte) bool {
	if m := s[f.Rule]; m != nil && f.File != "" {
		if matched, err := m.MatchesOrParentMatches(f.File); err == nil && matched {
			return true
		}
	}
	if f.Line == 0 || !bytes.Contains(file, []byte("pulley:silence")) {
		return false
	}
	lines := bytes.Split(file, []byte("\n"))
	for _, n := range []int{f.Line - 2, f.Line - 1} {
		if n < 0 || n >= len(lines) {
			continue
		}
		if m := comment.FindSubmatch(lines[n]); m != nil {
			rules := strings.FieldsFunc(string(m[1]), func(r rune) bool { return r == ' ' || r == '\t' || r == ',' })
			if slices.Contains(rules, string(f.Rule)) {
				return true
			}
		}
	}
	return false
}
