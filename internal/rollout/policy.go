package rollout

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"pulley/environments"
	"pulley/internal/model"
)

// Policy is how a campaign proceeds. A Share is a number of nodes, or a percentage.
type Policy struct {
	Canaries       Share                    `json:"canaries,omitempty"`       // nodes that take the target first
	CanariesWhere  string                   `json:"canaries_where,omitempty"` // expression that selects them; the candidates have its answers
	Batch          Share                    `json:"batch,omitempty"`          // nodes of a group at a time
	Concurrency    int                      `json:"concurrency,omitempty"`    // of a job: nodes at a time, also within a batch
	KeepWaiting    model.Duration           `json:"keep_waiting,omitempty"`   // of a job: how long the nodes that failed are held
	Failures       Share                    `json:"failures,omitempty"`       // nodes of the campaign that may fail
	BatchFailures  Share                    `json:"batch_failures,omitempty"` // nodes of a batch that may fail
	Sample         int                      `json:"sample,omitempty"`         // nodes of which a percentage of failures is at least; 0: of all
	Retries        int                      `json:"retries,omitempty"`        // runs after a failed one
	Settle         model.Duration           `json:"settle,omitempty"`         // how long a node must stay healthy
	Deadline       model.Duration           `json:"deadline,omitempty"`       // time for one node
	Progress       model.Duration           `json:"progress,omitempty"`       // time without any node that ends
	Promote        Promotion                `json:"promote,omitempty"`
	Unready        map[UnreadyCause]Unready `json:"unready,omitempty"`
	Skip           Share                    `json:"skip,omitempty"`            // nodes that may be skipped because they cannot begin
	MaxUnavailable map[string]int           `json:"max_unavailable,omitempty"` // nodes of each value of an attribute or a fact
	MaxPlaces      map[string]int           `json:"max_places,omitempty"`      // values of it that have unavailable nodes
	OnFailure      OnFailure                `json:"on_failure,omitempty"`
	Windows        []string                 `json:"windows,omitempty"` // in which nodes may begin, as environments.ParseWindow reads them
	Gates          []string                 `json:"gates,omitempty"`   // names of checks that the machine of serve defines
	Roles          map[string]RolePolicy    `json:"roles,omitempty"`
}

// RolePolicy is what a role sets differently.
type RolePolicy struct {
	Batch         Share `json:"batch,omitempty"`
	BatchFailures Share `json:"batch_failures,omitempty"`
}

// OnFailure is what a campaign does when more nodes failed than its policy allows.
type OnFailure string

// The consequences.
const (
	FailurePauses  OnFailure = "pause"
	FailureReverts OnFailure = "revert"
)

// Share is a number of nodes ("3") or a percentage ("10%").
type Share string

// Promotion is who lets the campaign continue after the canaries, or after each batch.
type Promotion string

// The promotions.
const (
	Automatic Promotion = "automatic"
	Manual    Promotion = "manual"  // an operator, once
	Batches   Promotion = "batches" // an operator, before each batch but the first one
)

// The defaults: one canary, a tenth of a group at a time, and a stop at the first failure. A percentage of a sample of 100 nodes is at
// least one node.
const (
	defaultCanaries = Share("1")
	defaultBatch    = Share("10%")
	defaultFailures = Share("0")
	defaultSample   = 100
)

// PolicyOf returns the policy for the staged rollouts of an environment.
func PolicyOf(e *environments.Environment) Policy {
	from := e.Rollout
	p := Policy{
		Canaries: Share(from.Canaries), CanariesWhere: from.CanariesWhere, Batch: Share(from.Batch),
		Failures: Share(from.Failures), BatchFailures: Share(from.BatchFailures), Sample: from.Sample, Retries: from.Retries,
		Settle: from.Settle, Deadline: from.Deadline, Progress: from.Progress,
		Promote: Promotion(from.Promote), Unready: treatments(from.Unready), Skip: Share(from.Skip),
		MaxUnavailable: from.MaxUnavailable, MaxPlaces: from.MaxPlaces, Windows: from.Windows, Gates: from.Gates, OnFailure: OnFailure(from.OnFailure),
	}
	for name, own := range from.Roles {
		if p.Roles == nil {
			p.Roles = map[string]RolePolicy{}
		}
		p.Roles[name] = RolePolicy{Batch: Share(own.Batch), BatchFailures: Share(own.BatchFailures)}
	}
	return p
}

// withDefaults fills in what the policy leaves open.
func (p Policy) withDefaults() Policy {
	if p.Canaries == "" && p.CanariesWhere == "" {
		p.Canaries = defaultCanaries
	}
	if p.Batch == "" {
		p.Batch = defaultBatch
	}
	if p.Failures == "" {
		p.Failures = defaultFailures
	}
	if p.Sample == 0 {
		p.Sample = defaultSample
	}
	if p.Deadline == 0 {
		p.Deadline = environments.DefaultDeadline
	}
	if p.Progress == 0 {
		p.Progress = environments.DefaultProgress
	}
	if p.Promote == "" {
		p.Promote = Automatic
	}
	if p.OnFailure == "" {
		p.OnFailure = FailurePauses
	}
	return p
}

// Limits returns the attributes and facts that limit unavailable nodes, in order.
func (p Policy) Limits() []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(p.MaxUnavailable)), maps.Keys(p.MaxPlaces))
	slices.Sort(names)
	return slices.Compact(names)
}

// opens returns when nodes may begin: now if one of the windows is open. It is zero if none opens soon, or if none is readable.
func (p Policy) opens(now time.Time) time.Time {
	if len(p.Windows) == 0 {
		return now
	}
	var all []environments.Window
	for _, text := range p.Windows {
		if w, err := environments.ParseWindow(text); err == nil {
			all = append(all, w)
		}
	}
	return environments.NextWindow(all, now)
}

// batchOf returns the share for batches of a role.
func (p Policy) batchOf(role string) Share {
	if own := p.Roles[role].Batch; own != "" {
		return own
	}
	return p.Batch
}

// failuresOf returns the failures that a batch of a role may have.
func (p Policy) failuresOf(role string) Share {
	if own := p.Roles[role].BatchFailures; own != "" {
		return own
	}
	return p.BatchFailures
}

// Of returns the number of nodes of total that a share is. Percentages are rounded down; least is the smallest result.
func (s Share) Of(total, least int) int {
	digits, percent := strings.CutSuffix(string(s), "%")
	n, err := strconv.Atoi(digits)
	switch {
	case err != nil || n < 0:
		return least
	case percent:
		return max(least, min(n, 100)*max(total, 0)/100)
	}
	return max(least, n)
}

// canaries returns the number of canaries of total nodes: a percentage is at least one node, because a small fleet needs them, too.
func (s Share) canaries(total int) int {
	if s == "0" || s == "0%" {
		return 0
	}
	return s.Of(total, 1)
}

// MayFail returns the number of nodes that may fail when some of all have ended. A percentage is of the nodes that ended, and of at
// least Sample: one failure among the first few nodes proves nothing about a percentage. Without a share, all may fail.
func (p Policy) MayFail(s Share, ended, all int) int {
	switch {
	case s == "":
		return all
	case strings.HasSuffix(string(s), "%") && p.Sample > 0:
		all = min(all, max(ended, p.Sample))
	}
	return s.Of(all, 0)
}
