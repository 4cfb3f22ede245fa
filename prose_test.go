package pulley_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A program that compares a sentence breaks with the next rewording. Text of type agent.Prose may only be shown, and compared
// with "".
func TestNoCodeBranchesOnProse(t *testing.T) {
	t.Parallel()
	type listed struct {
		ImportPath, Dir, Export string
		GoFiles                 []string
		Module                  *struct{ Path string }
	}
	out, err := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Module", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	exports, ours := map[string]string{}, []listed{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if p.Module != nil && p.Module.Path == "pulley" {
			ours = append(ours, p)
		}
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	proses := 0
	for _, p := range ours {
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
		if _, err := (&types.Config{Importer: imports}).Check(p.ImportPath, fset, files, info); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			ast.Inspect(f, func(n ast.Node) bool {
				if e, ok := n.(ast.Expr); ok && isProse(info, e) {
					proses++
				}
				if what := branch(info, n); what != "" {
					t.Errorf("%s: %s of agent.Prose: compare a code instead", fset.Position(n.Pos()), what)
				}
				return true
			})
		}
	}
	if proses < 50 {
		t.Errorf("only %d expressions of type agent.Prose were found: this test looks for the wrong type", proses)
	}
}

// isProse reports whether an expression has the type agent.Prose, also behind a conversion to string.
func isProse(info *types.Info, e ast.Expr) bool {
	if call, ok := e.(*ast.CallExpr); ok && len(call.Args) == 1 && info.Types[call.Fun].IsType() {
		return isProse(info, call.Args[0])
	}
	t := info.Types[e]
	return t.IsValue() && t.Value == nil && t.Type != nil && types.TypeString(t.Type, nil) == "pulley/agent.Prose"
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
