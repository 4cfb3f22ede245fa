package rollout

import "time"

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
	total := 0
	for _, f := range a.s.Failed {
		if !f.Accepted {
			total++
		}
	}
	if most := a.p.Policy.Failures.Of(a.p.Nodes(), 0); total > most {
		a.tooMany(Stop{Code: StopFailures, Failed: total, Allowed: most})
		return
	}
	if g, ok := a.s.Current(a.p); ok {
		from, to := g.batch(a.s.Batch)
		count := 0
		for _, m := range g.Nodes[from:to] {
			if f, failed := a.s.Failed[m.Node]; failed && !f.Accepted {
				count++
			}
		}
		if count > g.Failures {
			a.tooMany(Stop{Code: StopBatch, Failed: count, Allowed: g.Failures})
			return
		}
	}
	if limit := time.Duration(a.p.Policy.Progress); limit > 0 && len(a.s.Slots) > 0 && a.now.Sub(a.s.Moved) >= limit && !a.onlyHeld() {
		a.s.Moved = a.now // the next pause is a whole deadline later
		a.halt(Stop{Code: StopProgress})
	}
}

// onlyHeld reports whether an operator's hold explains every wait.
func (a *advance) onlyHeld() bool {
	for node := range a.s.Slots {
		if n, read := a.o.Nodes[node]; !read || !held(n) {
			return false
		}
	}
	return true
}

// mayskip reports whether the policy lets the campaign leave out one more node.
func (a *advance) mayskip() bool {
	skipped := 0
	for _, code := range a.s.Skipped {
		if code == SkipNotReady {
			skipped++
		}
	}
	return skipped < allowed(a.p.Policy.Skip, a.p.Nodes())
}
