package preview

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"pulley/internal/cli"
	"pulley/internal/clip"
	"pulley/internal/model"
)

// Limits of the printed page. The JSON has everything.
const (
	maxNames    = 8   // of nodes in one line
	maxLines    = 40  // of one variant
	maxLine     = 300 // bytes
	maxVariants = 3   // of one change
)

// Print writes the page for people. It prints at most limit changes; 0: all.
func (p Page) Print(w io.Writer, limit int, wait time.Duration) {
	what := p.Release
	switch {
	case p.Release == "":
		what = fmt.Sprintf("data %d", p.Data)
	case p.Data != 0:
		what += fmt.Sprintf(" with data %d", p.Data)
	}
	cli.Cleanf(w, "preview of %s in %s: %s, %d answered; no node was changed\n", what, p.Environment, cli.Count(len(p.Nodes), "node"), len(p.Nodes)-p.Count(NoReply))
	p.printFailures(w)
	p.printChanges(w, limit)
	p.printNodes(w, wait)
	p.printLeft(w, limit)
}

func (p Page) printFailures(w io.Writer) {
	for i, f := range p.Failures {
		if i == 0 {
			fmt.Fprint(w, "\nFAILURES\n")
		}
		cli.Cleanf(w, "  %s, on %s: %s\n", age(f.New), cli.Count(len(f.Nodes), "node"), names(f.Nodes))
		printLines(w, indented("    ", f.Problem.String()))
	}
}

// age tells whether a failure is one of the candidate, or one that the nodes have already.
func age(isNew bool) string {
	if isNew {
		return "new"
	}
	return "already failing"
}

var headings = map[string]string{"failed": "RESOURCES THAT FAIL", "skipped": "RESOURCES THAT ARE SKIPPED", "noop": "CHANGES"}

func (p Page) printChanges(w io.Writer, limit int) {
	last := ""
	for i, c := range p.Changes {
		if limit > 0 && i == limit {
			break
		}
		if c.Status != last {
			fmt.Fprintf(w, "\n%s\n", headings[c.Status])
			last = c.Status
		}
		prefix, place := "", ""
		if c.Status == "failed" {
			prefix = age(c.New) + ": "
		}
		if c.File != "" {
			place = fmt.Sprintf("  (%s:%d)", c.File, c.Line)
		}
		cli.Cleanf(w, "  %s%s on %s: %s%s\n", prefix, c.Resource, cli.Count(len(c.Nodes), "node"), names(c.Nodes), place)
		for j, v := range c.Variants {
			if j == maxVariants {
				fmt.Fprintf(w, "    and %s; -o json shows them\n", cli.Count(len(c.Variants)-j, "other variant"))
				break
			}
			if len(c.Variants) > 1 {
				cli.Cleanf(w, "    on %s: %s\n", cli.Count(len(v.Nodes), "node"), names(v.Nodes))
			}
			v.print(w)
		}
	}
}

func (v Variant) print(w io.Writer) {
	var all []string
	for _, c := range v.Properties {
		if c.Property == "content" && v.Diff != "" {
			continue // the diff shows it
		}
		all = append(all, fmt.Sprintf("    %s: %s → %s", c.Property, short(c.Old), short(c.New)))
	}
	for _, m := range v.Messages {
		all = append(all, indented("    ", m)...)
	}
	all = append(all, indented("      ", v.Diff)...)
	printLines(w, all)
	if v.Cut {
		fmt.Fprint(w, "      the diff is cut: it exceeds the limits of an answer\n")
	}
	if v.Hidden {
		fmt.Fprint(w, "      the diff is left out: not every user of the machine may read the file\n")
	}
}

// digest is a value of a property of file that nobody reads in full.
var digest = regexp.MustCompile(`^\{(sha\d+|md5)\}[0-9a-f]{32,}$`)

func short(value string) string {
	switch {
	case value == "":
		return "(none)"
	case digest.MatchString(value):
		return value[:strings.Index(value, "}")+9] + "…"
	}
	return value
}

func (p Page) printNodes(w io.Writer, wait time.Duration) {
	var same []string
	for _, r := range p.Nodes {
		if r.State == Looked && r.Changes == 0 {
			same = append(same, r.Node)
		}
	}
	if len(same) > 0 {
		cli.Cleanf(w, "\nWITHOUT CHANGES\n  %s: %s\n", cli.Count(len(same), "node"), names(same))
	}
	head := false
	for _, r := range p.Nodes {
		var text string
		switch {
		case r.State == NotRun:
			text = r.Cause.Sentence()
		case r.State == NoReply && r.Problem != (model.Problem{}):
			text = r.Problem.String()
		case r.State == NoReply && r.away:
			text = r.Cause.Sentence()
		case r.State == NoReply:
			text = "no answer within " + cli.Duration(wait) + "; at its last report: " + r.Cause.Sentence()
		default:
			continue
		}
		if !head {
			fmt.Fprint(w, "\nNOT SHOWN\n")
			head = true
		}
		cli.Cleanf(w, "  %s: %s\n", r.Node, clip.Line(text, 500))
	}
}

// printLeft names what the page leaves out, and why.
func (p Page) printLeft(w io.Writer, limit int) {
	var all []string
	if more := len(p.Changes) - limit; limit > 0 && more > 0 {
		all = append(all, fmt.Sprintf("%s: --limit 0 shows them", cli.Count(more, "more resource")))
	}
	left, of, secret := 0, 0, []string{}
	for _, r := range p.Nodes {
		if r.Left > 0 {
			left, of = left+r.Left, of+1
		}
		if r.NoDiffs {
			secret = append(secret, r.Node)
		}
	}
	if left > 0 {
		all = append(all, fmt.Sprintf("%s of %s: an answer has at most 32 KiB", cli.Count(left, "resource"), cli.Count(of, "node")))
	}
	if len(secret) > 0 {
		all = append(all, fmt.Sprintf("all diffs of %s, whose release or data has secrets: %s", cli.Count(len(secret), "node"), names(secret)))
	}
	if p.NotChosen > 0 {
		all = append(all, fmt.Sprintf("%s of the selection, which ran no preview: --sample 0 takes all", cli.Count(p.NotChosen, "node")))
	}
	for i, text := range all {
		if i == 0 {
			fmt.Fprint(w, "\nLEFT OUT\n")
		}
		cli.Cleanf(w, "  %s\n", text)
	}
}

// indented returns the lines of a text of a node.
func indented(indent, text string) (lines []string) {
	text = strings.Trim(text, "\n")
	if text == "" {
		return nil
	}
	for line := range strings.SplitSeq(text, "\n") {
		lines = append(lines, indent+line)
	}
	return lines
}

func printLines(w io.Writer, lines []string) {
	for _, line := range lines[:min(len(lines), maxLines)] {
		fmt.Fprintln(w, clip.Text(cli.Clean(line), maxLine))
	}
	if more := len(lines) - maxLines; more > 0 {
		fmt.Fprintf(w, "      … %s; -o json shows them\n", cli.Count(more, "more line"))
	}
}

// names lists nodes in one line.
func names(nodes []string) string {
	shown := slices.Clone(nodes[:min(len(nodes), maxNames)])
	if more := len(nodes) - len(shown); more > 0 {
		shown = append(shown, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(shown, ", ")
}

// Sentence renders the result of one node in one line.
func (r NodeResult) Sentence() string {
	switch r.State {
	case Looked:
		return r.Node + " would change " + cli.Count(r.Changes, "resource")
	case Failed:
		return r.Node + " fails: " + clip.Line(r.Problem.String(), 300)
	case NotRun:
		return r.Node + " did not run it: " + clip.Line(r.Cause.Sentence(), 300)
	}
	return r.Node + " did not answer"
}
