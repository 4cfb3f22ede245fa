package rollout

import (
	"maps"
	"slices"
	"time"

	"pulley/internal/model"
)

// StopCode is the code of a pause that the campaign made by itself.
type StopCode string

// The causes of a pause.
const (
	StopFailures StopCode = "failures"       // failed, allowed: of the campaign
	StopBatch    StopCode = "batch_failures" // failed, allowed: of the batch
	StopProgress StopCode = "progress"       // no node ended for too long
	StopGates    StopCode = "gates"          // gates: they blocked the next batch for too long
	StopPlace    StopCode = "place"          // node, place, nodes, the first few: it waited for too long, because these are unavailable
	StopBusy     StopCode = "busy"           // nodes: they ran for too long before the job could begin
	StopDoubtful StopCode = "doubtful"       // node, run: it failed because etcd did not answer
	StopServer   StopCode = "puppet_server"  // node, run, if one began: its Puppet server did not answer
	StopOther    StopCode = "code_changed"   // node, before, after: the Puppet server gave it other code than the nodes before it
	StopRestored StopCode = "restored"       // node, or none, epoch: it, or serve, has seen this later one: etcd went back in time
)

// Stop is the cause of a pause, with the parameters that the comment of its code names.
type Stop struct {
	Code    StopCode    `json:"code"`
	Node    string      `json:"node,omitempty"`
	Run     string      `json:"run,omitempty"`
	Place   string      `json:"place,omitempty"`
	Failed  int         `json:"failed,omitempty"`
	Allowed int         `json:"allowed,omitempty"`
	Gates   []string    `json:"gates,omitempty"`
	Nodes   []string    `json:"nodes,omitempty"`
	Epoch   model.Epoch `json:"epoch,omitempty"`
	Before  string      `json:"before,omitempty"`
	After   string      `json:"after,omitempty"`
	At      time.Time   `json:"at"`
}

// WaitCode is the code of what a campaign waits for.
type WaitCode string

// The waits.
const (
	WaitGate     WaitCode = "gate"     // gate, stop: paused or aborted
	WaitApproval WaitCode = "approval" // of an operator, after the canaries; before another batch node, its first one
	WaitNodes    WaitCode = "nodes"    // nodes, count, until: in progress
	WaitSettle   WaitCode = "settle"   // nodes, count, until: they took the target, and must stay healthy; zero: they must still report once more
	WaitIdle     WaitCode = "idle"     // nodes, count, until: they run, and the job begins when they end
	WaitLost     WaitCode = "lost"     // nodes, count: they keep their slots until an operator acts
	WaitHeld     WaitCode = "held"     // nodes, count, of a job until: an operator's hold, or the machine itself, keeps them
	WaitAnswers  WaitCode = "answers"  // answers, until: gates block the next batch; then it pauses
	WaitWindow   WaitCode = "window"   // until: the next window opens; zero: none that this machine can read does
	WaitPlace    WaitCode = "place"    // node, place: too many of it are unavailable
	WaitRead     WaitCode = "read"     // more must be read from etcd
	WaitServe    WaitCode = "serve"    // the next step is due, and no serve has taken it
)

// Wait is what a campaign waits for, with the parameters that the comment of its code names.
type Wait struct {
	Code  WaitCode    `json:"code"`
	Nodes []string    `json:"nodes,omitempty"` // the first few
	Count int         `json:"count,omitempty"`
	Until time.Time   `json:"until,omitzero"` // of nodes: when the first of them ends its settle time or its deadline; of settle: the last of them
	Node  string      `json:"node,omitempty"`
	Place string      `json:"place,omitempty"`
	Gate  *model.Gate `json:"gate,omitempty"`
	Stop  *Stop       `json:"stop,omitempty"`
	Lost  []string    `json:"lost,omitempty"` // nodes that keep their slots until an operator acts, whatever the wait is for
	// nodes that are held beyond their deadline, whatever the wait is for, and of place: node, if no node ended for longer than progress
	Overdue []string `json:"overdue,omitempty"`

	Answers map[string]Answer `json:"answers,omitempty"` // of the gates that block; without a code: not yet
}

// Blocking names the gates that block the next batch, without those that are being asked for the first time.
func (w Wait) Blocking() (gates []string) {
	for _, gate := range slices.Sorted(maps.Keys(w.Answers)) {
		if w.Answers[gate].Code != "" {
			gates = append(gates, gate)
		}
	}
	return gates
}

// named is the number of nodes that a wait names.
const named = 4

// waits returns what the campaign waits for; it is never empty.
func (a *advance) waits() Wait {
	w := a.waitsFor()
	for _, node := range a.s.slots() {
		switch slot := a.s.Slots[node]; {
		case slot.State == Lost:
			w.Lost = append(w.Lost, node)
		case a.p.Kind != Run && a.open() && slot.State == Ordered && isHeld(a.o.Nodes[node]) && a.now.Sub(slot.At) >= time.Duration(a.p.Policy.Deadline):
			w.Overdue = append(w.Overdue, node)
		}
	}
	if w.Code == WaitPlace && a.keptTooLong() {
		w.Overdue = append(w.Overdue, w.Node)
	}
	return w
}

func (a *advance) waitsFor() Wait {
	switch {
	case !a.open():
		gate := a.o.Gate
		return Wait{Code: WaitGate, Gate: &gate, Stop: a.s.Stop}
	case a.wait.Code != "":
		return a.wait
	case len(a.s.Slots) > 0:
		return a.waitForNodes()
	}
	return Wait{Code: WaitRead}
}

// waitForNodes describes the nodes that occupy slots: those that may end by themselves first.
func (a *advance) waitForNodes() Wait {
	w, lost, held_ := Wait{Code: WaitNodes}, Wait{Code: WaitLost}, Wait{Code: WaitHeld}
	settles, settled := true, time.Time{}
	for _, node := range a.s.slots() {
		slot := a.s.Slots[node]
		settles = settles && (slot.State == Healthy || slot.State == Lost)
		into, until := &w, slot.At.Add(time.Duration(a.p.Policy.Deadline))
		switch {
		case slot.State == Lost:
			into, until = &lost, time.Time{}
		case slot.State == Healthy:
			if until = slot.Since.Add(time.Duration(a.p.Policy.Settle)); until.After(settled) {
				settled = until
			}
		case a.kept(a.o.Nodes[node]): // until its deadline
			into = &held_
		case isHeld(a.o.Nodes[node]) && a.p.Kind != Run:
			into, until = &held_, time.Time{}
		}
		if into.Count++; len(into.Nodes) < named {
			into.Nodes = append(into.Nodes, node)
		}
		if into.Until.IsZero() || until.Before(into.Until) {
			into.Until = until
		}
	}
	switch {
	case w.Count > 0 && settles:
		if w.Code, w.Until = WaitSettle, settled; !settled.After(a.now) {
			w.Until = time.Time{} // only a report is missing
		}
		return w
	case w.Count > 0:
		return w
	case held_.Count > 0:
		return held_
	}
	return lost
}
