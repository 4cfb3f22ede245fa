package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// ReadSecret reads a secret from standard input without its last line break. At a terminal it asks for one line and does
// not show it.
func ReadSecret(ctx context.Context, env Env, question string, limit int64) (string, error) {
	var b []byte
	var err error
	if f, ok := env.Stdin.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		fmt.Fprint(env.Stderr, question)
		b, err = readHidden(ctx, int(f.Fd()))
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

// readHidden reads a line from a terminal that does not show it. An interruption restores the terminal.
func readHidden(ctx context.Context, fd int) ([]byte, error) {
	shown, err := term.GetState(fd)
	if err != nil {
		return nil, err
	}
	type reply struct {
		line []byte
		err  error
	}
	read := make(chan reply, 1) // buffered: a late reply must not block the reader
	go func() {
		line, err := term.ReadPassword(fd)
		read <- reply{line, err}
	}()
	select {
	case <-ctx.Done():
		return nil, errors.Join(errors.New("interrupted; nothing was done"), term.Restore(fd, shown))
	case r := <-read:
		return r.line, r.err
	}
}
