package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/internal/cli"
)

// localStatus is what `pulley-agent status -o json` prints.
type localStatus struct {
	LastGood  agent.Target    `json:"last_good"`
	Enforcing agent.Target    `json:"enforcing"`
	Outcome   agent.Outcome   `json:"outcome,omitempty"`
	LastRun   string          `json:"last_run,omitempty"`
	RanAt     string          `json:"ran_at,omitempty"` // RFC 3339
	Attempts  []agent.Attempt `json:"attempts,omitempty"`
	Holds     []agent.Hold    `json:"holds,omitempty"`
	Disabled  string          `json:"disabled,omitempty"`
	OpenRun   string          `json:"open_run,omitempty"`
	Unsent    int             `json:"unsent"` // run records that etcd has not heard of
}

func newStatus(o *options) *cobra.Command {
	var out cli.Output
	cmd := &cobra.Command{
		Use: "status", Short: "what this machine knows of itself, without asking etcd", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			return o.withDisk(func(d *agent.Disk) error {
				s, err := readStatus(d)
				if err != nil {
					return err
				}
				return out.Print(o.env, s, func(t *cli.Table) error { return s.table(o.env, t) })
			})
		},
	}
	out.AddFlags(cmd.Flags())
	return cmd
}

func readStatus(d *agent.Disk) (localStatus, error) {
	state, err := d.Load()
	if err != nil {
		return localStatus{}, err
	}
	disabled, err := d.Disabled()
	if err != nil {
		return localStatus{}, err
	}
	const all = 1000
	unsent, err := d.Spooled(all)
	if err != nil {
		return localStatus{}, err
	}
	s := localStatus{
		LastGood: state.LastGood, Enforcing: state.Enforcing, Outcome: state.Outcome, LastRun: state.LastRun,
		Attempts: state.Attempts, Holds: state.Holds, Disabled: disabled, OpenRun: state.OpenRun, Unsent: len(unsent),
	}
	if !state.RanAt.IsZero() {
		s.RanAt = state.RanAt.UTC().Format("2006-01-02T15:04:05Z")
	}
	return s, nil
}

func (s localStatus) table(e cli.Env, t *cli.Table) error {
	t.Row("enforces", s.Enforcing.String())
	if s.LastGood != s.Enforcing {
		t.Row("last good", s.LastGood.String()+" (the machine may be part way to what it enforces)")
	}
	if s.LastRun != "" {
		t.Row("last run", fmt.Sprintf("%s, %s", s.LastRun, s.Outcome))
	}
	for _, a := range s.Attempts {
		t.Row("attempts", fmt.Sprintf("%d at %s: %s", a.Started, a.Target, a.Problem))
	}
	for _, h := range s.Holds {
		t.Row("hold", fmt.Sprintf("%s on %s by %s: %s", h.Mode, h.Scope, h.Who, h.Why))
	}
	if s.Disabled != "" {
		t.Row("disabled", s.Disabled)
	}
	if s.OpenRun != "" {
		t.Row("open run", s.OpenRun)
	}
	if s.Unsent > 0 {
		t.Row("unsent", fmt.Sprintf("%d run records wait for etcd", s.Unsent))
	}
	return nil
}
