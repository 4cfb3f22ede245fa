package cmd_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// page is one hand-written page: its text without fenced blocks, and the blocks.
type page struct {
	name   string // relative to the repository
	prose  string
	blocks []block
}

type block struct {
	language string
	lines    []string
}

// pages reads README, ARCHITECTURE and docs/.
func pages(t *testing.T) []page {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(repository, "docs", "*.md"))
	if err != nil || len(files) < 5 {
		t.Fatalf("docs/ has %d pages: %v", len(files), err)
	}
	files = append(files, filepath.Join(repository, "README.md"), filepath.Join(repository, "ARCHITECTURE.md"), filepath.Join(repository, "CHANGELOG.md"))
	var all []page
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name, err := filepath.Rel(repository, file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, parsePage(name, string(b)))
	}
	return all
}

func parsePage(name, text string) page {
	p := page{name: name}
	var prose strings.Builder
	var open *block
	for line := range strings.Lines(text) {
		language, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && open == nil:
			open = &block{language: language}
		case fence:
			p.blocks = append(p.blocks, *open)
			open = nil
		case open != nil:
			open.lines = append(open.lines, strings.TrimRight(line, "\n"))
		default:
			prose.WriteString(line)
		}
	}
	p.prose = prose.String()
	return p
}

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.+)$`)
	inline   = regexp.MustCompile("`([^`\n]+)`")
	testName = regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]\w*$`)
	filePath = regexp.MustCompile(`^[\w.-]+(/[\w.*-]+)+/?$`)
	notWord  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// Every link must have a target.
func TestLinksOfDocsLeadSomewhere(t *testing.T) {
	seen := 0
	for _, p := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(p.prose, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			seen++
			file, anchor, _ := strings.Cut(m[1], "#")
			target := filepath.Join(repository, filepath.Dir(p.name), file)
			if file == "" {
				target = filepath.Join(repository, p.name)
			}
			b, err := os.ReadFile(target)
			if err != nil {
				t.Errorf("%s links to %s: %v", p.name, m[1], err)
				continue
			}
			if anchor != "" && !slices.Contains(anchors(string(b)), anchor) {
				t.Errorf("%s links to %s: there is no such heading", p.name, m[1])
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d links were found", seen)
	}
}

// anchors returns the anchors of a page's headings.
func anchors(text string) []string {
	var all []string
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		all = append(all, strings.ReplaceAll(notWord.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}

// A page that names a missing test proves nothing. A missing file misleads the reader.
func TestDocsNameTestsAndFilesThatExist(t *testing.T) {
	tests, folders := testsAndFolders(t)
	named := 0
	for _, p := range pages(t) {
		for _, m := range inline.FindAllStringSubmatch(p.prose, -1) {
			top, _, _ := strings.Cut(m[1], "/")
			switch {
			case testName.MatchString(m[1]):
				named++
				if !tests[m[1]] {
					t.Errorf("%s names %s: there is no such test", p.name, m[1])
				}
			case filePath.MatchString(m[1]) && folders[top]:
				named++
				if found, err := filepath.Glob(filepath.Join(repository, m[1])); err != nil || len(found) == 0 {
					t.Errorf("%s names %s: there is no such file", p.name, m[1])
				}
			}
		}
	}
	if named < 50 {
		t.Errorf("only %d tests and files were found", named)
	}
}

// testsAndFolders returns the names of all tests, for any build tags, and the top-level folders of the repository.
func testsAndFolders(t *testing.T) (tests, folders map[string]bool) {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Z]\w*)\(`)
	tests, folders = map[string]bool{}, map[string]bool{}
	top, err := os.ReadDir(repository)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range top {
		if strings.HasSuffix(e.Name(), "_test.go") {
			b, err := os.ReadFile(filepath.Join(repository, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range function.FindAllStringSubmatch(string(b), -1) {
				tests[m[1]] = true
			}
		}
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") || e.Name() == "bin" {
			continue
		}
		folders[e.Name()] = true
		err := filepath.WalkDir(filepath.Join(repository, e.Name()), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			for _, m := range function.FindAllStringSubmatch(string(b), -1) {
				tests[m[1]] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return tests, folders
}

// Every command in a page must exist, with its flags.
func TestDocsShowCommandsThatExist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, p := range pages(t) {
		for _, line := range commandsOf(p) {
			for _, words := range simpleCommands(line) {
				switch program := filepath.Base(words[0]); program {
				case "pulley", "pulley-agent":
					seen++
					if problem := checkCommand(t, program, words[1:]); problem != "" {
						t.Errorf("%s: %s: %s", p.name, line, problem)
					}
				case "make":
					if len(words) > 1 && !strings.Contains(string(makefile), "\n"+words[1]+":") {
						t.Errorf("%s: %s: there is no such target", p.name, line)
					}
				}
			}
		}
	}
	if seen < 60 {
		t.Errorf("only %d commands were found", seen)
	}
}

// commandsOf returns the command lines of a page: of its sh blocks, after the prompts of its console blocks (and of
// indented blocks), and in its prose.
func commandsOf(p page) []string {
	var all []string
	for _, b := range p.blocks {
		switch b.language {
		case "sh":
			all = append(all, strings.Split(strings.ReplaceAll(strings.Join(b.lines, "\n"), "\\\n", " "), "\n")...)
		case "console":
			for _, line := range b.lines {
				if command, ok := strings.CutPrefix(line, "$ "); ok {
					all = append(all, command)
				}
			}
		}
	}
	for line := range strings.Lines(p.prose) {
		if command, ok := strings.CutPrefix(line, "    $ "); ok {
			all = append(all, strings.TrimSpace(command))
		}
	}
	for _, m := range inline.FindAllStringSubmatch(p.prose, -1) {
		all = append(all, m[1])
	}
	return all
}

// simpleCommands splits a shell line into commands, and these into words. It supports only quotes, separators and
// leading assignments.
func simpleCommands(line string) [][]string {
	var all [][]string
	var words []string
	word, inWord, quote := "", false, rune(0)
	endWord := func() {
		if inWord && (len(words) > 0 || !strings.Contains(word, "=")) {
			words = append(words, word)
		}
		word, inWord = "", false
	}
	endCommand := func() {
		endWord()
		if len(words) > 0 {
			all = append(all, words)
		}
		words = nil
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, inWord = r, true
		case quote == 0 && (r == ' ' || r == '\t'):
			endWord()
		case quote == 0 && r == '#' && !inWord:
			endCommand()
			return all
		case quote == 0 && strings.ContainsRune(";|&()<>", r):
			endCommand()
		default:
			word, inWord = word+string(r), true
		}
	}
	endCommand()
	return all
}

// helpTexts are the outputs of --help by command line, for all tests: both programs have about 150 verbs.
var helpTexts sync.Map

func helpOf(t *testing.T, program string, verbs []string) string {
	t.Helper()
	name := strings.Join(append([]string{program}, verbs...), " ")
	if help, known := helpTexts.Load(name); known {
		return help.(string)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(bin, program), append(verbs, "--help")...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s --help: %v\n%s", name, err, out)
	}
	helpTexts.Store(name, string(out))
	return string(out)
}

// verbsOf returns the verbs that a help text lists. flagsOf returns its flags, with whether each takes a value.
func verbsOf(help string) []string {
	_, list, _ := strings.Cut(help, "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	var verbs []string
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > 0 {
			verbs = append(verbs, fields[0])
		}
	}
	return verbs
}

var flagLine = regexp.MustCompile(`^ +(?:(-\w), )?(--[a-z0-9-]+)( [a-z0-9]+)?(\[=\S+\])?(?:\s|$)`)

func flagsOf(help string) map[string]bool {
	flags := map[string]bool{}
	for scanner := bufio.NewScanner(strings.NewReader(help)); scanner.Scan(); {
		m := flagLine.FindStringSubmatch(scanner.Text())
		if m == nil {
			continue
		}
		takesWord := m[3] != "" && m[4] == ""
		flags[m[2]] = takesWord
		if m[1] != "" {
			flags[m[1]] = takesWord
		}
	}
	return flags
}

// checkCommand returns the error in the words after a program's name, or "".
func checkCommand(t *testing.T, program string, words []string) string {
	t.Helper()
	var verbs []string
	help := helpOf(t, program, nil)
	for i := 0; i < len(words); i++ {
		word := words[i]
		switch {
		case word == "--":
			return ""
		case strings.HasPrefix(word, "-") && len(word) > 1:
			name, _, given := strings.Cut(word, "=")
			takesWord, known := flagsOf(help)[name]
			if !known {
				return "there is no flag " + name
			}
			if takesWord && !given {
				i++
			}
		case slices.Contains(verbsOf(help), word):
			verbs = append(verbs, word)
			help = helpOf(t, program, verbs)
		case len(verbs) == 0 || len(verbsOf(help)) > 0:
			return "there is no verb " + word
		}
	}
	return ""
}

// Every setting must be documented, and every documented setting must exist.
func TestSettingsOfTheAgentAreDocumented(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(bad, []byte("no_such_key: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "pulley-agent"), "run", "--root", t.TempDir(), "--config", bad).CombinedOutput()
	_, list, found := strings.Cut(string(out), "its keys are ")
	if err == nil || !found {
		t.Fatalf("an unknown key is not refused: %v\n%s", err, out)
	}
	var keys []string
	group := regexp.MustCompile(`(?:, | and )(\w+): \{([^}]*)\}`)
	for _, m := range group.FindAllStringSubmatch(list, -1) {
		for _, key := range strings.Split(m[2], ", ") {
			keys = append(keys, m[1]+"."+key)
		}
	}
	keys = append(keys, strings.Split(strings.TrimSpace(group.ReplaceAllString(list, "")), ", ")...)
	b, err := os.ReadFile(filepath.Join(repository, "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(b), "\n## Settings in agent.yaml\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var documented []string
	flags := flagsOf(helpOf(t, "pulley-agent", []string{"run"}))
	for line := range strings.Lines(section) {
		if cell, ok := strings.CutPrefix(line, "| `"); ok {
			for _, flag := range regexp.MustCompile("`(--[a-z-]+)`").FindAllStringSubmatch(line, -1) {
				if _, known := flags[flag[1]]; !known {
					t.Errorf("pulley-agent has no flag %s: %s", flag[1], line)
				}
			}
			cell, _, _ = strings.Cut(cell, " | ")
			documented = append(documented, strings.Split(strings.ReplaceAll(cell, "`", ""), ", ")...)
		}
	}
	slices.Sort(keys)
	slices.Sort(documented)
	if !slices.Equal(keys, documented) {
		t.Errorf("agent.yaml has %v\nand docs/operations.md %v", keys, documented)
	}
}

// Without a documented reason, a dependency is never removed.
func TestEveryDependencyHasAReason(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(repository, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	reasons, err := os.ReadFile(filepath.Join(repository, "docs", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	direct := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(fields) == 2 && strings.HasPrefix(fields[1], "v") && strings.Contains(fields[0], ".") {
			direct[fields[0]] = true
			if !strings.Contains(string(reasons), "`"+fields[0]+"`") {
				t.Errorf("docs/dependencies.md does not say why there is %s", fields[0])
			}
		}
	}
	for _, m := range regexp.MustCompile("`((?:github\\.com|go\\.etcd\\.io|golang\\.org|google\\.golang\\.org|go\\.uber\\.org|gopkg\\.in|pgregory\\.net)/[^` ]+)`").FindAllStringSubmatch(string(reasons), -1) {
		if over := strings.Contains(m[1], "x/mod"); !direct[m[1]] && !over {
			t.Errorf("docs/dependencies.md explains %s, which is no direct dependency", m[1])
		}
	}
	if len(direct) < 10 {
		t.Errorf("only %d dependencies were found", len(direct))
	}
}
