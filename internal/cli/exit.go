package cli

import (
	"errors"
	"fmt"
	"strings"

	"pulley/internal/model"
)

// Exit codes, the same for every verb.
const (
	ExitDone        = 0
	ExitFailed      = 1
	exitUsage       = 2
	ExitUnreachable = 3
	ExitDegraded    = 4 // of a command that looked at nodes, or waited for them: some cannot converge
	ExitTimeout     = 5 // of a command that waited: its deadline passed
)

// UsageError reports an invalid command line.
type UsageError struct{ Problem string }

func (e *UsageError) Error() string { return e.Problem }

// Usagef creates a UsageError.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// SilentError ends a program with a code and without a message.
type SilentError struct{ Code int }

func (e *SilentError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// Exit prints the error and returns the program's exit code.
func Exit(e Env, program string, err error) int {
	var silent *SilentError
	if err != nil && !errors.As(err, &silent) {
		Complain(e, program, err)
		if e.logsToFile { // also for the person or the service manager that started the program
			e.Log = nil
			Complain(e, program, err)
		}
	}
	return Code(err)
}

// Code returns the exit code for this error.
func Code(err error) int {
	var silent *SilentError
	var usage *UsageError
	var coded interface{ ExitStatus() int } // ExitCode is that of another program, in an *exec.ExitError
	switch {
	case err == nil:
		return ExitDone
	case errors.As(err, &silent):
		return silent.Code
	case errors.As(err, &coded):
		return coded.ExitStatus()
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, model.ErrUnreachable):
		return ExitUnreachable
	}
	return ExitFailed
}

// interrupted replaces the words of Go and gRPC for Ctrl-C.
var interrupted = strings.NewReplacer("rpc error: code = Canceled desc = context canceled", "interrupted", "context canceled", "interrupted")

// Message returns the text of an error with its hints.
func Message(err error) string {
	text := err.Error()
	var hinting interface{ Hint() string }
	if errors.As(err, &hinting) && hinting.Hint() != "" && !strings.Contains(text, hinting.Hint()) {
		text += "\n" + hinting.Hint()
	}
	return interrupted.Replace(text)
}

// Complain prints an error: its first line after the program's name, each further line as a hint. Errors contain data
// from nodes and files. Complain prints control characters visibly, and never sends them to the terminal. With e.Log, the error is a
// record of the log instead.
func Complain(e Env, program string, err error) {
	if e.Log != nil {
		e.log(Message(err))
		return
	}
	lines := strings.Split(strings.TrimSpace(Message(err)), "\n")
	fmt.Fprintf(e.Stderr, "%s: %s\n", program, Clean(lines[0]))
	for _, l := range lines[1:] {
		fmt.Fprintf(e.Stderr, "  %s\n", Clean(strings.TrimSpace(l)))
	}
}
