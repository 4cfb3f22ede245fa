package cmd_test

import (
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// helpFirstLine matches an imperative verb and its object: a capital, no full stop, no question mark.
var helpFirstLine = regexp.MustCompile(`^[A-Z][a-z]+,? [^?]*[^.?]$`)

// An operator who reads one line for each verb must find the right one.
func TestHelpBeginsWithTheVerbsPurpose(t *testing.T) {
	t.Parallel()
	commands := &commandLines{help: map[string]string{}}
	tree := commands.tree(t)
	lines := 0
	for name, help := range tree {
		_, list, _ := strings.Cut(help, "Available Commands:\n")
		list, _, _ = strings.Cut(list, "\n\n")
		for line := range strings.Lines(list) {
			verb, short, _ := strings.Cut(strings.TrimSpace(line), " ")
			if verb == "completion" || verb == "help" {
				continue
			}
			short = strings.TrimSpace(short)
			lines++
			if !helpFirstLine.MatchString(short) || len(short) > 90 || strings.HasSuffix(strings.Fields(short)[0], "s") && strings.Fields(short)[0] != "Press" {
				t.Errorf("%s %s: %q is not an imperative of at most 90 characters that begins with a capital", name, verb, short)
			}
		}
		if first, _, _ := strings.Cut(help, "\n"); !unicode.IsUpper(rune(first[0])) && !strings.HasPrefix(first, verbOf(name)+" ") && !strings.HasPrefix(first, "With ") {
			t.Errorf("the help of `%s` begins %q, want a capital or the verb", name, first)
		}
	}
	if lines < 60 {
		t.Errorf("only %d verbs were found", lines)
	}
}

func verbOf(command string) string {
	words := strings.Fields(command)
	return words[len(words)-1]
}
