package upgrade

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"pulley/agent"
	"pulley/internal/clip"
)

// A candidate speaks to the agent that watches it over a pipe, in lines: `step NAME` when it begins a step, and last
// `end JSON`, an Ending. Whoever reads leaves out lines that it does not know: the two may be years apart.

// What a candidate is at before its first step, and after its last word; and the step by which it has reported.
const (
	startStep = "start"
	endStep   = "end"
	lastStep  = "report"
)

// maxLine bounds a line: a candidate may be anything.
const maxLine = 4 << 10

// Teller is a candidate's end of the pipe.
type Teller struct{ pipe *os.File }

// OpenTeller takes the pipe that this process got as an open file. The programs that it starts don't get it.
func OpenTeller(descriptor int) (*Teller, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(descriptor, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		return nil, fmt.Errorf("cannot report the tick on descriptor %d: it is not a pipe", descriptor)
	}
	syscall.CloseOnExec(descriptor)
	return &Teller{os.NewFile(uintptr(descriptor), "the agent that watches")}, nil
}

// Step says that a step begins. Nobody may be left to listen: that is no reason to end a tick.
func (t *Teller) Step(name string) { _, _ = fmt.Fprintf(t.pipe, "step %s\n", name) }

// End says how the tick went. Nothing may follow.
func (t *Teller) End(e Ending) {
	e.Problem = agent.Prose(clip.Line(string(e.Problem), maxText))
	if b, err := json.Marshal(e); err == nil {
		_, _ = fmt.Fprintf(t.pipe, "end %s\n", b)
	}
	_ = t.pipe.Close()
}

// word is one line that a candidate said.
type word struct {
	step   string
	ending *Ending
}

// listen sends what a candidate says until it is silent for good, and then closes the channel. It goes on reading, also
// what makes no sense, so that nobody waits for it.
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
