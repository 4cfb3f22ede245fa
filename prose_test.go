package pulley_test

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A program that compares a sentence breaks with the next rewording. Text of type model.Prose may only be shown, and compared
// with "".
func TestNoCodeBranchesOnProse(t *testing.T) {
	t.Parallel()
	l := newLoader(t)
	proses := 0
	for path := range l.ours {
		if _, err := l.Import(path); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range l.files {
		ast.Inspect(f, func(n ast.Node) bool {
			if e, ok := n.(ast.Expr); ok && isProse(l.info, e) {
				proses++
			}
			if what := branch(l.info, n); what != "" {
				t.Errorf("%s: %s of model.Prose: compare a code instead", l.fset.Position(n.Pos()), what)
			}
			return true
		})
	}
	if proses < 50 {
		t.Errorf("only %d expressions of type model.Prose were found: this test looks for the wrong type", proses)
	}
}

// loader finds the types of this module. It reads this module from source and the standard library from its export data. All
// other imports are empty packages: to compile them takes minutes, and none has a value of type model.Prose.
type loader struct {
	fset    *token.FileSet
	ours    map[string]listed
	checked map[string]*types.Package
	files   []*ast.File
	info    *types.Info
	library types.Importer
}

func newLoader(t *testing.T) *loader {
	t.Helper()
	l := &loader{
		fset: token.NewFileSet(), ours: map[string]listed{}, checked: map[string]*types.Package{"unsafe": types.Unsafe},
		info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}},
	}
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Export", "--"}
	for _, p := range packages(t) {
		l.ours[p.ImportPath] = p
		for _, path := range p.Imports {
			if !ours(path) && path != "C" {
				args = append(args, path)
			}
		}
	}
	exports := map[string]string{}
	library, err := goList(args...)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range library {
		exports[p.ImportPath] = p.Export
	}
	l.library = importer.ForCompiler(l.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	return l
}

// Import implements types.Importer.
func (l *loader) Import(path string) (*types.Package, error) {
	if p := l.checked[path]; p != nil {
		return p, nil
	}
	p, isOurs := l.ours[path]
	if !isOurs {
		if !ours(path) {
			return l.library.Import(path)
		}
		l.checked[path] = types.NewPackage(path, filepath.Base(path))
		l.checked[path].MarkComplete()
		return l.checked[path], nil
	}
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(l.fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	l.files = append(l.files, files...)
	config := types.Config{Importer: l, Error: func(error) {}} // the names of empty packages are unknown
	l.checked[path], _ = config.Check(path, l.fset, files, l.info)
	return l.checked[path], nil
}

// isProse reports whether an expression has the type model.Prose, also behind a conversion to string.
func isProse(info *types.Info, e ast.Expr) bool {
	if call, ok := e.(*ast.CallExpr); ok && len(call.Args) == 1 && info.Types[call.Fun].IsType() {
		return isProse(info, call.Args[0])
	}
	t := info.Types[e]
	return t.IsValue() && t.Value == nil && t.Type != nil && types.TypeString(t.Type, nil) == "pulley/internal/model.Prose"
}

// branch names a comparison of prose; "" for any other node.
func branch(info *types.Info, n ast.Node) string {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		if n.Op != token.EQL && n.Op != token.NEQ {
			return ""
		}
		for _, side := range [][2]ast.Expr{{n.X, n.Y}, {n.Y, n.X}} {
			v := info.Types[side[1]].Value
			if isProse(info, side[0]) && v != nil && v.Kind() == constant.String && constant.StringVal(v) != "" {
				return "a comparison"
			}
		}
	case *ast.SwitchStmt:
		if n.Tag != nil && isProse(info, n.Tag) {
			return "a switch"
		}
	case *ast.CallExpr:
		sel, ok := n.Fun.(*ast.SelectorExpr)
		if !ok {
			return ""
		}
		f, ok := info.Uses[sel.Sel].(*types.Func)
		if !ok || f.Pkg() == nil || f.Pkg().Path() != "strings" && f.Pkg().Path() != "regexp" {
			return ""
		}
		for _, name := range []string{"Contains", "Has", "Cut", "Index", "Split", "Equal", "Match", "Find", "Fields", "Count", "Compare"} {
			for _, arg := range n.Args {
				if strings.HasPrefix(f.Name(), name) && isProse(info, arg) {
					return fmt.Sprintf("strings.%s", f.Name())
				}
			}
		}
	}
	return ""
}
