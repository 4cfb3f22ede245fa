package join

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// reasons lists the constants of refusal.go.
func reasons(t *testing.T) (all []Reason) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "refusal.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			if kind, ok := v.Type.(*ast.Ident); ok && kind.Name == "Reason" {
				text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, Reason(text))
			}
		}
		return true
	})
	return all
}

// Without a sentence for a code, an operator needs the source to understand it.
func TestEachReasonHasASentence(t *testing.T) {
	t.Parallel()
	all := reasons(t)
	if len(all) < 30 {
		t.Fatalf("only %d reasons are found", len(all))
	}
	seen := map[string]Reason{}
	code := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	for _, r := range all {
		text := sentence(r, Params{})
		if text == string(r) || !strings.Contains(text, " ") || !code.MatchString(string(r)) {
			t.Errorf("%s has the sentence %q", r, text)
		}
		if other, taken := seen[text]; taken {
			t.Errorf("%s and %s have the same sentence %q", r, other, text)
		}
		seen[text] = r
	}
}

// An older agent must show a newer server's code instead of nothing.
func TestUnknownReasonRendersAsItself(t *testing.T) {
	t.Parallel()
	var e RefusedError
	if err := json.Unmarshal([]byte(`{"reason":"moon_phase","params":{"phase":"full"}}`), &e); err != nil {
		t.Fatal(err)
	}
	if got := e.Error(); got != "pulley serve refuses: moon_phase" || e.Hint() != "" {
		t.Errorf("it renders as %q with the hint %q", got, e.Hint())
	}
}

func TestRefusalTravelsAsCode(t *testing.T) {
	t.Parallel()
	e := RefusedError{Reason: WasRemoved, Params: Params{Node: "web1", At: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC), By: "ann", Why: "sold"}}
	b, err := json.Marshal(e)
	if want := `{"reason":"removed","params":{"node":"web1","at":"2026-11-22T12:00:00Z","by":"ann","why":"sold"}}`; err != nil || string(b) != want {
		t.Errorf("it travels as %s (%v), want %s", b, err, want)
	}
	if want := "pulley serve refuses: this node was removed from the fleet: web1 at 2026-11-22T12:00:00Z by ann: sold"; e.Error() != want {
		t.Errorf("it renders as %q, want %q", e.Error(), want)
	}
}
