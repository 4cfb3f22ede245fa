package agent

// AgentChoice is the version of pulley-agent that a node is to run; without a version its agent stays.
type AgentChoice struct {
	Version   string `json:"version,omitempty"`   // as `pulley agents list` shows it
	Downgrade bool   `json:"downgrade,omitempty"` // also where an older one than the node's own
	Try       int64  `json:"try,omitempty"`       // a version that was dropped at a lower number is retried
	Unknown   bool   `json:"-"`                   // etcd holds a choice that this agent cannot read: it changes nothing
}

// UpgradePhase is how far a node is with another agent.
type UpgradePhase string

// The phases of an upgrade.
const (
	UpgradeWaiting   UpgradePhase = "waiting"   // it is to be fetched and tested; Problem is the obstacle
	UpgradeProbation UpgradePhase = "probation" // the new agent does the ticks, watched by the agent in place
	UpgradeDropped   UpgradePhase = "dropped"   // the new agent failed; the agent in place stays
)

// Upgrade is the state of a node's own agent. The status has none when the node runs the wanted agent.
type Upgrade struct {
	Wanted  string       `json:"wanted"` // version
	Phase   UpgradePhase `json:"phase"`
	Problem Problem      `json:"problem,omitzero"`
}
