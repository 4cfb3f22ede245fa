package clip

import (
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestTextKeepsLimitAndCharacters(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text  string
		limit int
		want  string
	}{
		{"", 10, ""}, {"short", 5, "short"}, {"shorter", 6, "sho…"}, {"größer", 6, "gr…"}, {"größer", 7, "grö…"},
		{"a\xffb", 10, "a?b"}, {"日本語", 9, "日本語"}, {"日本語", 8, "日…"},
	} {
		if got := Text(c.text, c.limit); got != c.want {
			t.Errorf("%q in %d bytes: %q, want %q", c.text, c.limit, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text, limit := string(rapid.SliceOf(rapid.Byte()).Draw(t, "text")), rapid.IntRange(3, 40).Draw(t, "limit")
		for _, got := range []string{Text(text, limit), Line(text, limit)} {
			if len(got) > limit || !utf8.ValidString(got) {
				t.Errorf("%q in %d bytes: %q", text, limit, got)
			}
		}
	})
}

func TestLineHasNoControlCharacters(t *testing.T) {
	t.Parallel()
	if got, want := Line("a\nb\x1b[31m\tc\u202e", 40), "a b [31m c "; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestHeadKeepsTheBeginning(t *testing.T) {
	t.Parallel()
	head := &Head{Limit: 5}
	for _, s := range []string{"one", "two ", "three"} {
		if n, err := head.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	if got := head.String(); got != "onetw" {
		t.Errorf("%q", got)
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	t.Parallel()
	tail := &Tail{Limit: 5}
	for _, s := range []string{"one\n", "two ", "three\n"} {
		if n, err := tail.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	if got := tail.String(); got != "hree" {
		t.Errorf("%q", got)
	}
}
