package store

import (
	"context"
	"slices"
	"time"

	"pulley/internal/store/etcd"
)

// Severity is how bad a finding is.
type Severity string

// The severities. A problem is what is broken or open now; a warning is what will be, or could not be looked at.
const (
	Fine    Severity = "ok"
	Warning Severity = "warning"
	Problem Severity = "problem"
)

// Finding is one thing that was looked at.
type Finding struct {
	Check       string   `json:"check"` // what was looked at, in one word that stays the same
	Severity    Severity `json:"severity"`
	Text        string   `json:"text"`
	Environment string   `json:"environment,omitempty"`
	Node        string   `json:"node,omitempty"`
	Advice      string   `json:"advice,omitempty"` // what to do; commands are in backquotes
}

// Diagnosis is all that was found.
type Diagnosis []Finding

// Worst is the worst severity of all.
func (d Diagnosis) Worst() Severity {
	worst := Fine
	for _, f := range d {
		if rank(f.Severity) > rank(worst) {
			worst = f.Severity
		}
	}
	return worst
}

func rank(s Severity) int { return slices.Index([]Severity{Fine, Warning, Problem}, s) }

// add adds a finding and returns it, for what only some have.
func (d *Diagnosis) add(check string, severity Severity, text, advice string) *Finding {
	*d = append(*d, Finding{Check: check, Severity: severity, Text: text, Advice: advice})
	return &(*d)[len(*d)-1]
}

// of adds a finding about a node.
func (d *Diagnosis) of(env, node, check string, severity Severity, text, advice string) {
	f := d.add(check, severity, text, advice)
	f.Environment, f.Node = env, node
}

// Doctor looks at all that a fleet rests on in etcd: the cluster, who may do what in it, certificates, and what nodes left
// behind. With mend it first puts right what can be put right without deciding anything: grants of roles, and users that
// belong to nobody. An error is only that nothing could be asked at all; each gap that it meets is a finding.
func (s *Doctor) Examine(ctx context.Context, c etcd.Config, now time.Time, mend bool) (Diagnosis, error) {
	var d Diagnosis
	cluster, err := s.examineCluster(ctx, c)
	if err != nil {
		return nil, err
	}
	judgeCluster(&d, cluster)
	judgeCertificates(&d, cluster, now)
	access, err := s.examineAccess(ctx)
	if err != nil {
		return d, err
	}
	fleets, err := s.examineFleets(ctx)
	if err != nil {
		return d, err
	}
	if access.admin && mend {
		if err := s.mend(ctx, &d, access, fleets); err != nil {
			return d, err
		}
		if access, err = s.examineAccess(ctx); err != nil {
			return d, err
		}
	}
	s.judgeAccess(&d, access, fleets)
	s.judgeRoles(&d, access, fleets)
	for _, f := range fleets {
		judgeFleet(&d, f, now)
		s.judgeUsers(&d, access, f)
	}
	s.judgeNames(ctx, &d, access, fleets)
	s.judgeOperators(ctx, &d, access, now)
	s.judgeNotices(ctx, &d, now)
	return d, nil
}
