package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/agent/firstboot/steps"
	"pulley/agent/nodeconfig"
	"pulley/agent/takeover"
	"pulley/internal/cli"
	"pulley/internal/model"
	"pulley/internal/puppet"
	"pulley/internal/schedule"
)

func newTakeover(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "takeover",
		Short: "Replace the puppet agent of this machine by Pulley, in steps that can be undone",
		Long: `takeover lets Pulley manage a machine on which puppet agent runs, from cron or as a service:

  look      shows what starts the agent, and what Pulley would change; changes nothing
  disable   disables the agent with a message, and sets up Pulley's schedule
  remove    removes what starts the agent, after a successful run of Pulley
  undo      restores puppet agent as it was found, at any time, and removes Pulley's schedule
  status    shows the state of the takeover

/var/lib/pulley/takeover.json stores everything before it is changed. After an interruption, run the same command again.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(newTakeoverLook(o), newTakeoverDisable(o), newTakeoverRemove(o), newTakeoverUndo(o), newTakeoverStatus(o))
	return cmd
}

// withNodeLock calls do while no Pulley run is in progress.
func (o *options) withNodeLock(do func(*agent.Disk) error) error {
	return o.withDisk(func(d *agent.Disk) error {
		lock, err := d.Lock()
		if err != nil {
			return fmt.Errorf("%w; try again after it", err)
		}
		return errors.Join(do(d), lock.Close())
	})
}

// oldAgent returns the machine for a takeover. dirs are Puppet's state folders; nil means the default folders of its
// packagings.
func (o *options) oldAgent(dirs []string) *takeover.Machine {
	root, err := filepath.Abs(o.Root)
	if err != nil {
		root = o.Root // the operation on it reports the error
	}
	if dirs == nil {
		dirs = puppet.DefaultStateDirs(root)
	}
	return &takeover.Machine{Root: root, StateDir: nodeconfig.Under(root).StateDir(), StateDirs: dirs, Now: o.env.Now}
}

func newTakeoverLook(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "look", Short: "Show what starts puppet agent here, and what Pulley would change", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, unknown := o.load()
			found, err := o.oldAgent(c.Puppet.StateDirs).Look(cmd.Context())
			if err != nil {
				return err
			}
			o.printFindings(found)
			if unknown != nil {
				fmt.Fprintf(o.env.Stdout, "cannot show what Pulley would change: this machine is not a node yet\nnext: pulley-agent bootstrap\n")
				return nil
			}
			r := runOptions{Options: agent.Options{Noop: true}}
			report, err := o.setup(c).Tick(cmd.Context(), r.Options)
			var run map[string]string
			if err == nil && report.Run != nil {
				run = o.setup(c).NewPuppet().RunSettings(report.Run.ID)
			}
			if err := errors.Join(err, o.printDifferences(c, found, run)); err != nil {
				return err
			}
			if run := report.Run; run != nil && run.Outcome != model.Failed {
				if err := o.oldAgent(nil).Looked(run.Unclassified); err != nil {
					return err
				}
			}
			if run := report.Run; run != nil && o.setup(c).NewPuppet().Manages(run.ID, found.Services()...) {
				fmt.Fprintln(o.env.Stdout, "the release manages the service of puppet agent: after takeover disable, no run changes it")
			}
			return o.conclude(c, r, report)
		},
	}
}

// printDifferences prints the settings of the machine's own Puppet that a run of Pulley does not have.
func (o *options) printDifferences(c nodeconfig.Config, found takeover.Findings, run map[string]string) error {
	conf, err := puppet.ReadConf(c.Root)
	if err != nil {
		return err
	}
	for _, d := range takeover.Differences(conf, run, c.Identity, !found.Empty() || found.Ran) {
		cli.Cleanf(o.env.Stdout, "differs from %s: %s\n", cmp.Or(conf.Path, "Puppet's defaults"), d.Sentence())
	}
	return nil
}

func (o *options) printFindings(f takeover.Findings) {
	out := o.env.Stdout
	if f.Empty() {
		fmt.Fprintln(out, "nothing but Pulley starts Puppet on this machine")
		return
	}
	for _, sentence := range f.Sentences() {
		cli.Cleanf(out, "%s\n", sentence)
	}
}

func newTakeoverDisable(o *options) *cobra.Command {
	var cron string
	var noCron, bare bool
	cmd := &cobra.Command{
		Use: "disable", Short: "Disable puppet agent, and let cron start Pulley",
		Long: `disable writes Puppet's own lock with a message (as puppet agent --disable does), disables and stops the agent's service,
comments out cron's lines that start it, and lets cron start Pulley. It refuses when the agent is disabled already, and after a
look or a run whose catalog has 0 classes.

EXIT STATUS
  0 done; 1 failed; 2 wrong usage`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.takeoverDisable(c.Context(), cron, noCron, bare)
		},
	}
	cmd.Flags().StringVar(&cron, "schedule", "", "when cron starts Pulley, five fields (default: the schedule of the first boot, else '"+schedule.Default+"')")
	cmd.Flags().BoolVar(&noCron, "no-cron", false, "no schedule: something else starts Pulley, such as pulley-agent daemon")
	cmd.Flags().BoolVar(&bare, "no-classes", false, "also if Pulley's catalog for this machine has 0 classes")
	return cmd
}

func (o *options) takeoverDisable(ctx context.Context, cron string, noCron, bare bool) error {
	c, err := o.load()
	if err != nil {
		return err
	}
	s, err := takeover.Load(c.StateDir())
	if err != nil {
		return err
	}
	chosen := s.Choose(cron, noCron)
	switch err := steps.CheckSchedule(cmp.Or(cron, chosen.Cron, schedule.Default)); {
	case err != nil:
		return err
	case c.Root != "/" && !chosen.None:
		return cli.Usagef("cannot set up cron under --root %s: cron is this machine's own\nwith --no-cron, something else has to start `pulley-agent run --root %s`", c.Root, c.Root)
	}
	n, err := o.setup(c).Open(ctx)
	if err != nil {
		return fmt.Errorf("cannot disable the old agent: %w", err)
	}
	state, err := n.State()
	if err != nil {
		return errors.Join(fmt.Errorf("cannot disable the old agent: %w", err), n.Close())
	}
	err = o.oldAgent(c.Puppet.StateDirs).Disable(ctx, o.env.User, chosen, state, bare, func(ctx context.Context) error {
		if chosen.None {
			return nil
		}
		n.Puppet.Own = takeover.Own(c.StateDir())
		return steps.SetUpCron(ctx, n, chosen.Cron)
	})
	if err := errors.Join(err, n.Close()); err != nil {
		return err
	}
	fmt.Fprintln(o.env.Stdout, "puppet agent is disabled; all its files are still in place")
	left, err := o.oldAgent(c.Puppet.StateDirs).Look(ctx)
	if err != nil {
		return err
	}
	if len(left.Rivals()) > 0 { // the lock does not stop them
		o.printFindings(left)
	}
	if chosen.None {
		fmt.Fprintln(o.env.Stdout, "Pulley has no schedule: something else has to start it")
	}
	fmt.Fprintln(o.env.Stdout, "next: pulley-agent takeover remove, after a good run of Pulley; or pulley-agent takeover undo")
	return nil
}

func newTakeoverRemove(o *options) *cobra.Command {
	var bare bool
	cmd := &cobra.Command{
		Use: "remove", Short: "Remove what starts puppet agent, after a successful run of Pulley", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.withNodeLock(func(d *agent.Disk) error {
				state, err := d.Load()
				if err != nil {
					return err
				}
				if err := o.oldAgent(nil).Remove(c.Context(), o.env.User, state, bare); err != nil {
					return err
				}
				fmt.Fprintln(o.env.Stdout, "everything that started puppet agent is removed; its packages stay, and pulley-agent takeover undo restores the rest")
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&bare, "no-classes", false, "also after a run that applied 0 classes")
	return cmd
}

func newTakeoverUndo(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "undo", Short: "Restore puppet agent as it was found, and remove Pulley's schedule", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.withNodeLock(func(*agent.Disk) error {
				m := o.oldAgent(nil)
				err := m.Undo(c.Context(), o.env.User, func() error {
					err := os.Remove(nodeconfig.Under(m.Root).Crontab())
					if errors.Is(err, os.ErrNotExist) {
						return nil
					}
					return err
				})
				if err != nil {
					return err
				}
				fmt.Fprintln(o.env.Stdout, "puppet agent is restored; Pulley has no schedule, and this machine is still a node")
				return nil
			})
		},
	}
}

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
	o.addOutput(cmd, &out)
	return cmd
}

func (o *options) printTakeover(t takeoverStatus) {
	words := map[takeover.Stage]string{
		takeover.None:      "no takeover on this machine",
		takeover.Found:     "puppet agent is in charge: the first boot found it active, or a takeover was undone",
		takeover.Disabling: "disabling was interrupted: run `pulley-agent takeover disable` again",
		takeover.Disabled:  "puppet agent is disabled; Pulley replaces it",
		takeover.Removing:  "removing was interrupted: run `pulley-agent takeover remove` again",
		takeover.Removed:   "everything that started puppet agent is removed; Pulley replaces it",
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
