package controlrepo

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// kind is the kind of a token.
type kind int

const (
	word     kind = iota + 1 // a name, keyword, type or number
	variable                 // $x, without the $
	text                     // a string, or the part of a string between interpolations
	regex                    // between slashes
	symbol                   // everything else; @@, <<| and |>> are one each
)

// token is one piece of a manifest. Comments have no tokens.
type token struct {
	kind  kind
	text  string
	at    int  // offset in bytes
	whole bool // of a text: the complete string, without interpolation
	open  bool // of a text: an interpolation follows
}

// lexer splits a manifest like Puppet's lexer, as far as needed to separate code from text. It never fails: Puppet
// itself reports syntax errors.
type lexer struct {
	src      string
	pos      int
	tokens   []token
	heredocs []heredoc // begun on this line; their texts begin on the next one
	noSlash  bool      // no closing slash of a regular expression follows: do not search again
}

type heredoc struct {
	tag          string
	interpolated bool
}

// maxHeredocStart is the maximum size of the @(…) of a heredoc, in bytes.
const maxHeredocStart = 300

// maxNesting limits nested interpolations.
const maxNesting = 50

func lex(src string) []token {
	l := &lexer{src: src}
	l.code(0)
	return l.tokens
}

func (l *lexer) emit(t token) { l.tokens = append(l.tokens, t) }

func (l *lexer) rest() string { return l.src[l.pos:] }

var (
	wordForm     = regexp.MustCompile(`^(?:::)?[A-Za-z0-9_](?:[\w-]*\w)?(?:::[A-Za-z0-9_](?:[\w-]*\w)?)*`)
	variableForm = regexp.MustCompile(`^\$(?:::)?(?:\w+::)*\w+`)
	heredocForm  = regexp.MustCompile(`^@\([ \t]*("?)([^:/\r\n)"]+)"?[ \t]*(?::[^/\r\n)]*)?(?:/[^\r\n)]*)?\)`)
)

// code reads to the end or, within an interpolation, past its closing brace.
func (l *lexer) code(nesting int) {
	braces := 0
	for l.pos < len(l.src) {
		rest := l.rest()
		start := l.pos
		switch c := rest[0]; {
		case c == '\n':
			l.pos++
			l.bodies(nesting)
		case c == ' ' || c == '\t' || c == '\r':
			l.pos++
		case c == '#':
			l.skipTo("\n", 0)
		case strings.HasPrefix(rest, "/*"):
			l.pos += 2
			l.skipTo("*/", 2)
		case c == '\'':
			l.single()
		case c == '"':
			l.pos++
			l.double(`"`, nesting)
		case c == '/' && l.regexMayFollow():
			l.regex()
		case c == '$' && variableForm.MatchString(rest):
			name := variableForm.FindString(rest)
			l.pos += len(name)
			l.emit(token{kind: variable, text: name[1:], at: start})
		case strings.HasPrefix(rest, "@(") && heredocForm.MatchString(rest[:min(len(rest), maxHeredocStart)]):
			m := heredocForm.FindStringSubmatch(rest)
			l.pos += len(m[0])
			l.heredocs = append(l.heredocs, heredoc{strings.TrimSpace(m[2]), m[1] != ""})
			l.emit(token{kind: symbol, text: "@()", at: start})
		case wordForm.MatchString(rest):
			name := wordForm.FindString(rest)
			l.pos += len(name)
			l.emit(token{kind: word, text: name, at: start})
		default:
			l.symbol()
			switch {
			case c == '{':
				braces++
			case c == '}' && nesting > 0 && braces == 0:
				return
			case c == '}':
				braces--
			}
		}
	}
}

// skipTo moves past the first n bytes of the next occurrence of search, or to the end if there is none.
func (l *lexer) skipTo(search string, n int) {
	if i := strings.Index(l.rest(), search); i >= 0 {
		l.pos += i + n
		return
	}
	l.pos = len(l.src)
}

func (l *lexer) symbol() {
	for _, long := range []string{"<<|", "|>>", "@@", "<|", "|>", "=>", "+>", "::"} {
		if strings.HasPrefix(l.rest(), long) {
			l.emit(token{kind: symbol, text: long, at: l.pos})
			l.pos += len(long)
			return
		}
	}
	_, size := utf8.DecodeRuneInString(l.rest())
	l.emit(token{kind: symbol, text: l.rest()[:size], at: l.pos})
	l.pos += size
}

// single reads a single-quoted string. A backslash escapes the following quote.
func (l *lexer) single() {
	start := l.pos
	l.pos++
	for l.pos < len(l.src) && l.src[l.pos] != '\'' {
		if l.src[l.pos] == '\\' {
			l.pos++
		}
		l.pos++
	}
	end := min(l.pos, len(l.src))
	l.emit(token{kind: text, text: l.src[start+1 : end], at: start + 1, whole: true})
	l.pos = min(l.pos+1, len(l.src))
}

// double reads the rest of a string that ends with a quote: texts and the code of interpolations.
func (l *lexer) double(end string, nesting int) {
	start, whole := l.pos, true
	flush := func(open bool) {
		l.emit(token{kind: text, text: l.src[start:min(l.pos, len(l.src))], at: start, whole: whole && !open, open: open})
	}
	for l.pos < len(l.src) {
		rest := l.rest()
		switch {
		case strings.HasPrefix(rest, end):
			flush(false)
			l.pos += len(end)
			return
		case rest[0] == '\\':
			l.pos = min(l.pos+2, len(l.src))
		case strings.HasPrefix(rest, "${") && nesting < maxNesting:
			flush(true)
			whole = false
			l.emit(token{kind: symbol, text: "${", at: l.pos})
			l.pos += 2
			l.code(nesting + 1)
			start = l.pos
		case rest[0] == '$' && variableForm.MatchString(rest):
			flush(true)
			whole = false
			name := variableForm.FindString(rest)
			l.emit(token{kind: variable, text: name[1:], at: l.pos})
			l.pos += len(name)
			start = l.pos
		default:
			l.pos++
		}
	}
	flush(false)
}

// regexMayFollow distinguishes a regular expression from a division by the previous token, like Puppet.
func (l *lexer) regexMayFollow() bool {
	if len(l.tokens) == 0 {
		return true
	}
	switch t := l.tokens[len(l.tokens)-1]; t.kind {
	case word:
		return t.text == "node" || t.text == "in" || t.text == "and" || t.text == "or" || t.text == "case" || t.text == "if" ||
			t.text == "elsif" || t.text == "unless" || t.text == "default"
	case symbol:
		return t.text != ")" && t.text != "]" && t.text != "|>" && t.text != "|>>" && t.text != "@()"
	}
	return false
}

func (l *lexer) regex() {
	start := l.pos
	for i := start + 1; i < len(l.src) && !l.noSlash; i++ {
		switch l.src[i] {
		case '\\':
			i++
		case '/':
			l.emit(token{kind: regex, text: l.src[start+1 : i], at: start})
			l.pos = i + 1
			return
		}
	}
	l.noSlash = true
	l.symbol()
}

// bodies reads the texts of the heredocs that began on the previous line.
func (l *lexer) bodies(nesting int) {
	pending := l.heredocs
	l.heredocs = nil
	for _, h := range pending {
		end, after := l.heredocEnd(h.tag)
		if !h.interpolated || nesting >= maxNesting {
			l.emit(token{kind: text, text: l.src[l.pos:end], at: l.pos, whole: true})
			l.pos = after
			continue
		}
		inner := &lexer{src: l.src[:end], pos: l.pos, tokens: l.tokens}
		inner.heredocBody(nesting)
		l.tokens, l.pos = inner.tokens, after
	}
}

// heredocEnd finds the last line of a heredoc: its tag, optionally after a bar for the margin and a dash.
func (l *lexer) heredocEnd(tag string) (end, after int) {
	for at := l.pos; at < len(l.src); {
		line, _, _ := strings.Cut(l.src[at:], "\n")
		mark := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "|"))
		mark = strings.TrimSpace(strings.TrimPrefix(mark, "-"))
		if mark == tag {
			return at, at + len(line)
		}
		at += len(line) + 1
	}
	return len(l.src), len(l.src)
}

// heredocBody reads to the end of its source. Quotes do not end a heredoc.
func (l *lexer) heredocBody(nesting int) { l.double("\x00", nesting+1) }

// places converts offsets to lines and columns.
type places struct {
	src    string
	starts []int
}

func newPlaces(src string) places {
	p := places{src: src, starts: []int{0}}
	for i := range len(src) {
		if src[i] == '\n' {
			p.starts = append(p.starts, i+1)
		}
	}
	return p
}

// of returns line and column, both from 1. Columns count characters.
func (p places) of(offset int) (line, column int) {
	low, high := 0, len(p.starts)
	for high-low > 1 {
		if mid := (low + high) / 2; p.starts[mid] <= offset {
			low = mid
		} else {
			high = mid
		}
	}
	return low + 1, utf8.RuneCountInString(p.src[p.starts[low]:offset]) + 1
}
