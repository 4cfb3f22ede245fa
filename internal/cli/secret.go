package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// ReadSecret reads a secret from standard input without its last line break. At a terminal it asks for it and does not
// show it.
func ReadSecret(env Env, question string, limit int64) (string, error) {
	var b []byte
	var err error
	if f, ok := env.Stdin.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		fmt.Fprint(env.Stderr, question)
		b, err = term.ReadPassword(int(f.Fd()))
		fmt.Fprintln(env.Stderr)
	} else {
		b, err = io.ReadAll(io.LimitReader(env.Stdin, limit+2))
	}
	if err != nil {
		return "", err
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if int64(len(text)) > limit {
		return "", fmt.Errorf("it is longer than %s", Bytes(limit))
	}
	if strings.ContainsRune(text, 0) {
		return "", errors.New("it contains a NUL byte")
	}
	return text, nil
}
