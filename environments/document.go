package environments

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"pulley/internal/model"
)

const (
	maxFileBytes = 4 << 20
	// maxLocateBytes limits the size of files in which Pulley searches for the line of an error. The search parses the
	// file several times.
	maxLocateBytes = 256 << 10
)

// document returns the content of the one YAML document in data, or nil after it reported the problem. what and holds
// are for messages: the kind of file, and the content it must have. Anchors, aliases, merge keys and tags are refused:
// in a file this small they hide more than they save, and a small file could expand to an enormous one.
func (p *parser) document(data []byte, what, holds string) *yaml.Node {
	if len(data) > maxFileBytes {
		p.problem(nil, "", "the file has %d bytes, at most %d are read", len(data), maxFileBytes)
		return nil
	}
	if !utf8.Valid(data) {
		p.notUTF8(data)
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	err := decodeNext(decoder, &doc)
	if errors.Is(err, io.EOF) || err == nil && doc.Content[0].Tag == "!!null" && doc.Content[0].Value == "" {
		p.problem(nil, "it must contain "+holds, "the file is empty")
		return nil
	}
	if err == nil {
		switch err = decodeNext(decoder, &second); {
		case err == nil:
			p.problem(&second, what+" is one file", "a second document begins here")
		case errors.Is(err, io.EOF):
			err = nil
		}
	}
	if err != nil {
		p.syntax(data, err)
		return nil
	}
	p.plain(doc.Content[0])
	return doc.Content[0]
}

// decodeNext reads the next document into n. yaml.v3 panics on some of its own bugs (mikefarah/yq#2481 is one):
// decodeNext returns them as errors.
func decodeNext(decoder *yaml.Decoder, n *yaml.Node) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("yaml: %v", fault)
		}
	}()
	return decoder.Decode(n)
}

// plain reports every anchor, alias, merge key and tag below n.
func (p *parser) plain(n *yaml.Node) {
	switch {
	case n.Kind == yaml.AliasNode:
		p.problem(n, "write the values out", "aliases (%s) are not supported", model.Quoted("*"+n.Value))
	case n.Anchor != "":
		p.problem(n, "leave it out", "anchors (%s) are not supported", model.Quoted("&"+n.Anchor))
	}
	switch {
	case n.Tag == "!!merge":
		p.problem(n, "write the keys out", "merge keys (<<) are not supported")
	case n.Style&yaml.TaggedStyle != 0:
		p.problem(n, "leave it out", "tags (%s) are not supported", model.Quoted(n.Tag))
	}
	for _, child := range n.Content {
		p.plain(child)
	}
}

// yamlError splits an error of yaml.v3 into line and message.
var yamlError = regexp.MustCompile(`(?s)^(?:yaml: )?(?:line (\d+): )?(.*)$`)

// syntaxHints explain the messages of yaml.v3 that are hard to understand.
var syntaxHints = map[string]string{
	"mapping values are not allowed in this context": "a colon needs a space after it, and keys that belong together the same indentation",
	"did not find expected key":                      "keys that belong together need the same indentation",
}

// syntax reports a YAML error at the first line that cannot be parsed.
func (p *parser) syntax(data []byte, err error) {
	line, cause := firstBadLine(data, err)
	text := bytes.Split(data, []byte("\n"))[line-1]
	indent := text[:len(text)-len(bytes.TrimLeft(text, " \t"))]
	if tab := bytes.IndexByte(indent, '\t'); tab >= 0 {
		p.problemAt(line, tab+1, "use spaces", "tabs can't indent YAML")
		return
	}
	if name, unknown := strings.CutPrefix(cause, "unknown anchor '"); unknown {
		p.problemAt(line, len(indent)+1, "write the values out", "aliases (%s) are not supported",
			model.Quoted("*"+strings.TrimSuffix(name, "' referenced")))
		return
	}
	p.problemAt(line, len(indent)+1, syntaxHints[cause], "this is not YAML: %s", cause)
}

// firstBadLine returns the cause of err and the number of the first bad line, from 1. The line that yaml.v3 gives is
// often that of an enclosing block, one too low, or missing. Parsing only goes forward: any text that ends after the
// bad line fails with the same error, and a binary search finds it.
func firstBadLine(data []byte, err error) (int, string) {
	cause := causeOf(err)
	var ends []int
	for i, b := range data {
		if b == '\n' {
			ends = append(ends, i+1)
		}
	}
	if len(data) > maxLocateBytes {
		line, _ := strconv.Atoi(yamlError.FindStringSubmatch(err.Error())[1])
		return min(max(line, 1), len(ends)+1), cause
	}
	return 1 + sort.Search(len(ends), func(i int) bool {
		decoder := yaml.NewDecoder(bytes.NewReader(data[:ends[i]]))
		for {
			if err := decodeNext(decoder, new(yaml.Node)); err != nil {
				return causeOf(err) == cause
			}
		}
	}), cause
}

func causeOf(err error) string { return yamlError.FindStringSubmatch(err.Error())[2] }

func (p *parser) notUTF8(data []byte) {
	at := 0
	for at < len(data) {
		r, size := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		at += size
	}
	hint := "save the file as UTF-8"
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		hint = "it looks like UTF-16: save the file as UTF-8"
	}
	line := bytes.Count(data[:at], []byte("\n")) + 1
	column := utf8.RuneCount(data[bytes.LastIndexByte(data[:at], '\n')+1:at]) + 1
	p.problemAt(line, column, hint, "byte %#02x is not UTF-8", data[at])
}
