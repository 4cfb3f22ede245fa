package main

import (
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/takeover"
)

// takeoverStatus is the output of `pulley-agent takeover status -o json`.
type takeoverStatus struct {
	Stage   takeover.Stage    `json:"stage"` // "": no takeover
	At      string            `json:"at,omitempty"`
	By      string            `json:"by,omitempty"`
	Message string            `json:"message,omitempty"`
	Units   []takeover.Unit   `json:"units,omitempty"`
	Files   []string          `json:"files,omitempty"` // changed crontabs
	Starts  takeover.Findings `json:"starts"`          // puppet agent's, now
}

func newTakeoverStatus(o *options) *cobra.Command {
	var out cli.Output
	cmd := &cobra.Command{
		Use: "status", Short: "Show the state of the takeover", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			m := o.oldAgent(nil)
			s, err := takeover.Load(m.StateDir)
			if err != nil {
				return err
			}
			found, err := m.Look(c.Context())
			if err != nil {
				return err
			}
			t := takeoverStatus{Stage: s.Stage, By: s.By, Message: s.Message, Units: s.Units, Starts: found}
			if !s.At.IsZero() {
				t.At = s.At.Format(time.RFC3339)
			}
			for _, f := range s.Files {
				t.Files = append(t.Files, "/"+f.Path)
			}
			return out.Print(o.env, t, func(*cli.Table) error { o.printTakeover(t); return nil })
		},
	}
	out.AddFlags(cmd.Flags())
	cmd.PreRunE = func(*cobra.Command, []string) error {
		out.Fill(o.env)
		return out.Check()
	}
	return cmd
}

func (o *options) printTakeover(t takeoverStatus) {
	words := map[takeover.Stage]string{
		takeover.None:      "no takeover on this machine",
		takeover.Found:     "puppet agent is in charge: a first boot found it so, or a takeover was undone",
		takeover.Disabling: "disabling was interrupted: run `pulley-agent takeover disable` again",
		takeover.Disabled:  "puppet agent is disabled, and Pulley in its place",
		takeover.Removing:  "removing was interrupted: run `pulley-agent takeover remove` again",
		takeover.Removed:   "what started puppet agent is removed, and Pulley in its place",
		takeover.Undoing:   "undoing was interrupted: run `pulley-agent takeover undo` again",
	}
	line := words[t.Stage]
	if t.At != "" {
		line += " (" + t.At + ", " + t.By + ")"
	}
	cli.Cleanf(o.env.Stdout, "%s\n", line)
	for _, u := range t.Units {
		cli.Cleanf(o.env.Stdout, "changed: %s, which was %s\n", u.Name, u.Was)
	}
	for _, f := range t.Files {
		cli.Cleanf(o.env.Stdout, "changed: %s\n", f)
	}
	o.printFindings(t.Starts)
}
