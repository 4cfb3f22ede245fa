package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxReply limits a reply, in bytes.
const maxReply = 64

// Confirm asks a question, and returns an error unless the reply is one of the answers. preview is the command that
// shows the same changes without making them.
func Confirm(ctx context.Context, e Env, preview, question string, answers ...string) error {
	fmt.Fprint(e.Stdout, question)
	type line struct {
		text string
		err  error
	}
	read := make(chan line, 1) // buffered: a late reply must not block the reader
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
		fmt.Fprintln(e.Stdout) // the user typed no newline
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

// readLine reads one line, byte by byte: later input belongs to other readers.
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

// Progress is one line on a terminal that each update overwrites. If standard error is not a terminal, Progress writes
// nothing.
type Progress struct {
	env   Env
	shown bool
}

// NewProgress returns a Progress that shows nothing yet.
func NewProgress(e Env) *Progress { return &Progress{env: e} }

// Show replaces the line.
func (p *Progress) Show(line string) {
	if p.env.ErrTerminal {
		p.shown = true
		fmt.Fprintf(p.env.Stderr, "\r\x1b[K%s", Clean(line))
	}
}

// Done removes the line. A second call does nothing.
func (p *Progress) Done() {
	if p.shown {
		p.shown = false
		fmt.Fprint(p.env.Stderr, "\r\x1b[K")
	}
}
