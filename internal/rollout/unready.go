package rollout

import (
	"pulley/environments"
	"pulley/internal/model"
)

// UnreadyCause is why a node cannot take a target when its turn comes.
type UnreadyCause string

// The causes. UnreadyOthers stands in a policy for those that it does not name.
const (
	UnreadySilent    UnreadyCause = "silent"    // it does not report
	UnreadyHeld      UnreadyCause = "held"      // by an operator
	UnreadyDisabled  UnreadyCause = "disabled"  // on the machine itself
	UnreadyRetiring  UnreadyCause = "retiring"  // an apply removes it
	UnreadyStuck     UnreadyCause = "stuck"     // too many runs failed
	UnreadyDuplicate UnreadyCause = "duplicate" // two machines have its name
	UnreadyFailed    UnreadyCause = "failed"    // its last run failed, or it refuses its target
	UnreadyOthers    UnreadyCause = "others"
)

// UnreadyCauses lists the causes for which a node cannot begin, in the order of the documentation.
func UnreadyCauses() []UnreadyCause {
	return []UnreadyCause{UnreadySilent, UnreadyHeld, UnreadyDisabled, UnreadyRetiring, UnreadyStuck, UnreadyDuplicate, UnreadyFailed}
}

// Unready is what happens to a node that cannot take a target when its turn comes.
type Unready string

// The treatments.
const (
	UnreadyWait Unready = "wait" // order it; its deadline decides
	UnreadySkip Unready = "skip" // leave it out, up to Policy.Skip nodes
	UnreadyFail Unready = "fail"
)

// Kept reports whether an operator, or an apply, ends the cause: the deadline of such a node does not end the wait.
func (c UnreadyCause) Kept() bool {
	return c == UnreadyHeld || c == UnreadyDisabled || c == UnreadyRetiring
}

// treatments returns the treatments that an environment names.
func treatments(from environments.UnreadyPolicy) map[UnreadyCause]Unready {
	all := map[UnreadyCause]Unready{}
	for cause, text := range map[UnreadyCause]string{
		UnreadySilent: from.Silent, UnreadyHeld: from.Held, UnreadyDisabled: from.Disabled, UnreadyRetiring: from.Retiring,
		UnreadyStuck: from.Stuck, UnreadyDuplicate: from.Duplicate, UnreadyFailed: from.Failed, UnreadyOthers: from.Others,
	} {
		if text != "" {
			all[cause] = Unready(text)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// Treats returns what happens to nodes that cannot begin for a cause.
func (p Policy) Treats(cause UnreadyCause) Unready {
	for _, key := range []UnreadyCause{cause, UnreadyOthers} {
		if t := p.Unready[key]; t != "" && cause != "" {
			return t
		}
	}
	return UnreadyWait
}

// CannotBegin returns why a node could not begin now; "" if it could.
func CannotBegin(v model.View) UnreadyCause {
	switch v.State {
	case model.Silent:
		return UnreadySilent
	case model.Stuck:
		return UnreadyStuck
	case model.FailedState:
		if v.Reason == model.ReasonOtherMachine {
			return UnreadyDuplicate
		}
		return UnreadyFailed
	case model.Held:
		if cause := held(v); cause != "" {
			return cause
		}
	}
	if v.Failing { // it repeats its run, or waits for the next one
		return UnreadyFailed
	}
	return ""
}

func held(v model.View) UnreadyCause {
	switch v.Reason {
	case model.ReasonRetire, model.ReasonRetired:
		return UnreadyRetiring
	case model.ReasonDisabled, model.ReasonPuppetBlocked:
		if b := v.Params.Blocked; b != nil && b.Code == model.PuppetBusy {
			return "" // the end of another Puppet's run is near
		}
		return UnreadyDisabled
	}
	if h := v.Params.Hold; h != nil {
		switch h.Kind {
		case model.RetirementHold:
			return UnreadyRetiring
		case model.DuplicateHold:
			return UnreadyDuplicate
		}
	}
	return UnreadyHeld
}

// repairable reports whether a target may end the cause.
func repairable(c UnreadyCause) bool { return c == UnreadyFailed || c == UnreadyStuck }

// Unavailable reports whether a node that is not in progress counts as unavailable for its places. A frozen node enforces what it has,
// and is unavailable only if that failed. A node with Puppet's own daemon enforces it as well, and does not report how. A node that never
// converged serves nothing yet.
func Unavailable(v model.View) bool {
	switch v.Reason {
	case model.ReasonDaemon:
		return false
	case model.ReasonFrozen:
		return v.Failing || v.New
	}
	return v.New || CannotBegin(v) != ""
}
