package rollout

import (
	"time"
)

// halt pauses the campaign. The first cause counts.
func (a *advance) halt(s Stop) {
	if a.stop == nil && a.open() {
		s.At = a.now
		a.stop, a.s.Stop, a.s.Closed, a.changed = &s, &s, a.now, true
	}
}

// tooMany pauses or reverts a campaign with too many failures.
func (a *advance) tooMany(s Stop) {
	a.halt(s)
	if a.stop != nil && a.stop.Code == s.Code && a.p.Policy.OnFailure == FailureReverts {
		a.s = a.s.Revert(a.now)
	}
}

// limits pauses a campaign with too many failures, or without progress.
func (a *advance) limits() {
	if a.failures() {
		return
	}
	if limit := time.Duration(a.p.Policy.Progress); limit > 0 && len(a.s.Slots) > 0 && a.now.Sub(a.s.Moved) >= limit && !a.onlyHeld() && !a.settles() {
		a.s.Moved = a.now // the next pause is a whole deadline later
		a.halt(Stop{Code: StopProgress})
	}
}

// failures pauses a campaign with too many failures, of all nodes or of one batch. Earlier batches count as well: an operator may have
// ordered their nodes again.
func (a *advance) failures() bool {
	total := 0
	for _, f := range a.s.Failed {
		if !f.Accepted {
			total++
		}
	}
	if most := a.p.Policy.MayFail(a.p.Policy.Failures, a.s.Done+len(a.s.Failed), a.s.Nodes(a.p)); total > most {
		a.tooMany(Stop{Code: StopFailures, Failed: total, Allowed: most})
		return true
	}
	for i := 0; i <= a.s.Group && total > 0; i++ {
		g, ok := a.s.InOrder(a.p, i)
		begun := len(g.Nodes)
		if i == a.s.Group {
			begun = a.s.Next
		}
		for batch := 0; ok && g.Failures != "" && batch*g.Batch < begun; batch++ {
			from, to := g.batch(batch)
			count, ended := a.inBatch(i, g.Nodes[from:min(to, begun)])
			if most := a.p.Policy.MayFail(g.Failures, ended, to-from); count > most {
				a.tooMany(Stop{Code: StopBatch, Failed: count, Allowed: most})
				return true
			}
		}
	}
	return false
}

// inBatch counts the failures that no operator accepted among nodes that began, and the nodes that ended.
func (a *advance) inBatch(group int, nodes []Member) (failed, ended int) {
	for _, m := range nodes {
		f, fails := a.s.Failed[m.Node]
		_, busy := a.s.Slots[m.Node]
		_, skipped := a.s.Skipped[m.Node]
		switch {
		case len(a.s.Late) > 0 && a.member(m.Node).group != group: // another machine of this name
		case fails:
			ended++
			if !f.Accepted {
				failed++
			}
		case !busy && !skipped && !a.waitsAgain(m.Node):
			ended++
		}
	}
	return failed, ended
}

// onlyHeld reports whether an operator's hold explains every wait.
func (a *advance) onlyHeld() bool {
	for node := range a.s.Slots {
		if n, read := a.o.Nodes[node]; !read || !isHeld(n) {
			return false
		}
	}
	return true
}

// settles reports whether a node is within its settle time: it ends without an operator.
func (a *advance) settles() bool {
	for _, slot := range a.s.Slots {
		if slot.State == Healthy && a.now.Sub(slot.Since) < time.Duration(a.p.Policy.Settle) {
			return true
		}
	}
	return false
}

// mayskip reports whether the policy lets the campaign leave out one more node.
func (a *advance) mayskip() bool {
	skipped := 0
	for _, code := range a.s.Skipped {
		if code != SkipRemoved && code != SkipOperator {
			skipped++
		}
	}
	return a.p.Policy.Skip == "" || skipped < a.p.Policy.Skip.Of(a.s.Nodes(a.p), 0)
}
