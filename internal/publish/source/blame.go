package source

import (
	"errors"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
)

// blamedError is the failure of r10k or g10k with what its output says about the cause.
type blamedError struct {
	module, cause string // module may be ""
	err           error
}

func (e *blamedError) Error() string {
	if e.module == "" {
		return e.cause
	}
	return "module " + e.module + ": " + e.cause
}

func (e *blamedError) Unwrap() error { return e.err }

// blame puts the module and the cause first, before the output of the tool.
func (e *commandError) blame(p *puppetfile) {
	var exit *exec.ExitError
	module, cause := p.blame(e.said)
	if !errors.As(e.err, &exit) || cause == "" {
		return
	}
	e.err = &blamedError{module, cause, e.err}
	if !strings.Contains(e.said, "\n") { // the cause is all of it
		e.said = ""
	}
}

var (
	toolProgress  = regexp.MustCompile(`^(?:INFO\b|\d{4}/\d\d/\d\d |Need to sync |Synced |Cloning into )`)
	toolPrefix    = regexp.MustCompile(`^(?:(?:ERROR|FATAL|WARN)\b[\s:]*(?:->)?\s*|Fatal:\s*|Error:\s*|Error during concurrent deploy of a module:\s*|Unable to manage Puppetfile content '[^']*':\s*)+`)
	toolFrame     = regexp.MustCompile(`^(?:Command exited with|Command: |Stdout:|Stderr:|Exit code:|Original exception:|Failed to evaluate |git repository \S+ does not exist or is unreachable at this moment)`)
	gitComplaint  = regexp.MustCompile(`^(?:fatal|error|ssh|remote|Permission denied|Host key)\b`)
	gitFollowing  = regexp.MustCompile(`^fatal: (?:Could not read from remote repository|early EOF)`)
	blamedContent = regexp.MustCompile(`\b(?:content|module) '?([\w/-]+)'?`)
)

// blame finds the module and the line with the cause in the output of a tool that failed. The output has been shortened
// by complaint. The cause is "" if the output says nothing.
func (p *puppetfile) blame(said string) (module, cause string) {
	var lines []string
	for line := range strings.Lines(said) {
		if line = strings.TrimSpace(ansiColor.ReplaceAllString(line, "")); line != "" && !toolProgress.MatchString(line) {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return "", ""
	}
	git := slices.IndexFunc(lines, func(l string) bool { return gitComplaint.MatchString(l) && !gitFollowing.MatchString(l) })
	isCause := func(l string) bool {
		l = toolPrefix.ReplaceAllString(l, "")
		return l != "" && !toolFrame.MatchString(l)
	}
	plain := slices.IndexFunc(lines, func(l string) bool { return isCause(l) && !strings.HasPrefix(l, "WARN") })
	if plain < 0 {
		plain = slices.IndexFunc(lines, isCause)
	}
	switch {
	case git >= 0:
		cause = strings.TrimPrefix(lines[git], "fatal: ")
	case plain >= 0:
		cause = toolPrefix.ReplaceAllString(lines[plain], "")
	default:
		cause = lines[len(lines)-1]
	}
	return p.blamed(strings.Join(lines, "\n")), cause
}

// blamed returns the name of the module that an output is about, or "".
func (p *puppetfile) blamed(output string) string {
	for _, m := range blamedContent.FindAllStringSubmatch(output, -1) {
		for _, module := range p.modules {
			if name := path.Base(module); name == m[1][strings.LastIndexAny(m[1], "/-")+1:] {
				return name
			}
		}
	}
	for _, module := range p.modules {
		from := p.sources[module]
		if from.remote != "" && names(output, from.remote) || from.title != "" && names(output, from.title) {
			return path.Base(module)
		}
	}
	return ""
}

// names reports whether an output contains a name, and not only a longer one that begins with it.
func names(output, name string) bool {
	form, err := regexp.Compile(regexp.QuoteMeta(name) + `(?:[^\w-]|$)`)
	return err == nil && form.MatchString(output)
}
