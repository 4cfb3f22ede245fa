package shellquote

import (
	"os/exec"
	"testing"

	"pgregory.net/rapid"
)

func TestWordIsReadBackByShell(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": "''", "a-b/c.d": "a-b/c.d", "it's": `'it'\''s'`, "~": "'~'", "$HOME": "'$HOME'", "a b": "'a b'"} {
		if got := Word(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.StringMatching(`[ -~\t\n]{0,12}`), 1, 20).Draw(t, "words")
		out, err := exec.Command("sh", "-c", `printf '%s\0' `+Join(words)).Output()
		want := ""
		for _, w := range words {
			want += w + "\x00"
		}
		if err != nil || string(out) != want {
			t.Errorf("%q reads back as %q: %v", words, out, err)
		}
	})
}
