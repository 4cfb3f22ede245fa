package source

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"pulley/internal/release/content"
)

// ignoreFile is the file in the root of a folder that lists the paths to leave out. Its syntax is that of .dockerignore
// (https://docs.docker.com/build/concepts/context/#dockerignore-files).
const ignoreFile = ".pulleyignore"

// maxIgnoreBytes limits the size of the file.
const maxIgnoreBytes = 1 << 20

// LeftOut is a file or folder that is not published.
type LeftOut struct {
	Path string // ends with a slash for a folder
	Why  string
}

// rules decide which paths are left out.
type rules struct {
	root     string
	patterns *patternmatcher.PatternMatcher // nil: none
	lines    []pattern
}

type pattern struct {
	line int
	text string
	*patternmatcher.PatternMatcher
}

// readRules reads the ignoreFile of a folder, if it exists.
func readRules(root string) (rules, error) {
	r := rules{root: root}
	text, err := readIn(root, ignoreFile, maxIgnoreBytes)
	if err == nil {
		r.lines, r.patterns, err = parseIgnore(text)
	}
	if err != nil {
		return r, fmt.Errorf("cannot read %s: %w", ignoreFile, err)
	}
	return r, nil
}

func parseIgnore(text string) ([]pattern, *patternmatcher.PatternMatcher, error) {
	var lines []pattern
	var all []string
	for i, line := range strings.Split(text, "\n") {
		found, err := ignorefile.ReadAll(strings.NewReader(line))
		var one *patternmatcher.PatternMatcher
		if err == nil && len(found) == 1 {
			found[0] = strings.TrimSpace(found[0]) // as the library does later
			if one, err = patternmatcher.New([]string{strings.TrimPrefix(found[0], "!")}); err == nil {
				// Match once to validate the pattern: the library compiles a pattern on first use.
				_, err = one.MatchesOrParentMatches("x")
			}
			if err == nil && found[0] == "!" {
				err = errors.New("the exception is empty")
			}
		}
		if err == nil && !utf8.ValidString(line) { // the library would accept it with a message on standard error
			err = errors.New("it is not UTF-8")
		}
		if err != nil {
			return nil, nil, fmt.Errorf("line %d: %q is not a pattern: %w\nits syntax is that of .dockerignore: * ? [a-z] ** and ! for exceptions", i+1, strings.TrimSpace(line), err)
		}
		if len(found) == 1 && len(one.Patterns()) == 1 {
			lines = append(lines, pattern{i + 1, found[0], one})
			all = append(all, found[0])
		}
	}
	matcher, err := patternmatcher.New(all)
	return lines, matcher, err
}

// Ignore reports whether a path is left out. Pass it to content.ReadTree.
func (f *Folder) Ignore(name string, dir bool) bool { return f.why(name, dir) != "" }

// leftOut is like Ignore, for a path whose parent folders were not checked yet. A parent may be left out.
func (f *Folder) leftOut(name string, dir bool) bool {
	if f.Ignore(name, dir) {
		return true
	}
	for up := path.Dir(name); up != "." && up != "/"; up = path.Dir(up) {
		if f.Ignore(up, true) {
			return true
		}
	}
	return false
}

// why returns the reason why a path, relative to the root, is left out. It returns "" if the path is published.
func (f *Folder) why(name string, dir bool) string { return f.rules.why(name, dir) }

func (r rules) why(name string, dir bool) string {
	if why := builtIn(name, dir); why != "" {
		return why
	}
	if !r.matches(name) || dir && r.keeps(name) {
		return ""
	}
	last := r.lines[0]
	for _, p := range r.lines {
		if found, _ := p.MatchesOrParentMatches(name); found && !strings.HasPrefix(p.text, "!") {
			last = p
		}
	}
	return fmt.Sprintf("%s:%d: %s", ignoreFile, last.line, last.text)
}

// builtIn leaves out files that editors, version control, g10k and r10k leave behind. Exceptions in the ignoreFile do
// not apply to them.
func builtIn(name string, dir bool) string {
	switch base := path.Base(name); {
	case base == ".git":
		return "Git's own files"
	case dir:
		return ""
	case strings.HasSuffix(base, "~"), strings.HasSuffix(base, ".swp"), base == ".DS_Store":
		return "left by an editor or a desktop"
	case isResolverFile(base):
		return "left by g10k or r10k"
	case name == ignoreFile:
		return "says what is left out"
	}
	return ""
}

func (r rules) matches(name string) bool {
	if r.patterns == nil {
		return false
	}
	matched, err := r.patterns.MatchesOrParentMatches(name)
	return err == nil && matched // readRules tested every pattern
}

// keeps reports whether an exception matches below an ignored folder. Such a folder is published with the matching
// paths only.
func (r rules) keeps(dir string) bool {
	if !r.mayKeep(dir) {
		return false
	}
	root, err := os.OpenRoot(r.root)
	if err != nil {
		return false
	}
	defer root.Close()
	kept := false
	// Ignore errors: the path vanished, or ReadTree reports the error.
	_ = content.WalkIn(root, dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || builtIn(name, d.IsDir()) != "" && d.IsDir() {
			return fs.SkipDir
		}
		if name != dir && builtIn(name, d.IsDir()) == "" && !r.matches(name) {
			kept = true
			return fs.SkipAll
		}
		if d.IsDir() && !r.mayKeep(name) {
			return fs.SkipDir
		}
		return nil
	})
	return kept
}

// mayKeep reports whether an exception could match below a folder. It compares the plain text at the start of the
// exception with the folder.
func (r rules) mayKeep(dir string) bool {
	for _, p := range r.lines {
		text, exception := strings.CutPrefix(p.text, "!")
		if !exception {
			continue
		}
		if strings.ContainsAny(text, "^+(){}|") { // the library treats these as in regular expressions
			return true
		}
		plain := text
		if i := strings.IndexAny(text, `*?[\`); i >= 0 {
			plain = text[:i]
		}
		if plain != text && strings.HasPrefix(dir+"/", plain) || strings.HasPrefix(plain, dir+"/") {
			return true
		}
	}
	return false
}

// LeftOut lists the paths that are left out, sorted. It lists an ignored folder, but not its contents.
func (f *Folder) LeftOut() ([]LeftOut, error) {
	root, err := os.OpenRoot(f.Root)
	if err != nil {
		return nil, fmt.Errorf("cannot list what is left out: %w", err)
	}
	defer root.Close()
	var all []LeftOut
	err = content.Walk(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == "." {
			return err
		}
		why := f.why(p, d.IsDir())
		switch {
		case why == "":
			return nil
		case d.IsDir():
			all = append(all, LeftOut{p + "/", why})
			return fs.SkipDir
		}
		all = append(all, LeftOut{p, why})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list what is left out: %w", err)
	}
	return all, nil
}
