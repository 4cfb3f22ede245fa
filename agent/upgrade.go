package agent

// AgentChoice is the wanted version of pulley-agent. Without a version, the node keeps its agent.
type AgentChoice struct {
	Version   string `json:"version,omitempty"`   // as `pulley agents list` shows it
	Downgrade bool   `json:"downgrade,omitempty"` // also accept a version older than the node's own
	Try       int64  `json:"try,omitempty"`       // a version that was dropped at a lower number is retried
	Unknown   bool   `json:"-"`                   // this agent cannot read the choice in etcd: it changes nothing
}

// UpgradePhase is the progress of an agent upgrade.
type UpgradePhase string

// The phases of an upgrade.
const (
	UpgradeWaiting   UpgradePhase = "waiting"   // the agent must be fetched and tested; Problem is the obstacle
	UpgradeProbation UpgradePhase = "probation" // the new agent runs the ticks; the agent in place watches it
	UpgradeDropped   UpgradePhase = "dropped"   // the new agent failed; the agent in place stays
)

// Upgrade is the state of a node's own agent. The status has none when the node runs the wanted agent.
type Upgrade struct {
	Wanted  string       `json:"wanted"` // version
	Phase   UpgradePhase `json:"phase"`
	Problem Problem      `json:"problem,omitzero"`
}
