package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pulley/agent"
	"pulley/agent/puppet"
	"pulley/internal/cli"
	"pulley/internal/upgrade"
)

// proof is what a candidate has to show on this node.
func (c config) proof() upgrade.Proof {
	or := func(set, usual time.Duration) time.Duration {
		if set > 0 {
			return set
		}
		return usual
	}
	const spare = time.Minute // after the hard signal, and for reading Puppet's report
	return upgrade.Proof{
		SelfTest: or(c.Upgrade.SelfTest, upgrade.SelfTestLimit), FirstStep: or(c.Upgrade.FirstStep, upgrade.FirstStepLimit),
		Step: or(c.Upgrade.Step, upgrade.StepLimit), Slow: max(upgrade.SlowLimit, c.Upgrade.Step),
		Apply: deadline(c) + c.grace() + spare,
		Ticks: upgrade.GoodTicks, Probation: or(c.Upgrade.Probation, upgrade.Probation),
	}
}

func (c config) grace() time.Duration {
	if c.Puppet.Grace > 0 {
		return c.Puppet.Grace
	}
	return puppet.DefaultGrace
}

// ownVersion is this program's version as versions are published: git's tags often have a v in front.
func (o *options) ownVersion() string { return strings.TrimPrefix(o.env.Version, "v") }

// standing says for the status where this node stands with its own agent.
func (o *options) standing(c config) func(agent.AgentChoice) *agent.Upgrade {
	return func(want agent.AgentChoice) *agent.Upgrade {
		if want.Version == "" && !want.Unknown {
			return nil
		}
		s, err := c.UpgradeFolder().Load()
		if err != nil {
			return &agent.Upgrade{Wanted: want.Version, Phase: agent.UpgradeWaiting, Problem: agent.Problem{Code: agent.UpgradeUnknown, Text: agent.Prose(err.Error())}}
		}
		u := s.Report(want, o.ownVersion())
		if u != nil && u.Phase == agent.UpgradeWaiting && u.Problem == (agent.Problem{}) && !c.isInstalled() {
			u.Problem = agent.Problem{Code: agent.UpgradeNotInstalled, Text: agent.Prose(c.UpgradeFolder().Installed)}
		}
		return u
	}
}

// isInstalled says whether this process is the program that an upgrade would replace.
func (c config) isInstalled() bool {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return false
	}
	there, err := os.Stat(c.UpgradeFolder().Installed)
	return err == nil && os.SameFile(self, there)
}

// upgrader replaces this node's agent by another.
type upgrader struct {
	*options
	config
	folder upgrade.Folder
	flags  []string // of this process, as a candidate gets them
	log    *slog.Logger
}

// turn is one tick: by this agent, or by a newer one that is on probation, under the eyes of this one. After a tick with
// nothing to do a version that is wanted is fetched and tested. Replaced says that another program is in place now.
func (o *options) turn(ctx context.Context, c config, r runOptions, flags []string) (replaced bool, err error) {
	if r.Force || r.Noop || !c.isInstalled() { // a person asked, or nothing here can be replaced
		_, err := o.ownTick(ctx, c, r)
		return false, err
	}
	u := &upgrader{options: o, config: c, folder: c.UpgradeFolder(), flags: flags, log: o.logger()}
	s, err := u.folder.Load()
	if err != nil {
		u.log.Warn("the agent can't be upgraded", "err", err)
		_, err := o.ownTick(ctx, c, r)
		return false, err
	}
	if s.Candidate != nil {
		return u.probation(ctx, r)
	}
	report, err := o.ownTick(ctx, c, r)
	if report != nil {
		if err := u.consider(ctx, *report); err != nil {
			u.log.Warn("the agent was not upgraded", "err", err)
		}
	}
	return false, err
}

// ownTick is a tick by this very agent, told in one line. The report is nil when there was no tick.
func (o *options) ownTick(ctx context.Context, c config, r runOptions) (*agent.Report, error) {
	report, err := o.tick(ctx, c, r.Options)
	if errors.Is(err, agent.ErrLocked) {
		o.busy(c)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &report, o.conclude(c, r, report)
}

func (o *options) busy(c config) {
	fmt.Fprintf(o.env.Stdout, "%s: another run is in progress\n", c.Identity.Node)
}

// watched is a tick of a candidate: its steps are told to the agent that watches it, and how it went.
func (o *options) watched(ctx context.Context, r runOptions) error {
	teller, err := upgrade.OpenTeller(r.supervised)
	if err != nil {
		return err
	}
	o.step, r.Keep = teller.Step, true
	end, err := o.watchedTick(ctx, r)
	end.Code = cli.Code(err)
	teller.End(end)
	return err
}

func (o *options) watchedTick(ctx context.Context, r runOptions) (upgrade.Ending, error) {
	c, err := o.load()
	if err != nil {
		return upgrade.Ending{Problem: agent.Prose(err.Error())}, err
	}
	report, err := o.ownTick(ctx, c, r)
	switch {
	case report == nil && err == nil:
		return upgrade.Ending{Locked: true}, nil
	case report == nil:
		return upgrade.Ending{Problem: agent.Prose(err.Error()), Unreachable: errors.Is(err, agent.ErrUnreachable)}, err
	}
	e := upgrade.Ending{Puppet: report.Puppet, Unreachable: report.Unreachable, Failed: report.Run != nil && report.Run.Outcome == agent.Failed}
	if report.Err != nil {
		e.Problem = agent.Prose(report.Err.Error())
	}
	return e, err
}

// inherited are the flags that every verb has, as they were given: another agent gets the same.
func inherited(c *cobra.Command) []string {
	var args []string
	c.InheritedFlags().VisitAll(func(f *pflag.Flag) {
		if !f.Changed {
			return
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				args = append(args, "--"+f.Name+"="+v)
			}
			return
		}
		args = append(args, "--"+f.Name+"="+f.Value.String())
	})
	return args
}
