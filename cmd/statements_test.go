package cmd_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// literals are what the code contains: all texts, with a NUL for each verb of fmt, and those of the tests and scenarios, which expect whole
// lines; and the values of each group of constants of the programs.
type literals struct {
	texts string
	enums [][]string
}

var verb = regexp.MustCompile(`%(\[\d\])?[-+# 0]*\d*(\.\d+)?[a-zA-Z]`)

var readLiterals = sync.OnceValues(func() (s literals, _ error) {
	var texts strings.Builder
	fields := map[string][]string{} // values of a field in all literals of a type of a package
	err := filepath.WalkDir(repository, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch {
		case entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != repository:
			return filepath.SkipDir
		case strings.HasSuffix(path, ".txtar"):
			b, err := os.ReadFile(path)
			texts.WriteString(strings.ReplaceAll(string(b), "''", "'"))
			return err
		case !strings.HasSuffix(path, ".go") || filepath.Base(path) == "statements_test.go":
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					texts.WriteString("\n" + verb.ReplaceAllString(text, "\x00"))
				}
			case *ast.GenDecl:
				if strings.HasSuffix(path, "_test.go") {
					return true
				}
				s.enums = append(s.enums, constants(n)...)
			case *ast.CompositeLit:
				s.enums = append(s.enums, elements(n)...)
				if of, ok := n.Type.(*ast.Ident); ok && !strings.HasSuffix(path, "_test.go") {
					addFields(fields, filepath.Dir(path)+" "+of.Name, n)
				}
			}
			return true
		})
		return nil
	})
	s.texts, s.enums = texts.String(), slices.AppendSeq(s.enums, maps.Values(fields))
	return s, err
})

// addFields adds the texts of the fields of a struct.
func addFields(to map[string][]string, of string, value *ast.CompositeLit) {
	for _, e := range value.Elts {
		pair, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		key, named := pair.Key.(*ast.Ident)
		if lit, ok := pair.Value.(*ast.BasicLit); ok && named && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				to[of+"."+key.Name] = append(to[of+"."+key.Name], text)
			}
		}
	}
}

// have reports whether a text contains these words, with at most one that a verb replaces or adds.
func (s literals) have(words string) bool {
	if strings.Contains(s.texts, words) {
		return true
	}
	all := strings.Fields(words)
	for i := range all {
		before, after := strings.Join(all[:i], " "), strings.Join(all[i:], " ")
		if i > 0 && strings.Contains(s.texts, before+"\x00 "+after) || strings.Contains(s.texts, strings.Replace(words, all[i], "\x00", 1)) {
			return true
		}
	}
	return false
}

// constants returns the values of the string constants of a declaration, by type.
func constants(decl *ast.GenDecl) [][]string {
	if decl.Tok != token.CONST {
		return nil
	}
	byType := map[string][]string{}
	for _, spec := range decl.Specs {
		v := spec.(*ast.ValueSpec)
		name := ""
		if id, ok := v.Type.(*ast.Ident); ok {
			name = id.Name
		}
		for _, value := range v.Values {
			if lit, ok := value.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil && text != "" {
					byType[name] = append(byType[name], text)
				}
			}
		}
	}
	return slices.Collect(maps.Values(byType))
}

// elements returns the texts of a list or table: its keys, its values, and the first texts of its rows.
func elements(list *ast.CompositeLit) (all [][]string) {
	var keys, values, rows []string
	add := func(to *[]string, e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				*to = append(*to, text)
			}
		}
	}
	for _, e := range list.Elts {
		if pair, ok := e.(*ast.KeyValueExpr); ok {
			add(&keys, pair.Key)
			e = pair.Value
		}
		add(&values, e)
		if row, ok := e.(*ast.CompositeLit); ok && len(row.Elts) > 0 {
			first := row.Elts[0]
			if pair, ok := first.(*ast.KeyValueExpr); ok {
				first = pair.Value
			}
			add(&rows, first)
		}
	}
	return [][]string{keys, values, rows}
}

// A reader of an incident searches for the text on the screen.
func TestSymptomsAreTextsOfThePrograms(t *testing.T) {
	t.Parallel()
	s, err := readLiterals()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(repository, "docs", "failures.md"))
	if err != nil {
		t.Fatal(err)
	}
	// What stands for something else: …, names in capitals, numbers, addresses, names of nodes and environments.
	place := regexp.MustCompile("…|\\b(?:dev|us|web|compute)\\b|\\b[A-Z]{2,}\\b|\\b[A-Z]\\b|https?://\\S+|[\\w/-]*\\d[\\w.:%-]*|[:;] |[()\"'`]|, ")
	checked := 0
	for _, row := range rowsOf(string(page), "failure") {
		cells := strings.Split(row, " | ")
		if len(cells) < 3 {
			continue
		}
		for _, m := range inline.FindAllStringSubmatch(cells[1], -1) {
			for _, part := range place.Split(m[1], -1) {
				if part = strings.TrimSpace(part); strings.Count(part, " ") < 2 || strings.HasPrefix(part, "pulley") {
					continue
				}
				checked++
				if !s.have(part) {
					t.Errorf("no program prints %q of: %s", part, m[1])
				}
			}
		}
	}
	if checked < 60 {
		t.Errorf("only %d texts were found", checked)
	}
}

// A script that handles each value of a field misses the one that the page does not have.
func TestValuesOfFieldsAreThoseOfTheCode(t *testing.T) {
	t.Parallel()
	s, err := readLiterals()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(repository, "docs", "json.md"))
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile("(?:`[a-z_]+`(?: \\([^)]*\\))?, )*`[a-z_]+`(?: \\([^)]*\\))? or `[a-z_]+`")
	elsewhere := map[string][]string{ // values that a field has beside those of its list
		"findings.check": {"ca"}, "kept.reason": {"assigned", "desired", "enforced", "last_good", "next", "tried"},
	}
	checked := 0
	for line := range strings.Lines(string(page)) {
		m := regexp.MustCompile("^\\| `([a-z_.]+)` \\| string").FindStringSubmatch(line)
		if m == nil {
			continue
		}
		var values []string
		for _, found := range list.FindAllString(line, -1) {
			for _, v := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(found, -1) {
				values = append(values, v[1])
			}
		}
		slices.Sort(values)
		if values = slices.Compact(values); len(values) < 3 || m[1] == "outcome" && slices.Contains(values, "passed") { // of `provider test`: an if
			continue
		}
		checked++
		known := func(enum []string) bool {
			enum = slices.Concat(enum, elsewhere[m[1]])
			enum = slices.DeleteFunc(enum, func(value string) bool { return m[1] == "reason" && (value == "no_server" || value == "no_file") }) // no catalog
			slices.Sort(enum)
			return slices.Equal(slices.Compact(enum), values)
		}
		if !slices.ContainsFunc(s.enums, known) {
			t.Errorf("the code has no list with the values of %s: %v", m[1], values)
		}
	}
	_, reasons, _ := strings.Cut(string(page), "\n## reasons\n")
	reasons, _, _ = strings.Cut(reasons, "\n## ")
	var order []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(reasons, -1) {
		order = append(order, row[1])
	}
	for _, part := range [][]string{order[:max(len(order)-5, 0)], order[max(len(order)-5, 0):]} { // the last five are those of `pulley`
		if !slices.ContainsFunc(s.enums, func(enum []string) bool { return slices.Equal(enum, part) }) {
			t.Errorf("the code has other reasons, or another order: %v", part)
		}
	}
	if checked < 30 {
		t.Errorf("only %d lists were found", checked)
	}
}
