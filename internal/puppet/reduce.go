package puppet

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"pulley/internal/bounded"
)

// The limits of a report that is read as a whole, and of the parts that are read of a larger one.
const (
	maxWhole   = 8 << 20   // bytes, also of all that is neither log nor resources
	maxPart    = 256 << 10 // bytes of a line of the log or of a resource
	maxOfAKind = 1000      // lines or resources of one kind
	maxKind    = 2 << 20   // bytes of them
)

// reduced is what a large report becomes: the parts that Pulley uses, and the numbers of those that it leaves out.
type reduced struct {
	text                   []byte
	lines, resources, noop int  // left out
	ended                  bool // by the end of a line
}

// reduceReport reads a report of any size, as Puppet's YAML library writes it: the keys of the report stand at the beginning of a line, as
// do the items of its log, and its resources are indented by two blanks. Of a large report it keeps errors, dependencies and the last lines
// of the log, and the first resources of each status. Its memory does not grow with the report.
func reduceReport(r io.Reader) (out reduced, err error) {
	in := bufio.NewReaderSize(r, 64<<10)
	head, err := in.Peek(1)
	if len(head) == 0 {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return out, err
	}
	whole, err := io.ReadAll(io.LimitReader(in, maxWhole+1))
	if err != nil || len(whole) <= maxWhole {
		out.text, out.ended = whole, bytes.HasSuffix(whole, []byte("\n"))
		return out, err
	}
	parts := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(whole), in), 64<<10)
	var rest, part []byte // all other keys; the item in progress
	var errs, linked, last kept
	resources := map[string]*kept{"failed": {}, "failed_to_restart": {}, "skipped": {}, "changed": {}, "noop": {}, "unchanged": {}}
	section, large, seen := "", false, map[string]bool{}
	finish := func() {
		item := bytes.Clone(part)
		kind := kindOf(item)
		switch {
		case len(item) == 0 && !large:
		case section == "logs:" && large:
			out.lines++
		case section == "logs:" && bytes.HasPrefix(item, []byte("- level: err\n")) && errs.add(item):
		case section == "logs:" && bytes.Contains(item, []byte("failed dependencies")) && linked.add(item):
		case section == "logs:":
			out.lines += last.push(item)
		case kind == "unchanged" && (len(resources[kind].parts) > 0 || !bytes.Contains(item, []byte("\n    - Node[")) || bytes.HasPrefix(item, []byte("  Notify["))):
		case large || !resources[kind].add(item):
			if kind == "noop" {
				out.noop++
			}
			if kind != "skipped" {
				out.resources++
			}
		}
		part, large = part[:0], false
	}
	for begins := true; ; { // begins: the next bytes begin a line
		line, err := parts.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return out, err
		}
		if begins && len(line) > 0 {
			top := line[0] != ' ' && line[0] != '-' && line[0] != '\n' && line[0] != '#'
			item := section == "logs:" && line[0] == '-' ||
				section == "resource_statuses:" && len(line) > 2 && line[0] == ' ' && line[1] == ' ' && line[2] != ' ' && line[2] != ':'
			if top || item {
				finish()
			}
			if top {
				section = string(bytes.TrimRight(line, "\r\n"))
				seen[section] = true
			}
		}
		begins = err == nil
		switch inList := section == "logs:" || section == "resource_statuses:"; {
		case inList && string(bytes.TrimRight(line, "\r\n")) == section: // written below
		case inList && len(part)+len(line) > maxPart:
			large = true
		case inList:
			part = append(part, line...)
		case len(rest)+len(line) > maxWhole:
			return out, &bounded.TooLargeError{Limit: maxWhole}
		default:
			rest = append(rest, line...)
		}
		if errors.Is(err, io.EOF) {
			finish()
			out.ended = len(line) == 0
			break
		}
	}
	out.text = append(rest, '\n')
	if seen["logs:"] {
		out.text = slices.Concat(out.text, []byte("logs:\n"), bytes.Join(slices.Concat(errs.parts, linked.parts, last.parts), nil))
	}
	if seen["resource_statuses:"] {
		out.text = append(out.text, "resource_statuses:\n"...)
		before := len(out.text)
		for _, kind := range slices.Sorted(maps.Keys(resources)) {
			out.text = append(out.text, bytes.Join(resources[kind].parts, nil)...)
		}
		if len(out.text) == before {
			out.text = append(out.text, "  {}\n"...)
		}
	}
	return out, nil
}

// kept are the parts of a report of one kind.
type kept struct {
	parts [][]byte
	size  int
}

// add keeps a part if there is room.
func (k *kept) add(part []byte) bool {
	if len(k.parts) >= maxOfAKind || k.size+len(part) > maxKind {
		return false
	}
	k.parts, k.size = append(k.parts, part), k.size+len(part)
	return true
}

// push keeps a part, and returns how many older ones made room for it.
func (k *kept) push(part []byte) (gone int) {
	k.parts, k.size = append(k.parts, part), k.size+len(part)
	for ; len(k.parts) > maxOfAKind || k.size > maxKind; gone++ {
		k.parts, k.size = k.parts[1:], k.size-len(k.parts[0])
	}
	return gone
}

// kindOf returns the status of a resource in the text of a report.
func kindOf(resource []byte) string {
	for _, kind := range []string{"failed", "failed_to_restart", "skipped", "changed"} {
		if bytes.Contains(resource, fmt.Appendf(nil, "\n    %s: true\n", kind)) {
			return kind
		}
	}
	if bytes.Contains(resource, []byte("\n      status: noop\n")) {
		return "noop"
	}
	return "unchanged"
}
