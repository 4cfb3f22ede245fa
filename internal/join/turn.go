package join

import (
	"fmt"
	"time"

	"pulley/internal/model"
)

// TurnAnswer tells a machine whether it may be provisioned into its Puppet server now.
type TurnAnswer struct {
	Granted bool          `json:"granted"`
	Wait    Wait          `json:"wait,omitempty"`   // why not
	Before  int           `json:"before,omitempty"` // machines that wait longer
	By      string        `json:"by,omitempty"`     // the operator who paused
	Why     model.Prose   `json:"why,omitempty"`    // and the reason
	After   time.Duration `json:"after,omitempty"`  // until the machine asks again, in nanoseconds
}

// Wait is why a machine waits for its turn.
type Wait string

// The reasons to wait.
const (
	WaitPaused   Wait = "paused"   // an operator paused the provisioning of the environment
	WaitFiltered Wait = "filtered" // provision.where does not select the machine
	WaitFull     Wait = "full"     // as many machines as allowed are being provisioned, or wait longer
	WaitPause    Wait = "pause"    // provision.sleeptime since the last machine has not passed
)

// String says for people what the machine waits for.
func (a TurnAnswer) String() string {
	switch {
	case a.Granted:
		return "it is the machine's turn"
	case a.Wait == WaitPaused:
		text := "provisioning is paused"
		if a.By != "" {
			text += " by " + a.By
		}
		if a.Why != "" {
			text += ": " + string(a.Why)
		}
		return text
	case a.Wait == WaitFiltered:
		return "provision.where of the environment does not select this machine"
	case a.Wait == WaitPause:
		return "the pause between two machines has not passed"
	case a.Wait == WaitFull:
		return fmt.Sprintf("other machines have their turn, and %d wait longer", a.Before)
	}
	return string(a.Wait)
}
