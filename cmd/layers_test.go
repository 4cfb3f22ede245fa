package cmd_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// sources parses every Go file below a folder, except tests, and calls each with its path from the repository's root.
func sources(t *testing.T, dir string, each func(path string, file *ast.File, positions *token.FileSet)) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join("..", dir), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		positions := token.NewFileSet()
		file, err := parser.ParseFile(positions, path, nil, 0)
		if err == nil {
			each(strings.TrimPrefix(filepath.ToSlash(path), "../"), file, positions)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A key must have one spelling: a value under another one is never found.
func TestOnlyOneFileSpellsKeys(t *testing.T) {
	parts := []string{"/v1/", "desired/", "hosts/", "assigned/", "data/generations", "data/layers", "holds/", "history/"}
	found := 0
	sources(t, ".", func(path string, file *ast.File, positions *token.FileSet) {
		ast.Inspect(file, func(n ast.Node) bool {
			text, ok := n.(*ast.BasicLit)
			if !ok || text.Kind != token.STRING {
				return true
			}
			value, err := strconv.Unquote(text.Value)
			for _, part := range parts {
				if err != nil || !strings.HasPrefix(strings.TrimPrefix(value, "/pulley"), part) {
					continue
				}
				found++
				if path != "internal/etcd/keys.go" {
					t.Errorf("%s spells a key: %s", positions.Position(text.Pos()), text.Value)
				}
			}
			return true
		})
	})
	if found < len(parts) {
		t.Errorf("only %d spellings were found at all: this test looks for the wrong words", found)
	}
}

// A decision that depends on hidden input can be neither tested nor explained.
func TestAgentReadsNoSurroundings(t *testing.T) {
	forbidden := map[string]bool{
		"time.Now": true, "time.Since": true, "time.Until": true, "os.Getenv": true, "os.LookupEnv": true, "os.Environ": true, "os.Hostname": true,
	}
	onDisk, decides := 0, false
	look := func(path string, file *ast.File, positions *token.FileSet) {
		decides = decides || path == "internal/model/decide.go"
		if path != "internal/model/"+filepath.Base(path) && path != "agent/"+filepath.Base(path) {
			return // the packages below agent access the machine
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, ok := call.X.(*ast.Ident)
			if !ok {
				return true
			}
			if forbidden[pkg.Name+"."+call.Sel.Name] {
				t.Errorf("%s: %s.%s", positions.Position(n.Pos()), pkg.Name, call.Sel.Name)
			}
			if pkg.Name == "os" || pkg.Name == "syscall" {
				onDisk++
				if path != "agent/disk.go" {
					t.Errorf("%s: %s.%s: files are the business of agent/disk.go", positions.Position(n.Pos()), pkg.Name, call.Sel.Name)
				}
			}
			return true
		})
	}
	sources(t, "agent", look)
	sources(t, "internal/model", look)
	if onDisk == 0 || !decides {
		t.Error("no use of files, or no decision, was found at all: this test looks in the wrong place")
	}
}

// A beginner in the source checkout who types `pulley env plan dev` must not get Pulley's own sample.
func TestCheckoutHasNoEnvironments(t *testing.T) {
	t.Parallel()
	if found, _ := filepath.Glob(filepath.Join("..", "environments", "*.yaml")); len(found) > 0 {
		t.Errorf("these are taken for environments of the user: %v", found)
	}
}
