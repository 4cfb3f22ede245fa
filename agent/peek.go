package agent

import "context"

// Peek returns the decision of a tick at this moment, and changes nothing. The caller must hold the node's lock.
func (a *Agent) Peek(ctx context.Context) (Decision, Desired, error) {
	t := &tick{Agent: a}
	state, err := a.Memory.Load()
	if err != nil {
		return Decision{}, Desired{}, err
	}
	disabled, err := a.Memory.Disabled()
	if err != nil {
		return Decision{}, Desired{}, err
	}
	if err := t.desire(ctx); err != nil {
		return Decision{}, Desired{}, err
	}
	t.state = state
	t.observed = Observed{Identity: a.Identity, Settings: a.Settings, Machine: a.MachineID, Disabled: disabled, PuppetBlocked: a.Puppet.Blocked()}
	return t.judge(), t.desired, nil
}

// Calm reports whether a tick with this decision only enforces the target in place: no new target, no hold, no closed
// gate, no failure. Only then may the agent be upgraded: an upgrade never coincides with new content.
func (d Decision) Calm(on Desired) bool {
	open := on.Gate.State == GateOpen || on.Gate.State == ""
	return open && d.Hold == nil && d.Blocked.Reason == "" && (d.Reason == ReasonUpToDate || d.Reason == ReasonDue)
}
