package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/agent/host"
	"pulley/agent/nodeconfig"
	"pulley/agent/stage"
	"pulley/internal/cli"
	"pulley/internal/model"
	"pulley/internal/release/trust"
)

// localStatus is the output of `pulley-agent status -o json`.
type localStatus struct {
	LastGood  model.Target  `json:"last_good"`
	Enforcing model.Target  `json:"enforcing"`
	Outcome   model.Outcome `json:"outcome,omitempty"`
	LastRun   string        `json:"last_run,omitempty"`

	Unclassified bool `json:"unclassified,omitempty"`
	NoopPending  int  `json:"noop_pending,omitempty"`

	Schedule string `json:"schedule,omitempty"` // why cron does not start the agent

	Rivals string `json:"rivals,omitempty"` // what starts another Puppet

	RanAt      string           `json:"ran_at,omitempty"` // RFC 3339
	Attempts   []model.Attempt  `json:"attempts,omitempty"`
	Holds      []model.Hold     `json:"holds,omitempty"`
	Disabled   model.Prose      `json:"disabled,omitempty"`
	OpenRun    string           `json:"open_run,omitempty"`
	Unsent     int              `json:"unsent"` // run records that etcd does not have
	Refusal    *model.Refusal   `json:"refusal,omitempty"`
	Retirement model.Retirement `json:"retirement,omitempty"`
	Answer     *model.Answer    `json:"answer,omitempty"` // to the newest request
	Signatures stage.Signatures `json:"signatures"`
}

func newStatus(o *options) *cobra.Command {
	var out cli.Output
	cmd := &cobra.Command{
		Use: "status", Short: "Show the machine's own state, without etcd", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			s, err := o.localStatus()
			if err != nil {
				return err
			}
			return out.Print(o.env, s, func(t *cli.Table) error { return s.table(o.env, t) })
		},
	}
	o.addOutput(cmd, &out)
	return cmd
}

// localStatus reads the node's files and creates none: it also works with read-only permissions.
func (o *options) localStatus() (localStatus, error) {
	dir := filepath.Join(o.Root, "var/lib/pulley")
	d, err := agent.ReadDisk(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return localStatus{}, fmt.Errorf("cannot show the status: %s does not exist\nrun `pulley-agent run` first, or give --root", dir)
	}
	if err != nil {
		return localStatus{}, err
	}
	s, err := readStatus(d)
	s.Signatures = stage.Check(o.signers())
	problem := o.unscheduled()
	if problem == nil {
		problem = host.Starts(o.Root, nodeconfig.Under(o.Root).Crontab())
	}
	if problem != nil {
		s.Schedule = problem.Error()
	}
	var damaged *agent.DamagedError
	if errors.As(err, &damaged) {
		err = fmt.Errorf("%w\nrun `pulley-agent run`: it renames the file and applies the node's target again", err)
	}
	return s, errors.Join(err, d.Close())
}

// unscheduled returns why cron does not start this machine's agent; nil if nothing shows a reason.
func (o *options) unscheduled() error {
	return host.Unscheduled(o.Root, nodeconfig.Under(o.Root).Crontab(), o.env.Now())
}

// signers returns the paths from the settings, or the default paths if the settings are unreadable.
func (o *options) signers() trust.Files {
	c, err := o.load()
	if err != nil {
		c = nodeconfig.Under(o.Root)
		c.AllowedSigners, c.RevokedSigners = o.AllowedSigners, o.RevokedSigners
	}
	return stage.Signers(c)
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
		LastGood: state.LastGood, Enforcing: state.Enforcing, Outcome: state.Outcome, LastRun: state.LastRun, Unclassified: state.Unclassified, NoopPending: state.NoopPending, Rivals: state.Rivals,
		Attempts: state.Attempts, Holds: state.Holds, Disabled: disabled, OpenRun: state.OpenRun, Unsent: len(unsent),
		Refusal: state.Refusal, Retirement: state.Retirement(), Answer: state.Answer,
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
	if s.Schedule != "" {
		t.Row("schedule", strings.ReplaceAll(s.Schedule, "\n", "; "))
	}
	if s.Rivals != "" {
		first, _, _ := strings.Cut(model.RivalsWords(s.Rivals), "\n")
		t.Row("warning", first)
	}
	if s.Unclassified {
		first, _, _ := strings.Cut(model.UnclassifiedWords, "\n")
		t.Row("warning", first)
	}
	if s.NoopPending > 0 {
		t.Row("warning", model.NoopWords(s.NoopPending))
	}
	for _, a := range s.Attempts {
		t.Row("attempts", fmt.Sprintf("%d at %s: %s", a.Started, a.Target, a.Problem))
	}
	if r := s.Refusal; r != nil {
		t.Row("refused", fmt.Sprintf("%s: %s", r.Target, r.Error.Error()))
	}
	t.Row("signatures", s.Signatures.String())
	for _, h := range s.Holds {
		t.Row("hold", h.String())
	}
	if s.Disabled != "" {
		t.Row("disabled", string(s.Disabled))
	}
	switch s.Retirement {
	case model.RetireBegun:
		t.Row("retires", "the retire hooks were started")
	case model.RetireDone:
		t.Row("retires", model.Cause{Reason: model.ReasonRetired, Params: model.Params{Problem: s.Answer.Failure()}}.Sentence())
	}
	if s.OpenRun != "" {
		t.Row("open run", s.OpenRun)
	}
	if s.Unsent > 0 {
		t.Row("unsent", cli.Count(s.Unsent, "run record"))
	}
	return nil
}
