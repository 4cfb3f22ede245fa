package cmd_test

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

var (
	// codeSpan matches a command line in a message.
	codeSpan = regexp.MustCompile("`((?:pulley|pulley-agent) [^`]+)`")
	// bareCommand matches a verb of a command line without backquotes, at the end of a hint.
	bareCommand = regexp.MustCompile(`[:;] ((?:pulley|pulley-agent) [a-z]+(?: [a-z]+)?)`)
	// flagName matches a flag in a message.
	flagName = regexp.MustCompile(`(?:^|[\s(\x60])(--[a-z][a-z0-9-]+)`)
	// otherProgram matches the name of another program, whose flags a message may name.
	otherProgram = regexp.MustCompile(`\b(apt-get|git|ip|losetup|mount|puppet|systemctl|ssh-keygen|systemd-nspawn|curl|wget|install|useradd|openssl|container|cloud-init|debootstrap|etcd|etcdctl|nsenter|tar|machinectl|r10k|g10k|gpg|stat)\b`)
)

// A message must not name a verb or a flag that does not exist.
func TestMessagesNameCommandsThatExist(t *testing.T) {
	flags := allFlags(t)
	seen := 0
	sources(t, ".", func(path string, file *ast.File, positions *token.FileSet) {
		if strings.HasPrefix(path, "e2e/") || strings.HasPrefix(path, "internal/testbed/") || strings.HasPrefix(path, "cmd/testdata/") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range codeSpan.FindAllStringSubmatch(text, -1) {
				for _, words := range simpleCommands(m[1]) {
					program := filepath.Base(words[0])
					if program != "pulley" && program != "pulley-agent" || len(words) > 1 && strings.HasPrefix(words[1], "%") {
						continue
					}
					seen++
					if problem := checkCommand(t, program, words[1:]); problem != "" {
						t.Errorf("%s: `%s`: %s", positions.Position(literal.Pos()), m[1], problem)
					}
				}
			}
			for _, m := range bareCommand.FindAllStringSubmatch(text, -1) {
				seen++
				words := strings.Fields(m[1])
				if problem := checkCommand(t, words[0], words[1:]); problem != "" {
					t.Errorf("%s: %s: %s", positions.Position(literal.Pos()), m[1], problem)
				}
			}
			if !strings.Contains(strings.TrimSpace(text), " ") || otherProgram.MatchString(text) {
				return true // an argument of another program
			}
			for _, m := range flagName.FindAllStringSubmatch(text, -1) {
				seen++
				if !flags[m[1]] {
					t.Errorf("%s: no command has flag %s: %s", positions.Position(literal.Pos()), m[1], literal.Value)
				}
			}
			return true
		})
	})
	if seen < 200 {
		t.Errorf("only %d commands and flags were found", seen)
	}
}

// allFlags returns the flags of all verbs of both programs.
func allFlags(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, help := range commandTree(t) {
		for flag := range flagsOf(help) {
			all[flag] = true
		}
	}
	return all
}

// commandTree returns the help of each verb of both programs, by command line.
func commandTree(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	var walk func(program string, verbs []string)
	walk = func(program string, verbs []string) {
		help := helpOf(t, program, verbs)
		all[strings.Join(append([]string{program}, verbs...), " ")] = help
		for _, verb := range verbsOf(help) {
			if verb != "help" {
				walk(program, append(verbs[:len(verbs):len(verbs)], verb))
			}
		}
	}
	walk("pulley", nil)
	walk("pulley-agent", nil)
	return all
}

// helpFirstLine matches an imperative verb and its object: a capital, no full stop, no question mark.
var helpFirstLine = regexp.MustCompile(`^[A-Z][a-z]+,? [^?]*[^.?]$`)

// An operator who reads one line for each verb must find the right one.
func TestHelpBeginsWithTheVerbsPurpose(t *testing.T) {
	t.Parallel()
	tree := commandTree(t)
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

// A reader of the help must find a command line that works.
func TestHelpHasExamplesThatExist(t *testing.T) {
	t.Parallel()
	for name, help := range commandTree(t) {
		if strings.HasPrefix(name, "pulley completion") {
			continue
		}
		_, examples, has := strings.Cut(help, "\nExamples:\n")
		if !has {
			t.Errorf("the help of `%s` has no example", name)
			continue
		}
		examples, _, _ = strings.Cut(examples, "\n\n")
		for line := range strings.Lines(examples) {
			for _, words := range simpleCommands(strings.TrimSpace(line)) {
				if program := words[0]; program == "pulley" || program == "pulley-agent" {
					if problem := checkCommand(t, program, words[1:]); problem != "" {
						t.Errorf("`%s`: example %q: %s", name, strings.TrimSpace(line), problem)
					}
				}
			}
		}
	}
}

// namesCommand matches the text before a command that the reader does not run.
var namesCommand = regexp.MustCompile(`(?:\b[Bb]y|output of) $`)

// An operator who copies a remedy must not get "missing environment".
func TestMessagesNameTheEnvironment(t *testing.T) {
	t.Parallel()
	needs := map[string]bool{}
	for name, help := range commandTree(t) {
		if usage, _, _ := strings.Cut(help, "\nFlags:"); strings.Contains(usage, " -e ENVIRONMENT") {
			needs[name] = true
		}
	}
	if len(needs) < 20 {
		t.Fatalf("only %d verbs need an environment", len(needs))
	}
	sources(t, ".", func(path string, file *ast.File, positions *token.FileSet) {
		if strings.HasPrefix(path, "e2e/") || strings.HasPrefix(path, "internal/testbed/") || strings.HasPrefix(path, "cmd/testdata/") {
			return
		}
		help := map[ast.Node]bool{} // which names commands in general
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if name, ok := call.Fun.(*ast.Ident); ok && name.Name == "group" {
					for _, text := range call.Args[:3] {
						ast.Inspect(text, func(n ast.Node) bool { help[n] = true; return true })
					}
				}
			}
			pair, ok := n.(*ast.KeyValueExpr)
			if !ok {
				return true
			}
			if key, ok := pair.Key.(*ast.Ident); ok && slices.Contains([]string{"Use", "Short", "Long", "Example"}, key.Name) {
				ast.Inspect(pair.Value, func(n ast.Node) bool { help[n] = true; return true })
			}
			return true
		})
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING || help[n] {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			if err != nil || strings.Contains(text, "` takes ") {
				return true
			}
			for _, m := range codeSpan.FindAllStringSubmatchIndex(text, -1) {
				command := text[m[2]:m[3]]
				words := strings.Fields(command)
				if slices.Contains(words, "--operator") || namesCommand.MatchString(text[:m[0]]) {
					continue // a token for an operator is of no environment
				}
				for n := len(words); n > 1; n-- {
					if needs[strings.Join(words[:n], " ")] && !slices.Contains(words, "-e") {
						t.Errorf("%s: `%s` has no -e", positions.Position(literal.Pos()), command)
					}
				}
			}
			return true
		})
	})
}
