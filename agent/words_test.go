package agent

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"pulley/internal/model"
)

// codes returns the constants of a type from the source: each new one needs a sentence.
func codes(t *testing.T, file, kind string) (found []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			if typ, ok := v.Type.(*ast.Ident); ok && typ.Name == kind {
				s, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				found = append(found, s)
			}
		}
		return true
	})
	if len(found) == 0 {
		t.Fatalf("%s has no %s", file, kind)
	}
	return found
}

// Operators need a sentence and a documentation page for every code.
func TestEveryCodeHasASentenceAndIsDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/json.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file, kind string
		sentence   func(code string) string
	}{
		{"../internal/model/reason.go", "Reason", func(code string) string { return model.Cause{Reason: model.Reason(code)}.Sentence() }},
		{"../internal/model/reason.go", "ProblemCode", func(code string) string {
			return model.Problem{Code: model.ProblemCode(code), Text: "no space"}.String()
		}},
		{"../internal/model/reason.go", "BlockCode", func(code string) string {
			return string((&model.Blocked{Code: model.BlockCode(code), Text: "no space"}).Words())
		}},
		{"../internal/model/decide.go", "Question", func(code string) string { return model.Question(code).String() }},
	} {
		for _, code := range codes(t, c.file, c.kind) {
			if s := c.sentence(code); s == "" || strings.Contains(s, "_") || strings.HasPrefix(s, code+":") {
				t.Errorf("%s %s has the sentence %q", c.kind, code, s)
			}
			if !strings.Contains(string(page), "`"+code+"`") {
				t.Errorf("docs/json.md does not name the %s %s", c.kind, code)
			}
		}
	}
}

// An older pulley must show a newer agent's code, not an empty text.
func TestUnknownCodeIsPrinted(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"moon_phase: new moon": model.Cause{Reason: "moon_phase", Params: model.Params{Text: "new moon"}}.Sentence(),
		"moon_phase":           model.Problem{Code: "moon_phase"}.String(),
		"moon_question":        model.Question("moon_question").String(),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
