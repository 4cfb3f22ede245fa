package fleet

import (
	"fmt"
	"strings"
	"time"

	"pulley/internal/cli"
	"pulley/internal/model"
)

// Overview is all environments in a line each; `pulley status --all -o json` prints it.
type Overview struct {
	Environments []Outline `json:"environments"`
}

// Outline is an environment of an Overview.
type Outline struct {
	Environment  string           `json:"environment"`
	Healthy      bool             `json:"healthy"`
	Release      string           `json:"release"`
	Data         model.Generation `json:"data"`
	Counts       Counts           `json:"counts"`
	Unclassified int              `json:"unclassified"`
	NoopPending  int              `json:"noop_pending"`
	Oldest       *time.Time       `json:"oldest_report"` // nil: no registered node has reported
	Troubles     []Trouble        `json:"causes"`
	Rollout      string           `json:"rollout,omitempty"` // in progress, for people; set by the caller

	target model.Target
}

// Outline returns an environment for an Overview.
func (t Tally) Outline(env string) Outline {
	o := Outline{
		Environment: env, Healthy: t.Healthy, Release: t.Target.Release, Data: t.Target.Data, Counts: Counts{}, Unclassified: t.Unclassified, NoopPending: t.NoopPending,
		Troubles: append([]Trouble{}, Fold(t.Troubles)...), target: t.Target,
	}
	for _, counts := range t.Roles {
		for state, n := range counts {
			o.Counts[state] += n
		}
	}
	if !t.Oldest.IsZero() {
		o.Oldest = &t.Oldest
	}
	return o
}

// Row is the line of an environment.
func (o Outline) Row(now time.Time) []string {
	health, trouble, oldest := "healthy", "", "never"
	if !o.Healthy {
		health = "degraded"
	}
	if o.Oldest != nil {
		oldest = cli.Ago(now, *o.Oldest)
	}
	if len(o.Troubles) > 0 {
		trouble = o.Troubles[0].Sentence()
		if more := len(o.Troubles) - 1; more > 0 {
			trouble = fmt.Sprintf("%s, and %s", trouble, cli.Count(more, "more cause"))
		}
	}
	return []string{o.Environment, health, o.target.String(), o.Counts.Sentence(), oldest, o.Rollout, trouble}
}

// Sentence renders a trouble.
func (t Trouble) Sentence() string {
	nodes := strings.Join(t.Nodes, ", ")
	if more := t.Count - len(t.Nodes); more > 0 {
		nodes += fmt.Sprintf(" and %d more", more)
	}
	if t.Silent {
		return nodes + " silent: " + t.Text
	}
	return nodes + ": " + t.Text
}
