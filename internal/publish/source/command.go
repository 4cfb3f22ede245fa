package source

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"pulley/internal/bounded"
	"pulley/internal/child"
)

// command is a child process with a deadline and its own session. It cannot prompt at the terminal, where the progress line
// would hide the question.
type command struct {
	dir  string
	args []string
	env  []string // added to the process environment, of which the settings of Pulley are no part
	in   io.Reader
	max  int64     // bytes of standard output; 0: maxOutput
	show io.Writer // receives all output; nil: run returns standard output, and the error contains standard error
}

// grace is the time a process has to end after the first signal.
const grace = 5 * time.Second

// maxOutput exceeds the list of files of every repository.
const maxOutput = 256 << 20

// tailBytes is the number of bytes at the end of the output to keep for the error.
const tailBytes = 4 << 10

// commandError reports how a process ended, with its standard error.
type commandError struct {
	name string
	err  error
	said string
}

func (e *commandError) Error() string {
	switch {
	case e.said == "":
		return fmt.Sprintf("%s: %v", e.name, e.err)
	case strings.Contains(e.said, "\n"):
		return fmt.Sprintf("%s: %v\n%s", e.name, e.err, e.said)
	}
	return fmt.Sprintf("%s: %v: %s", e.name, e.err, e.said)
}

func (e *commandError) Unwrap() error { return e.err }

// cause returns the output of a failed process, or how it ended if it wrote nothing.
func cause(err error) string {
	var ended *commandError
	if errors.As(err, &ended) && ended.said != "" {
		return ended.said
	}
	return err.Error()
}

func (c command) run(ctx context.Context, deadline time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, deadline, &tooLongError{deadline})
	defer cancel()
	said := &tail{}
	cmd := child.Command{Path: c.args[0], Args: c.args[1:], Dir: c.dir, Env: environ(c.env), Stdin: c.in, Stderr: said, Grace: grace, Left: child.KeepServices} // git starts daemons, such as the cache of credentials
	var out []byte
	var err error
	if c.show != nil {
		cmd.Stderr = io.MultiWriter(c.show, said)
		cmd.Stdout = cmd.Stderr // the same writer, so that exec does not write from two goroutines
		err = cmd.Run(ctx)
	} else {
		out, err = cmd.Output(ctx, cmp.Or(c.max, maxOutput))
	}
	if err == nil {
		return out, nil
	}
	if large := (*bounded.TooLargeError)(nil); errors.As(err, &large) {
		err = fmt.Errorf("it wrote more than %d bytes", large.Limit)
	} else if errors.Is(err, exec.ErrNotFound) {
		err = fmt.Errorf("it is not installed: %w", exec.ErrNotFound)
	}
	return nil, &commandError{c.name(), err, said.String()}
}

// tooLongError reports a process that exceeded its deadline.
type tooLongError struct{ deadline time.Duration }

func (e *tooLongError) Error() string { return fmt.Sprintf("it took longer than %s", e.deadline) }

// name returns the quoted command line.
func (c command) name() string {
	var words []string
	for _, a := range c.args {
		if strings.ContainsAny(a, " \t\n'\"\\$") {
			a = strconv.Quote(a)
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}

// tail keeps the end of the bytes written to it.
type tail struct{ kept []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - tailBytes; over > 0 {
		t.kept = slices.Delete(t.kept, 0, over)
	}
	return len(p), nil
}

// String returns the last lines.
func (t *tail) String() string {
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(t.kept), "?")), "\n")
	return strings.Join(lines[max(0, len(lines)-12):], "\n")
}

// lineWriter calls show with each line written to it.
type lineWriter struct {
	show func(string)
	rest []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		i := bytes.IndexAny(w.rest, "\r\n")
		if i < 0 {
			break
		}
		if line := bytes.TrimSpace(w.rest[:i]); len(line) > 0 {
			w.show(strings.ToValidUTF8(string(line), "?"))
		}
		w.rest = w.rest[i+1:]
	}
	if len(w.rest) > tailBytes {
		w.rest = nil
	}
	return len(p), nil
}

// repositoryVariables are the variables that select a git repository. In a hook they select another repository than the
// published folder. The list is that of `git rev-parse --local-env-vars`, without the variables of -c, which child
// processes must inherit.
var repositoryVariables = []string{
	"GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_DIR", "GIT_GRAFT_FILE", "GIT_IMPLICIT_WORK_TREE", "GIT_INDEX_FILE",
	"GIT_INTERNAL_SUPER_PREFIX", "GIT_NAMESPACE", "GIT_NO_REPLACE_OBJECTS", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX",
	"GIT_REPLACE_REF_BASE", "GIT_SHALLOW_FILE", "GIT_WORK_TREE",
}

func environ(more []string) []string {
	env := slices.DeleteFunc(child.WithoutOwn(os.Environ()), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(repositoryVariables, name)
	})
	return append(append(env, "GIT_TERMINAL_PROMPT=0"), more...)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
