// Package manpages writes a command's help as man pages. Only `make man` links it. It must never run a command.
package manpages

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

var brackets = strings.NewReplacer(`\[`, `\[`, "[", `\[`) // once, also for a flag that is visited twice

// Command returns the hidden verb man, which writes the man pages of a program to a folder.
func Command(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the man pages of this program", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return Write(root, args[0]) },
	}
}

// Write writes one page of section 1 for a program and each of its verbs. It creates the folder.
func Write(root *cobra.Command, dir string) error {
	root.DisableAutoGenTag = true
	root.InitDefaultHelpCmd()
	headings(root)
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "Pulley", Manual: "Pulley"}, dir)
	}
	if err != nil {
		return fmt.Errorf("cannot write the man pages to %s: %w", dir, err)
	}
	return nil
}

// headings makes the capitals of the help sections of the page, and keeps the brackets of variables: [X] (default: y) would be a link.
func headings(c *cobra.Command) {
	c.Long = strings.Replace(c.Long, "\n\nEXIT STATUS\n", "\n\n# EXIT STATUS\n", 1)
	c.Flags().VisitAll(func(f *pflag.Flag) { f.Usage = brackets.Replace(f.Usage) })
	c.PersistentFlags().VisitAll(func(f *pflag.Flag) { f.Usage = brackets.Replace(f.Usage) })
	for _, sub := range c.Commands() {
		headings(sub)
	}
}
