package puppet

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"pulley/internal/bounded"
	"pulley/internal/clip"
	"pulley/internal/model"
	"pulley/internal/pattern"
)

// maxConsole limits the part of Puppet's output that is kept in memory, from the end, in bytes.
const maxConsole = 256 << 10

// console is Puppet's standard output and error.
type console struct {
	read     bool            // the output was read to its end; otherwise a missing line proves nothing
	compiled bool            // a catalog was compiled, anywhere in the output
	applying bool            // a catalog of a server was applied, at least in part
	ended    bool            // its last words are those of a Puppet that a signal ended; they explain a failure, and prove none
	lines    []model.LogLine // of the last 256 KiB
	stray    []int           // indices of lines that are output of something else, such as a fact
}

// levels are Puppet's prefixes on the console (puppet/util/log/destinations.rb).
var levels = map[string]string{
	"Debug": "debug", "Info": "info", "Notice": "notice", "Warning": "warning",
	"Error": "err", "Alert": "alert", "Emergency": "emerg", "Critical": "crit",
}

// compiledLine is a notice that puppet apply prints after the compilation and before any change.
const compiledLine = "Notice: Compiled catalog for "

var (
	// The last line of puppet apply, or a line of puppet agent. Facts and the commands of a catalog can print the same.
	signalLine  = pattern.Lazy(`(^|\n)(Error: Could not run: SIG[A-Z]+\s*$|Exiting\s*$|Notice: Caught (TERM|INT); exiting\n)`)
	levelPrefix = pattern.Lazy(`^(Debug|Info|Notice|Warning|Error|Alert|Emergency|Critical): (.*)$`)
	colour      = pattern.Lazy("\x1b\\[[0-9;]*m")
)

// readConsole reads the output of a run. It searches all of it for a catalog, and keeps the last part.
func readConsole(path string) console {
	f, err := bounded.Open(path)
	if err != nil {
		return console{}
	}
	defer f.Close()
	c := console{}
	for word, found := range map[string]*bool{compiledLine: &c.compiled, applyingLine: &c.applying} {
		if _, err = f.Seek(0, io.SeekStart); err == nil {
			*found, err = contains(f, []byte(word))
		}
		if err != nil {
			return console{compiled: c.compiled, applying: c.applying}
		}
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = f.Seek(max(size-maxConsole, 0), io.SeekStart)
	}
	if err != nil {
		return console{compiled: c.compiled, applying: c.applying}
	}
	tail, err := io.ReadAll(io.LimitReader(f, maxConsole))
	c.read = err == nil
	if size > maxConsole { // start with a complete line
		_, tail, _ = bytes.Cut(tail, []byte("\n"))
	}
	c.ended = signalLine().Match(tail)
	c.lines, c.stray = parseConsole(tail)
	return c
}

// contains searches r for word without storing all of r, even if lines are very long.
func contains(r io.Reader, word []byte) (bool, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	for {
		window, err := b.Peek(b.Size())
		if bytes.Contains(window, word) {
			return true, nil
		}
		if err == io.EOF {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		_, _ = b.Discard(len(window) - len(word) + 1)
	}
}

// parseConsole splits Puppet's output into log lines. A line without a level belongs to the message before it. Text
// before the first message, and between messages of Facter, is stray: output of a fact, or an error of Ruby or of the
// shell. It is an error only if Puppet reports none. stray has the indices of its lines.
func parseConsole(text []byte) (lines []model.LogLine, stray []int) {
	diff := false
	for raw := range strings.Lines(strings.ToValidUTF8(string(text), "\uFFFD")) {
		raw = strings.TrimRight(colour().ReplaceAllString(raw, ""), "\r\n")
		raw = encryptedValue().ReplaceAllString(raw, "ENC[…]") // else the cause, which follows it, would be cut off
		m := levelPrefix().FindStringSubmatch(raw)
		last := len(lines) - 1
		switch {
		case m != nil:
			diff = false
			lines = append(lines, model.LogLine{Level: levels[m[1]], Message: m[2]})
		case strings.TrimSpace(raw) == "":
		case last < 0 || strings.HasPrefix(lines[last].Message, facterPrefix) && !slices.Contains(stray, last):
			stray = append(stray, len(lines))
			lines = append(lines, model.LogLine{Level: "err", Message: raw})
		case strings.HasPrefix(raw, "--- ") || diff && strings.IndexAny(raw, "+-@ \\") == 0:
			diff = true // of show_diff: only the report tells whose file it is, and whether everybody may read it
		case len(lines[last].Message) <= maxMessage:
			lines[last].Message += "\n" + raw
		}
	}
	blamed := false
	for i := range lines {
		lines[i].Message = clip.Text(lines[i].Message, maxMessage)
		blamed = blamed || isError(lines[i]) && !slices.Contains(stray, i)
	}
	for _, i := range stray {
		if blamed {
			lines[i].Level = "notice"
		}
	}
	return lines, stray
}

// facterPrefix begins the messages of Facter.
const facterPrefix = "Facter: "

func (c *console) relative(rel *strings.Replacer) {
	for i := range c.lines {
		c.lines[i].Message = rel.Replace(c.lines[i].Message)
	}
}

// refused reports whether the output proves that no catalog was compiled. The output must be complete, without a
// catalog and without a signal, and it must contain an error. The last condition excludes output that a full disk cut
// off.
func (c *console) refused() bool {
	return c.read && !c.compiled && !c.ended && c.firstError() != ""
}

// firstError returns the error that stopped a compilation: later ones are noise. lastError returns the error that ended
// an applied run.
func (c *console) firstError() string {
	for _, line := range c.lines {
		if isError(line) {
			return line.Message
		}
	}
	return ""
}

func (c *console) lastError() string {
	for _, line := range slices.Backward(c.lines) {
		if isError(line) {
			return line.Message
		}
	}
	return ""
}

// isError excludes Facter: it reports every fact that it could not determine as an error.
func isError(line model.LogLine) bool {
	switch line.Level {
	case "err", "alert", "emerg", "crit":
		return !strings.HasPrefix(line.Message, facterPrefix)
	}
	return false
}

// limited keeps at most limit lines in their order, of which cut were removed before. It prefers errors, and then later lines.
func limited(lines []model.LogLine, limit, cut int) []model.LogLine {
	if len(lines) <= limit && cut == 0 {
		return lines
	}
	room := limit - 1 // for the line about removed lines
	keep := make([]bool, len(lines))
	for _, wanted := range []bool{true, false} {
		for i := len(lines) - 1; i >= 0 && room > 0; i-- {
			if (lines[i].Level == "err") == wanted {
				keep[i] = true
				room--
			}
		}
	}
	out := []model.LogLine{{Level: "notice", Message: fmt.Sprintf("%d lines are left out here; Puppet's own report has them", max(len(lines)-limit+1, 0)+cut)}}
	for i, line := range lines {
		if keep[i] {
			out = append(out, line)
		}
	}
	return out
}
