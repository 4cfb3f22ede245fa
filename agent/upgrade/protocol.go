package upgrade

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"pulley/internal/clip"
	"pulley/internal/model"
)

// A candidate reports to the agent that watches it over a pipe, in lines: `step NAME` at the start of a step, and
// finally `end JSON`, an Ending. The reader must skip unknown lines, because the two versions may be years apart.

// Descriptor is the file descriptor of a watched candidate's pipe.
const Descriptor = 3

// The pseudo-steps before the first step and after the final message, and the last step of a tick.
const (
	startStep = "start"
	endStep   = "end"
	lastStep  = "report"
)

// maxLine limits a line, in bytes. A candidate may misbehave.
const maxLine = 4 << 10

// Teller is a candidate's end of the pipe.
type Teller struct{ pipe *os.File }

// OpenTeller takes the pipe that this process received as an open file. Child processes do not inherit it.
func OpenTeller(descriptor int) (*Teller, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(descriptor, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		return nil, fmt.Errorf("cannot report the tick on descriptor %d: it is not a pipe", descriptor)
	}
	syscall.CloseOnExec(descriptor)
	return &Teller{os.NewFile(uintptr(descriptor), "the agent that watches")}, nil
}

// Step reports the start of a step. It ignores errors: a missing reader must not end a tick.
func (t *Teller) Step(name string) { _, _ = fmt.Fprintf(t.pipe, "step %s\n", name) }

// End reports the result of the tick. No message may follow.
func (t *Teller) End(e Ending) {
	e.Problem = model.Prose(clip.Line(string(e.Problem), maxText))
	if b, err := json.Marshal(e); err == nil {
		_, _ = fmt.Fprintf(t.pipe, "end %s\n", b)
	}
	_ = t.pipe.Close()
}

// word is one line from a candidate.
type word struct {
	step   string
	ending *Ending
}

// listen sends a candidate's lines until the pipe ends, and then closes the channel. It also reads invalid lines,
// because a full pipe would block the candidate.
func listen(r io.Reader, words chan<- word) {
	defer close(words)
	lines := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if err == bufio.ErrBufferFull { //nolint:errorlint // bufio returns it as it is
			continue
		}
		if err != nil {
			return
		}
		kind, rest, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
		switch kind {
		case "step":
			words <- word{step: rest}
		case "end":
			var e Ending
			if json.Unmarshal([]byte(rest), &e) == nil {
				words <- word{ending: &e}
			}
		}
	}
}
