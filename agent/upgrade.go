package agent

// AgentChoice is which version of pulley-agent a node is to run; without a version it is left as it is.
type AgentChoice struct {
	Version   string `json:"version,omitempty"`   // as `pulley agents list` shows it
	Downgrade bool   `json:"downgrade,omitempty"` // also where an older one than the node's own
	Try       int64  `json:"try,omitempty"`       // a version that was dropped at a lower number is tried once more
	Unknown   bool   `json:"-"`                   // etcd holds something else here that can't be read: that takes nothing back
}

// UpgradePhase says how far a node is on the way to another agent.
type UpgradePhase string

// The phases of an upgrade, as a node's status tells them.
const (
	UpgradeWaiting   UpgradePhase = "waiting"   // it is still to be fetched and tested; Problem says what is in the way
	UpgradeProbation UpgradePhase = "probation" // the new agent does the ticks, watched by the one that is in place
	UpgradeDropped   UpgradePhase = "dropped"   // the new agent failed; the one that is in place goes on
)

// Upgrade is where a node stands with its own agent. Its status has none when it runs the agent that is wanted.
type Upgrade struct {
	Wanted  string       `json:"wanted"` // version
	Phase   UpgradePhase `json:"phase"`
	Problem Problem      `json:"problem,omitzero"`
}
