package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/etcd"
)

// After a lost answer an operator must know how to read again. A command that does not exist would not help.
func TestUnknownOutcomeNamesACommand(t *testing.T) {
	t.Parallel()
	root := newRoot(&options{env: cli.Env{Getenv: func(string) string { return "" }}})
	for verb, next := range reads {
		for _, path := range []string{verb, next} {
			c, rest, err := root.Find(strings.Fields(strings.TrimSuffix(path, " -e")))
			if err != nil || len(rest) > 0 || c == root {
				t.Errorf("there is no command %q: %v", path, err)
			}
		}
	}
	lost := &cobra.Command{Use: program}
	hold := &cobra.Command{Use: "hold", RunE: func(*cobra.Command, []string) error {
		return fmt.Errorf("cannot hold: %w", fmt.Errorf("silence%.0w", etcd.ErrUnknownOutcome))
	}}
	named := &cobra.Command{Use: "promote", RunE: func(*cobra.Command, []string) error {
		return fmt.Errorf("%w\n%w: check `pulley history`", fmt.Errorf("silence%.0w", etcd.ErrUnknownOutcome), etcd.ErrReadAgain)
	}}
	quoted := &cobra.Command{Use: "unhold", RunE: func(*cobra.Command, []string) error {
		return fmt.Errorf("a node reported: the outcome is unknown%.0w", etcd.ErrUnknownOutcome)
	}}
	lost.AddCommand(hold, named, quoted)
	(&options{fleet: cli.EnvironmentFlag{Used: "dev"}}).addReadAgain(lost)
	err := hold.RunE(hold, nil)
	if !errors.Is(err, etcd.ErrUnknownOutcome) || !strings.Contains(err.Error(), "run `pulley holds -e dev` before you repeat the command") {
		t.Errorf("%v", err)
	}
	if err := named.RunE(named, nil); strings.Contains(err.Error(), "before you repeat") {
		t.Errorf("it names two commands: %v", err)
	}
	if err := quoted.RunE(quoted, nil); !strings.Contains(err.Error(), "run `pulley holds -e dev` before you repeat the command") {
		t.Errorf("it names no command: %v", err)
	}
}
