package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// examples are the command lines in the help of each verb.
var examples = map[string]string{
	"pulley-agent":                  "pulley-agent status\npulley-agent run --force",
	"pulley-agent bootstrap":        "pulley-agent bootstrap",
	"pulley-agent daemon":           "pulley-agent daemon",
	"pulley-agent disable":          "pulley-agent disable changing the disk",
	"pulley-agent enable":           "pulley-agent enable",
	"pulley-agent leave":            "pulley-agent leave",
	"pulley-agent puppet":           "pulley-agent puppet -- lookup --explain profile::base::message\npulley-agent puppet -- apply --noop site.pp",
	"pulley-agent run":              "pulley-agent run\npulley-agent run --noop\npulley-agent run --force\npulley-agent run --tags profile::ntp\npulley-agent run --release 1.5.0 --noop",
	"pulley-agent selftest":         "pulley-agent selftest",
	"pulley-agent status":           "pulley-agent status",
	"pulley-agent takeover":         "pulley-agent takeover look",
	"pulley-agent takeover disable": "pulley-agent takeover disable",
	"pulley-agent takeover look":    "pulley-agent takeover look",
	"pulley-agent takeover remove":  "pulley-agent takeover remove",
	"pulley-agent takeover status":  "pulley-agent takeover status",
	"pulley-agent takeover undo":    "pulley-agent takeover undo",
	"pulley-agent upgrade":          "pulley-agent upgrade",
}

// addExamples adds examples to a command and its verbs.
func addExamples(c *cobra.Command) {
	if text, has := examples[c.CommandPath()]; has && c.Example == "" {
		c.Example = "  " + strings.ReplaceAll(text, "\n", "\n  ")
	}
	for _, sub := range c.Commands() {
		addExamples(sub)
	}
}
