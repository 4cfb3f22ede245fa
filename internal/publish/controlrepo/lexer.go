package controlrepo

import (
	"regexp"
	"strings"
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
	blankForm    = regexp.MustCompile(`^(?:[ \t\r]+|#[^\n]*|/\*(?s:.*?)(?:\*/|\z))`)
	variableForm = regexp.MustCompile(`^\$((?:::)?(?:\w+::)*\w+)`)
	regexForm    = regexp.MustCompile(`^/((?s:[^/\\]|\\.)*)/`)
	heredocForm  = regexp.MustCompile(`^@\([ \t]*("?)([^:/\r\n)"]+)"?[ \t]*(?::[^/\r\n)]*)?(?:/[^\r\n)]*)?\)`)
)

// forms are the tokens that one pattern finds. The first one that matches is used.
var forms = []struct {
	kind kind
	form *regexp.Regexp
}{
	{text, regexp.MustCompile(`^'((?s:[^'\\]|\\.)*)'?`)},
	{variable, variableForm},
	{word, regexp.MustCompile(`^((?:::)?[A-Za-z0-9_](?:[\w-]*\w)?(?:::[A-Za-z0-9_](?:[\w-]*\w)?)*)`)},
	{symbol, regexp.MustCompile(`^(<<\||\|>>|@@|<\||\|>|=>|\+>|::|(?s:.))`)},
}

// code reads to the end or, within an interpolation, past its closing brace.
func (l *lexer) code(nesting int) {
	braces := 0
	for l.pos < len(l.src) {
		rest := l.rest()
		blank := len(blankForm.FindString(rest))
		switch c := rest[0]; {
		case blank > 0:
			l.pos += blank
		case c == '\n':
			l.pos++
			l.bodies(nesting)
		case c == '"':
			l.pos++
			l.double(`"`, nesting)
		case c == '/' && l.regexMayFollow() && l.regex():
		case strings.HasPrefix(rest, "@(") && heredocForm.MatchString(rest[:min(len(rest), maxHeredocStart)]):
			m := heredocForm.FindStringSubmatch(rest)
			l.heredocs = append(l.heredocs, heredoc{strings.TrimSpace(m[2]), m[1] != ""})
			l.emit(token{kind: symbol, text: "@()", at: l.pos})
			l.pos += len(m[0])
		default:
			l.token()
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

// token reads a token of one of the forms. The place of a string is that of its text.
func (l *lexer) token() {
	for _, f := range forms {
		m := f.form.FindStringSubmatch(l.rest())
		if m == nil {
			continue
		}
		t := token{kind: f.kind, text: m[1], at: l.pos, whole: f.kind == text}
		if f.kind == text {
			t.at++
		}
		l.emit(t)
		l.pos += len(m[0])
		return
	}
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
			l.token()
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

// regex reads a regular expression, if a closing slash follows.
func (l *lexer) regex() bool {
	if l.noSlash {
		return false
	}
	m := regexForm.FindStringSubmatch(l.rest())
	if m == nil {
		l.noSlash = true
		return false
	}
	l.emit(token{kind: regex, text: m[1], at: l.pos})
	l.pos += len(m[0])
	return true
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
		inner.double("\x00", nesting+1) // quotes do not end a heredoc
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
