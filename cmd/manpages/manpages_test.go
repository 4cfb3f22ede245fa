package manpages_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"pulley/cmd/manpages"
)

// A page without the exit codes, or with variables that became links, would be of no use to a script's author.
func TestPagesHaveExitCodesExamplesAndVariables(t *testing.T) {
	t.Parallel()
	root := &cobra.Command{Use: "pulley", Long: "Keep fleets."}
	root.PersistentFlags().String("context", "", "context [PULLEY_CONTEXT] (default: the current one)")
	verb := &cobra.Command{Use: "status", Short: "Show nodes", Long: "status shows nodes.\n\nEXIT STATUS\n  0 done", Example: "  pulley status -e dev", Run: func(*cobra.Command, []string) {}}
	verb.Flags().String("environment", "", "environment [PULLEY_ENVIRONMENT] (default: none)")
	root.AddCommand(verb)
	dir := t.TempDir()
	if err := manpages.Write(root, dir); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "pulley-status.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{".SH EXIT STATUS", "pulley status -e dev", "environment [PULLEY_ENVIRONMENT] (default: none)", "context [PULLEY_CONTEXT] (default: the current one)"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}
