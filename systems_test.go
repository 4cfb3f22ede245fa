//go:build !e2e

package pulley_test

import (
	"os"
	"testing"

	load "golang.org/x/tools/go/packages"
)

// Operators work on macOS too, and a call that only Linux has would keep the command from them. Types are checked much faster than
// they are compiled. `make lint` runs this, and `make test`, which has the tag e2e, does not repeat it.
func TestCommandCompilesOnOtherSystems(t *testing.T) {
	t.Parallel()
	for _, system := range []string{"darwin", "freebsd"} {
		all, err := load.Load(&load.Config{
			Mode: load.NeedName | load.NeedCompiledGoFiles | load.NeedImports | load.NeedDeps | load.NeedSyntax | load.NeedTypes,
			Env:  append(os.Environ(), "GOOS="+system, "GOARCH=arm64", "CGO_ENABLED=0"),
		}, "./cmd/pulley")
		if err != nil {
			t.Fatal(err)
		}
		load.Visit(all, nil, func(p *load.Package) {
			for _, problem := range p.Errors {
				t.Errorf("%s: %v", system, problem)
			}
		})
	}
}
