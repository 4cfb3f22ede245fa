package store

import (
	"context"
	"errors"
	"fmt"
	"pulley/internal/clip"
	"time"
)

// RefusalsEvery is how often a serve writes down what it refused, at most.
const RefusalsEvery = 10 * time.Second

// maxRefusals is how many of the last refusals are kept in full, and maxReasons how many reasons are counted.
const (
	maxRefusals = 20
	maxReasons  = 64
)

// Refusal is one request to join, renew, register, leave or tell progress that was refused.
type Refusal struct {
	At          time.Time `json:"at"`
	Path        string    `json:"path"`
	From        string    `json:"from"` // address
	Reason      string    `json:"reason"`
	Detail      string    `json:"detail,omitempty"`
	Token       string    `json:"token,omitempty"` // id
	Environment string    `json:"environment,omitempty"`
	Node        string    `json:"node,omitempty"`
	Machine     string    `json:"machine,omitempty"`
}

// Refusals counts what was refused, and tells the last ones.
type Refusals struct {
	Total  int64            `json:"total"`
	Counts map[string]int64 `json:"counts,omitempty"` // by reason
	Last   []Refusal        `json:"last,omitempty"`   // the newest first
}

// Add counts one more.
func (r *Refusals) Add(one Refusal) {
	one.Detail, one.Node, one.Machine = clip.Text(one.Detail, 256), clip.Text(one.Node, 253), clip.Text(one.Machine, 64)
	r.Merge(Refusals{Total: 1, Counts: map[string]int64{one.Reason: 1}, Last: []Refusal{one}})
}

// Merge adds what came after.
func (r *Refusals) Merge(news Refusals) {
	r.Total += news.Total
	if r.Counts == nil {
		r.Counts = map[string]int64{}
	}
	for reason, n := range news.Counts {
		if _, known := r.Counts[reason]; known || len(r.Counts) < maxReasons {
			r.Counts[reason] += n
		}
	}
	r.Last = append(append([]Refusal(nil), news.Last...), r.Last...)
	if len(r.Last) > maxRefusals {
		r.Last = r.Last[:maxRefusals]
	}
}

// Refusals reads what was refused, by all serves.
func (s *joinsPart) Refusals(ctx context.Context) (Refusals, error) {
	r, _, err := single[Refusals](ctx, s.db, s.keys.refusals())
	if err != nil {
		return Refusals{}, fmt.Errorf("cannot read what was refused: %w", err)
	}
	if r == nil {
		return Refusals{}, nil
	}
	return *r, nil
}

// AddRefusals adds to what was refused.
func (s *joinsPart) AddRefusals(ctx context.Context, news Refusals) error {
	for {
		old, revision, err := single[Refusals](ctx, s.db, s.keys.refusals())
		if err != nil {
			return err
		}
		all := Refusals{}
		if old != nil {
			all = *old
		}
		all.Merge(news)
		if err := s.replace(ctx, s.keys.refusals(), all, revision); !errors.Is(err, ErrConflict) {
			return err
		}
	}
}
