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
type silence struct {
	patterns map[Rule]*patternmatcher.PatternMatcher
	used     map[Rule]bool // rules whose patterns silenced a finding
}

// parseSilence reads the setting silence of pulley.yaml.
func parseSilence(settings map[string][]string) (silence, []Finding) {
	s := silence{map[Rule]*patternmatcher.PatternMatcher{}, map[Rule]bool{}}
	var found []Finding
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if !isRule(name) {
			found = append(found, finding(SilenceUnused, settingsFile, 0, 0, fmt.Sprintf("silence names the unknown rule %q", name)))
			continue
		}
		matcher, err := patternmatcher.New(settings[name])
		if err == nil {
			_, err = matcher.MatchesOrParentMatches("x") // the library compiles patterns on first use
		}
		if err != nil {
			found = append(found, finding(SilenceUnused, settingsFile, 0, 0, fmt.Sprintf("silence of %s has an invalid pattern: %v", name, err)))
			continue
		}
		s.patterns[Rule(name)] = matcher
	}
	return s, found
}

func isRule(name string) bool {
	return slices.ContainsFunc(Rules, func(t RuleText) bool { return string(t.Rule) == name })
}

// comment matches a comment that silences rules: # pulley:silence RULE RULE. The first group is what stands before it.
var comment = regexp.MustCompile(`^(.*)#[ \t]*pulley:silence((?:[ \t,]+\w+)+)`)

// commented returns the rules that a line silences by a comment. alone reports whether no code stands before it.
func commented(line []byte) (rules []string, alone bool) {
	m := comment.FindSubmatch(line)
	if m == nil {
		return nil, false
	}
	before := bytes.TrimSpace(m[1])
	return strings.FieldsFunc(string(m[2]), func(r rune) bool { return r == ' ' || r == '\t' || r == ',' }), len(before) == 0 || before[0] == '#'
}

// covers reports whether the repository silences a finding: by pulley.yaml, or by a comment in the file.
func (s silence) covers(f Finding, file []byte) bool {
	if f.Rule == Settings { // every node refuses such a release
		return false
	}
	if m := s.patterns[f.Rule]; m != nil && f.File != "" {
		if matched, err := m.MatchesOrParentMatches(f.File); err == nil && matched {
			s.used[f.Rule] = true
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
		if rules, alone := commented(lines[n]); slices.Contains(rules, string(f.Rule)) && (alone || n == f.Line-1) {
			return true
		}
	}
	return false
}

// unused returns the silences without an effect: patterns that silenced nothing, and comments with an unknown rule.
func (r *reading) unused(s silence) []Finding {
	var found []Finding
	for rule := range s.patterns {
		if !s.used[rule] {
			found = append(found, finding(SilenceUnused, settingsFile, 0, 0, fmt.Sprintf("there is nothing of %s to silence in the files that it names", rule)))
		}
	}
	for name, data := range r.files {
		if !bytes.Contains(data, []byte("pulley:silence")) || r.vendored(name) {
			continue
		}
		for i, line := range bytes.Split(data, []byte("\n")) {
			rules, _ := commented(line)
			for _, rule := range rules {
				if !isRule(rule) {
					found = append(found, finding(SilenceUnused, name, i+1, 0, fmt.Sprintf("the comment names the unknown rule %q", rule)))
				}
			}
		}
	}
	return found
}
