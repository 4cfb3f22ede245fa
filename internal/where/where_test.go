package where

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// values are those of a node with facts.
func values(t testing.TB) map[string]any {
	t.Helper()
	v := map[string]any{"node": "web1", "role": "web", "environment": "dev", "stack": "", "registered": true, "state": "converged", "release": "1.4.0", "data": 7}
	var facts map[string]any
	if err := json.Unmarshal([]byte(`{"os":{"family":"Debian","release":{"full":"12.7","major":"12"}},"processors":{"count":4,"models":["a","b"]},"is_virtual":true,"role":"x",
		"disks":{"sda":{"size":10}},"name":"\"; rm -rf /"}`), &facts); err != nil {
		t.Fatal(err)
	}
	v["facts"] = facts
	for name, value := range facts {
		if !IsVariable(name) {
			v[name] = value
		}
	}
	return v
}

// A selection that misses nodes, or has others, changes the wrong machines.
func TestExpressionsSelect(t *testing.T) {
	for text, want := range map[string]bool{
		`os.family == "Debian" && release != "1.5.0"`: true, `os.family == "RedHat"`: false, `os.release.major in ["11", "12"]`: true, `processors.count >= 4`: true,
		`is_virtual`: true, `not is_virtual`: false, `role == "web"`: true, `facts.role == "x"`: true, `facts["os"].family startsWith "Deb"`: true, `os?.family == "Debian"`: true,
		`"a" in processors.models`: true, `processors.models[1] == "b"`: true, `state == "converged" and data > 6`: true, `stack == ""`: true,
		`name contains "rm -rf"`: true, `os.release.full matches "^12[.]"`: true, `len(processors.models) == 2`: true, `let f = os.family; f == "Debian"`: true,
		// what the node lacks is nil
		`nought == nil`: true, `nought.such.fact == nil`: true, `nought.such.fact == "x"`: false, `os.none.such != "x"`: true, `facts.none.x == nil`: true, `facts["none"]["x"] == nil`: true,
		`nought[3].x == nil`: true, `trusted.extensions.pp_role == "web"`: false, `"os" in facts`: true,
	} {
		e, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := e.Matcher().Matches(t.Context(), values(t)); err != nil || got != want {
			t.Errorf("%s is %t, want %t (%v)", text, got, want, err)
		}
	}
}

// A node without a number must not stop the command, and must not be selected.
func TestValuesOfOtherTypesSelectNothing(t *testing.T) {
	for _, text := range []string{`nought > 3`, `not (nought > 3)`, `os > 3`, `os.family.x.y > 1`, `nought startsWith "x"`, `processors.models[7] == "a"`, `nought`, `os.family`, `len(nought) > 0`} {
		e, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := e.Matcher().Matches(t.Context(), values(t)); got || err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%s is %t, %v", text, got, err)
		}
	}
}

// The place of a mistake and the names are what a user needs.
func TestMistakesAreShown(t *testing.T) {
	for text, want := range map[string]string{
		`os.family = "Debian"`: "column 11: ", `os.family ==`: "column 1", `state > 3`: "column 7: ", `state`: "bool", `"`: "column ", ``: "column ", `role.x == 1`: "column ", `nosuch(1)`: "column ",
		strings.Repeat("a", 5000): "more than 4096", strings.Repeat("a+", 1500) + "a == 1": "exceeds", strings.Repeat("(", 3000): "cannot read",
	} {
		_, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "cannot read the expression: ") {
			t.Errorf("%.60s: %v", text, err)
			continue
		}
		if !strings.Contains(want, "more than") && !strings.Contains(err.Error(), "\nits names are node, role, environment, ") {
			t.Errorf("%.60s does not list the names: %v", text, err)
		}
	}
}

// An expression of facts alone must not cost the statuses of the fleet, and must decode no other fact.
func TestExpressionsKnowWhatTheyRead(t *testing.T) {
	for text, want := range map[string]string{
		`os.family == "x" && facts.kernel == "y"`: "kernel os", `role == "x"`: "", `release == "x"`: "judged", `"os" in facts`: "all", `facts[role] == 1`: "all",
		`let f = os; f.x == kernel`: "kernel os", `facts == nil && facts.os == 1`: "all os", `facts["a b"] == os`: "a b os", `all(["os"], facts[#] != nil)`: "all", `state == "x" || facts.role == "x"`: "judged role",
	} {
		e, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		names, all := e.Facts()
		got := strings.Join(names, " ")
		if all {
			got = strings.TrimSpace("all " + got)
		}
		if e.Judged() {
			got = strings.TrimSpace("judged " + got)
		}
		if got != want {
			t.Errorf("%s reads %q, want %q", text, got, want)
		}
	}
}

// A loop in an expression must not hold an operator's terminal, or a processor of serve, for hours: its goroutine ends.
func TestEvaluationEnds(t *testing.T) {
	t.Parallel()
	many := map[string]any{"many": make([]any, 700), "text": strings.Repeat("x", 16<<10)}
	for _, text := range []string{
		`all(many, all(many, all(many, all(many, true))))`,
		`count(many, len(filter(many, none(many, sum(many, 1) == 0))) == 5) == 5`,
		`len(sortBy(many, len(groupBy(many, len(map(many, 1)))))) > 0`,
		`reduce(1..60, #acc + #acc, "text") == ""`,
		`let a = reduce(1..18, #acc + #acc, "text"); len(map(many, a + a)) > 0`,
		`let a = map(1..900, many); len(map(1..900, a)) > 0`,
		`let a = reduce(1..60, [#acc, #acc], many); a == a`,
		`reduce(1..60, ({"a": #acc, "b": #acc}), many) == nil`,
		`reduce(1..60, concat(#acc, #acc), many) == nil`,
		`len(reduce(1..60, toJSON(#acc), "\"")) > 0`,
		`len(reduce(1..90, toBase64(#acc), "text")) > 0`,
		`all(1..2000, len(split(text, "")) > 0)`,
		`let a = map(1..900, text); len(map(1..900, string(a))) > 0`,
	} {
		e, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := e.Matcher().Matches(t.Context(), many); !errors.Is(err, ErrTooCostly) {
			t.Errorf("%s: %v after %v", text, err, time.Since(began))
		}
	}
	for _, text := range []string{`repeat("x", 1000000) == ""`, `replace(text, "", text) == ""`, `join(many, text) == ""`, `len(uniq(many)) > 0`} {
		if err := Check(text); err == nil || !strings.Contains(err.Error(), "no such function") {
			t.Errorf("%s: %v", text, err)
		}
	}
	e, err := Parse(`all(many, all(many, true)) and string(1) + "x" == "1x" and split("a,b", ",")[1] == "b" and ["a"] == ["a"] and len(concat(many, many)) == 1400`)
	if err != nil {
		t.Fatal(err)
	}
	if is, err := e.Matcher().Matches(t.Context(), many); !is || err != nil {
		t.Errorf("%t, %v", is, err)
	}
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stopped)
	if _, err := e.Matcher().Matches(ctx, many); !errors.Is(err, stopped) {
		t.Error(err)
	}
	if _, err := e.Matcher().Matches(&endsSoon{Context: context.Background()}, many); !errors.Is(err, context.Canceled) {
		t.Errorf("an evaluation whose context ended meanwhile: %v", err)
	}
}

// endsSoon is a context that ends after the first look at its state.
type endsSoon struct {
	context.Context
	looked bool
}

func (e *endsSoon) Err() error {
	if e.looked {
		return context.Canceled
	}
	e.looked = true
	return nil
}

// A name that no page lists is a name that nobody uses.
func TestPageListsTheNames(t *testing.T) {
	page, err := os.ReadFile("../../docs/facts.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		listed = append(listed, row[1])
	}
	if !slices.Equal(listed, Names()) {
		t.Errorf("the page lists %q, want %q", listed, Names())
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{`os.family == "Debian"`, `let a = facts; a.b?.c[0] in 1..3`, `all(facts, # != nil)`, `{"a": os}.a ?? true`, `os.x() | len()`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "..") || strings.Contains(text, "repeat") { // they are slow
			return
		}
		if e, err := Parse(text); err == nil {
			_, _ = e.Matcher().Matches(t.Context(), values(t))
		}
	})
}
