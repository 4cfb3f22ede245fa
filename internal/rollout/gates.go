package rollout

import (
	"maps"
	"slices"
	"time"

	"pulley/internal/model"
)

// Answer is what a gate of the policy answered. Gates are asked after each batch, before the next one begins or the campaign
// completes.
type Answer struct {
	Code AnswerCode  `json:"code"`
	Text model.Prose `json:"text,omitempty"` // what a check said, one line
	At   time.Time   `json:"at"`
}

// AnswerAge is how old an answer may be that lets nodes begin, or the campaign complete: an older one is asked for again.
const AnswerAge = 30 * time.Second

// AnswerCode is the code of an answer.
type AnswerCode string

// The answers. All but GatePassed block the campaign.
const (
	GatePassed     AnswerCode = "passed"
	GateRefused    AnswerCode = "refused"    // text
	GateUnanswered AnswerCode = "unanswered" // text: it could not be asked
	GateUndefined  AnswerCode = "undefined"  // this serve has no definition of it
)

// passed reports whether the gates let the first node of a batch begin, or the campaign complete. The question begins with a state that is
// written first: answers are newer than the end of the batch before.
func (a *advance) passed() bool {
	gates := a.p.Policy.Gates
	if len(gates) == 0 || a.s.Passed || !a.s.beyondFirst() {
		return true
	}
	if a.s.Asked.After(a.now) { // the clock was set back
		a.s.Asked, a.changed = a.now, true
	}
	if a.s.Asked.IsZero() {
		a.s.Asked, a.s.Answers, a.changed = a.now, nil, true
		a.wait = Wait{Code: WaitAnswers}
		return false
	}
	blocking := map[string]Answer{}
	for _, gate := range gates {
		now, asked := a.o.Answers[gate]
		asked = asked && !now.Outdated(a.now)
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
		a.s.Passed, a.s.Asked, a.s.Answers, a.changed = true, time.Time{}, nil, true
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

// Outdated reports whether an answer is too old to decide, or from a clock that was set back since.
func (a Answer) Outdated(now time.Time) bool { return now.Sub(a.At).Abs() > AnswerAge }

// outdated reports whether a node was ordered on answers of gates that are too old now: etcd, or every serve, was away before its
// assignment was written.
func (a *advance) outdated(slot Slot, n Node) bool {
	return len(a.p.Policy.Gates) > 0 && slot.State == Ordered && !slot.Again && !n.has(slot, a.p.Epoch) && a.now.Sub(slot.At) > AnswerAge
}

// reordered asks the gates again for nodes of a batch whose assignments were not written in time, and reports whether there are none left.
func (a *advance) reordered() bool {
	var nodes []string
	for _, node := range a.s.slots() {
		if n, read := a.o.Nodes[node]; read && a.outdated(a.s.Slots[node], n) {
			nodes = append(nodes, node)
		}
	}
	if len(nodes) == 0 {
		return true
	}
	if a.s.Asked.IsZero() {
		a.s.Passed = false
	}
	if !a.passed() {
		return false
	}
	for _, node := range nodes {
		slot := a.s.Slots[node]
		slot.At = a.now
		a.put(node, slot)
	}
	return true
}

func sameCodes(a, b map[string]Answer) bool {
	return maps.EqualFunc(a, b, func(x, y Answer) bool { return x.Code == y.Code })
}
