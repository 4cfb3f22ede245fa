package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/agent/nodeconfig"
	"pulley/agent/upgrade"
	"pulley/internal/cli"
	"pulley/internal/model"
)

// ownAgent is the output of `pulley-agent upgrade -o json`.
type ownAgent struct {
	Running   string             `json:"running"`   // version of this program
	Installed *upgrade.Program   `json:"installed"` // null: never compared with a published version
	Candidate *upgrade.Candidate `json:"candidate"`
	Dropped   *upgrade.Dropped   `json:"dropped"`
	Waiting   *upgrade.Waiting   `json:"waiting"`
	Previous  *upgrade.Previous  `json:"previous"`
}

func newUpgrade(o *options) *cobra.Command {
	var out cli.Output
	var back, retry bool
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "Show the state of the agent's upgrade, or revert it",
		Long: `upgrade shows the agent in place, the one on probation, and the dropped one with the reason. Runs upgrade the agent
automatically, after ` + "`pulley agents promote`" + `.

--back restores the previous agent. When the agent in place does not start, run the previous one:
/var/lib/pulley/agent/previous upgrade --back.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			switch {
			case back && retry:
				return cli.Usagef("--back and --retry exclude each other")
			case back:
				return o.upgradeBack()
			case retry:
				return o.upgradeRetry()
			}
			return o.showUpgrade(out)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&back, "back", false, "restore the previous agent; the version in place is dropped")
	f.BoolVar(&retry, "retry", false, "retry a version that was dropped here")
	o.addOutput(cmd, &out)
	return cmd
}

func (o *options) showUpgrade(out cli.Output) error {
	s, err := o.ownFolder().Load()
	if err != nil {
		return err
	}
	v := ownAgent{Running: o.ownVersion(), Candidate: s.Candidate, Dropped: s.Dropped, Waiting: s.Waiting, Previous: s.Previous}
	if s.Installed != nil {
		v.Installed = &s.Installed.Program
	}
	return out.Print(o.env, v, func(t *cli.Table) error {
		t.Row("running", v.Running)
		if v.Installed != nil {
			t.Row("in place", v.Installed.String())
		}
		if c := v.Candidate; c != nil {
			t.Row("on probation", fmt.Sprintf("%s since %s, %s succeeded", c.Program, when(c.Since), cli.Count(c.Good, "tick")))
		}
		if d := v.Dropped; d != nil {
			t.Row("dropped", fmt.Sprintf("%s at %s: %s", d.Program, when(d.At), d.Problem))
		}
		if w := v.Waiting; w != nil {
			t.Row("waits for", fmt.Sprintf("%s since %s: %s", w.Version, when(w.At), w.Problem))
		}
		if p := v.Previous; p != nil {
			t.Row("before", fmt.Sprintf("%s until %s; `%s upgrade --back` restores it", p.Program, when(p.Until), program))
		}
		return nil
	})
}

func when(at time.Time) string { return at.UTC().Format(time.RFC3339) }

// ownVersion returns this program's version in the form of published versions.
func (o *options) ownVersion() string { return o.setup(nodeconfig.Config{}).OwnVersion() }

// ownFolder needs no settings, because the new agent may be unable to read them.
func (o *options) ownFolder() upgrade.Folder { return nodeconfig.Under(o.Root).UpgradeFolder() }

func (o *options) upgradeBack() error {
	return o.changeUpgrade(func(f upgrade.Folder, s upgrade.State) error {
		s, err := f.Back(s, o.ownVersion(), model.Problem{Code: model.UpgradeTakenBack, Text: model.Prose(o.env.User)}, o.env.Now())
		if err != nil {
			return err
		}
		there := "the agent before"
		if s.Installed != nil {
			there = s.Installed.String()
		}
		fmt.Fprintf(o.env.Stdout, "%s is restored; %s stays dropped until another version is wanted, or an operator retries it\n", there, s.Dropped.Program)
		return f.Tidy(s)
	})
}

func (o *options) upgradeRetry() error {
	return o.changeUpgrade(func(f upgrade.Folder, s upgrade.State) error {
		if s.Dropped == nil && s.Waiting == nil {
			fmt.Fprintln(o.env.Stdout, "no version was dropped here")
			return nil
		}
		s.Dropped, s.Waiting = nil, nil
		if err := f.Save(s); err != nil {
			return err
		}
		fmt.Fprintln(o.env.Stdout, "the agent retries the wanted version after the next run without other work")
		return nil
	})
}

func (o *options) changeUpgrade(change func(upgrade.Folder, upgrade.State) error) error {
	f := o.ownFolder()
	lock, err := f.Lock()
	if errors.Is(err, agent.ErrLocked) {
		return fmt.Errorf("cannot change the agent: %w\ntry again in a minute: an agent on probation is running", err)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	s, err := f.Load()
	if err != nil {
		return err
	}
	if s, _, err = f.Finish(s); err != nil {
		return err
	}
	return change(f, s)
}

func newSelftest(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "selftest",
		Short: "Check whether this program can be this machine's agent",
		Long: `selftest reads everything that a run reads: the settings, the node's state, the lists of signers and, with the node's own
identity, the desired state in etcd. It writes the node's last status into etcd again, unchanged. It starts no Puppet. The agent
in place runs the self-test of a newer agent before the first tick of the newer agent.

EXIT STATUS
  0 it can, 1 it cannot, 2 wrong usage, 3 etcd unreachable`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.load()
			if err != nil {
				return err
			}
			if err := o.setup(c).SelfTest(cmd.Context()); err != nil {
				return err
			}
			fmt.Fprintf(o.env.Stdout, "%s: version %s could be its agent\n", c.Identity.Node, o.setup(c).OwnVersion())
			return nil
		},
	}
}
