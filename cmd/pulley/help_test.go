package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Scripts need documented exit codes, for example to distinguish "not found" from an unreachable etcd.
func TestHelpNamesExitCodes(t *testing.T) {
	var look func(*cobra.Command)
	look = func(c *cobra.Command) {
		if !strings.Contains(c.Long, "EXIT STATUS\n  0 ") && !c.Hidden {
			t.Errorf("the help of `%s` does not", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			look(sub)
		}
	}
	look(newRoot(&options{}))
}

// An operator must be able to look before each change of a fleet.
func TestChangesHaveDryRuns(t *testing.T) {
	t.Parallel()
	without := map[string]string{
		"agents list": "reads", "agents show": "reads", "ca show": "reads", "context list": "reads", "context show": "reads", "data diff": "reads", "data get": "reads", "data history": "reads", "data layers": "reads", "data lookup": "reads",
		"env history": "reads", "env list": "reads", "env plan": "reads", "env schema": "reads", "env show": "reads", "env validate": "reads", "enc": "reads", "explain": "reads", "facts": "reads",
		"history": "reads", "holds": "reads", "job list": "reads", "job plan": "reads", "job show": "reads", "job watch": "reads", "key check": "reads", "key list": "reads", "operators list": "reads", "preview": "it is the dry run of promote", "provider enter": "enters a machine", "provider list": "reads", "puppetserver check": "--test-crl concerns a certificate of its own", "puppetserver list": "reads", "releases diff": "reads",
		"releases show": "reads", "rollout list": "reads", "rollout show": "reads", "rollout watch": "reads", "releases verify": "reads", "runs": "reads", "secret list": "reads", "status": "reads", "token list": "reads", "validate": "reads", "version": "reads",
		"doctor": "without --fix it is the dry run of --fix", "env watch": "a server; env plan shows what it would do now", "serve": "a server", "demo": "changes a fleet of its own",
		"provider test":    "changes machines of its own",
		"auth certificate": "writes files of this machine", "backup": "writes a file", "restore": "fills an empty folder",
		"context delete": "writes a file of this user", "context set": "writes a file of this user", "context use": "writes a file of this user",
		"init": "fills an empty folder", "key allow": "writes a file", "key create": "writes a file", "key expire": "writes a file", "key revoke": "writes a file",
		"data export": "writes a folder", "releases export": "writes a folder",
	}
	var look func(*cobra.Command)
	look = func(c *cobra.Command) {
		name := strings.TrimPrefix(c.CommandPath(), program+" ")
		_, listed := without[name]
		if dry := c.Flags().Lookup("dry-run") != nil; !c.HasSubCommands() && dry == listed {
			t.Errorf("`%s`: --dry-run is %v, and the test lists it: %v", c.CommandPath(), dry, listed)
		}
		for _, sub := range c.Commands() {
			look(sub)
		}
	}
	look(newRoot(&options{}))
}
