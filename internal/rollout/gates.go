package rollout

import (
	"maps"
	"slices"
	"time"

	"pulley/agent"
)

// Answer is what a gate of the policy answered. Gates are asked after each batch, before the next one begins or the campaign
// completes.
type Answer struct {
	Code AnswerCode  `json:"code"`
	Text agent.Prose `json:"text,omitempty"` // what a check said, one line
	At   time.Time   `json:"at"`
}

// AnswerCode is the code of an answer.
type AnswerCode string

// The answers. All but GatePassed block the campaign.
const (
	GatePassed     AnswerCode = "passed"
	GateRefused    AnswerCode = "refused"    // text
	GateUnanswered AnswerCode = "unanswered" // text: it could not be asked
	GateUndefined  AnswerCode = "undefined"  // this serve has no definition of it
)

// passed reports whether the gates let the campaign continue after a batch. The question begins with a state that is written
// first: answers are newer than the batch.
func (a *advance) passed(g Group) bool {
	gates := a.p.Policy.Gates
	if len(gates) == 0 || len(g.Nodes) == 0 {
		return true
	}
	if a.s.Asked.After(a.now) { // the clock was set back
		a.s.Asked, a.changed = a.now, true
	}
	if a.s.Asked.IsZero() {
		a.s.Asked, a.s.Answers, a.changed = a.now, nil, true
		return false
	}
	blocking := map[string]Answer{}
	for _, gate := range gates {
		now, asked := a.o.Answers[gate]
		before, had := a.s.Answers[gate]
		switch {
		case asked && now.Code == GatePassed:
		case had && (!asked || now.Code == before.Code || now.Code == GateUndefined): // another serve may know it
			blocking[gate] = before
		case asked:
			blocking[gate] = now
		default:
			blocking[gate] = Answer{}
		}
	}
	if len(blocking) == 0 {
		a.s.Asked, a.s.Answers, a.changed = time.Time{}, nil, true
		return true
	}
	a.wait = Wait{Code: WaitAnswers, Until: a.s.Asked.Add(time.Duration(a.p.Policy.Progress)), Answers: maps.Clone(blocking)}
	maps.DeleteFunc(blocking, func(_ string, one Answer) bool { return one.Code == "" })
	if !sameCodes(blocking, a.s.Answers) {
		a.s.Answers, a.changed = blocking, true
	}
	if limit := time.Duration(a.p.Policy.Progress); limit > 0 && a.now.Sub(a.s.Asked) >= limit {
		a.halt(Stop{Code: StopGates, Gates: slices.Sorted(maps.Keys(a.wait.Answers))})
	}
	return false
}

func sameCodes(a, b map[string]Answer) bool {
	return maps.EqualFunc(a, b, func(x, y Answer) bool { return x.Code == y.Code })
}
