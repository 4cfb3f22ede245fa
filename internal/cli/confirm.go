package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxReply bounds what is read of an answer.
const maxReply = 64

// Confirm asks a question, and returns an error unless the reply is one of the answers. preview is the command that shows the same
// without doing it.
func Confirm(ctx context.Context, e Env, preview, question string, answers ...string) error {
	fmt.Fprint(e.Stdout, question)
	type line struct {
		text string
		err  error
	}
	read := make(chan line, 1) // a reply that comes too late stays there
	go func() {
		text, err := readLine(e.Stdin)
		read <- line{text, err}
	}()
	var reply line
	select {
	case <-ctx.Done():
		fmt.Fprintln(e.Stdout)
		return errors.New("cannot continue: interrupted; nothing was done")
	case reply = <-read:
	}
	if !e.Terminal || reply.text == "" {
		fmt.Fprintln(e.Stdout) // nobody typed a line end
	}
	if reply.err != nil {
		return fmt.Errorf("cannot read the reply: %w\nnothing was done", reply.err)
	}
	for _, answer := range answers {
		if strings.EqualFold(reply.text, answer) {
			return nil
		}
	}
	return fmt.Errorf("cannot continue: not confirmed; nothing was done\nin scripts, check %s first and use --yes", preview)
}

// readLine reads one line, byte by byte: what follows it belongs to others.
func readLine(r io.Reader) (string, error) {
	var line []byte
	for one := make([]byte, 1); len(line) < maxReply; {
		n, err := r.Read(one)
		if n > 0 && one[0] == '\n' {
			break
		}
		line = append(line, one[:n]...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
	}
	return strings.TrimSpace(string(line)), nil
}
