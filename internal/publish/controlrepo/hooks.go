package controlrepo

import (
	"bytes"
	"path"
	"strings"
)

// checkHooks finds programs of nodes that the kernel does not start.
func (r *reading) checkHooks() {
	for name, mode := range r.modes {
		switch {
		case !isHook(name):
		case mode.Perm()&0o111 == 0:
			r.add(finding(NotExecutable, name, 0, 0, ""))
		default:
			if why := unstartable(r.heads[name]); why != "" {
				r.add(finding(HookStart, name, 1, 0, why))
			} else if program := interpreter(r.heads[name]); program != "" && !shells[path.Base(program)] {
				r.add(finding(HookInterpreter, name, 1, 0, program))
			}
		}
	}
}

// shells are the interpreters that each node has.
var shells = map[string]bool{"sh": true, "bash": true}

// interpreter returns the program that a script's first line names, also by env; "" for other programs.
func interpreter(program []byte) string {
	first, _, _ := bytes.Cut(program, []byte("\n"))
	line, isScript := bytes.CutPrefix(first, []byte("#!"))
	words := strings.Fields(string(line))
	if !isScript || len(words) == 0 {
		return ""
	}
	if path.Base(words[0]) == "env" {
		for _, word := range words[1:] {
			if !strings.HasPrefix(word, "-") && !strings.Contains(word, "=") {
				return word
			}
		}
	}
	return words[0]
}

// unstartable returns why Linux does not start a program: it is no binary, and its first line names no interpreter.
func unstartable(program []byte) string {
	first, _, _ := bytes.Cut(program, []byte("\n"))
	interpreter, isScript := strings.CutPrefix(string(first), "#!")
	switch {
	case bytes.HasPrefix(program, []byte("\x7fELF")):
		return ""
	case bytes.HasPrefix(program, []byte("\ufeff")):
		return "it begins with a byte order mark"
	case !isScript:
		return "it does not begin with #!"
	case strings.HasSuffix(interpreter, "\r"):
		return "its lines end as on Windows, and the interpreter's name with them"
	case len(strings.Fields(interpreter)) == 0:
		return "it names no interpreter"
	case !strings.Contains(strings.Fields(interpreter)[0], "/"):
		return "its interpreter " + strings.Fields(interpreter)[0] + " has no path"
	}
	return ""
}
