package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
)

// advised is a command in a message.
var advised = regexp.MustCompile("`" + program + " ([^`]+)`")

// complete adds the environment to the commands that a text names. Without it, a command that was copied from a message would
// act on another environment, or on none.
func (o *options) complete(text string) string {
	if o.fleet.Used == "" || o.root == nil {
		return text
	}
	return advised.ReplaceAllStringFunc(text, func(match string) string {
		if named := strings.Replace(match, " -e ENVIRONMENT", " -e "+o.fleet.Used, 1); named != match {
			return named
		}
		words := strings.Fields(advised.FindStringSubmatch(match)[1])
		c, rest, err := o.root.Find(words)
		if err != nil || c == o.root || c.Flags().Lookup("environment") == nil ||
			slices.ContainsFunc(rest, func(w string) bool { return w == "-e" || w == "--operator" || strings.HasPrefix(w, "--environment") }) {
			return match
		}
		return strings.TrimSuffix(match, "`") + " -e " + o.fleet.Used + "`"
	})
}

// completedError is an error whose advice names the environment.
type completedError struct {
	error
	text string
}

func (e completedError) Error() string { return e.text }
func (e completedError) Unwrap() error { return e.error }
func (completedError) Hint() string    { return "" } // the text has it

// addEnvironments makes the errors of every verb name the environment in their advice.
func (o *options) addEnvironments(c *cobra.Command) {
	if run := c.RunE; run != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			err := run(c, args)
			if err == nil {
				return nil
			}
			text := cli.Message(err)
			if completed := o.complete(text); completed != text {
				return completedError{err, completed}
			}
			return err
		}
	}
	for _, sub := range c.Commands() {
		o.addEnvironments(sub)
	}
}
