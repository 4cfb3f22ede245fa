package machinestest

import (
	"testing"
	"time"

	"pulley/environments"
)

// Tests with the fleet in memory would not hold for the one in etcd if the two differed.
func TestSimKeepsContract(t *testing.T) {
	FleetContract(t, func(*testing.T) Subject {
		s := NewSim(environments.Ref{Environment: "dev", Stack: "t42"}, time.Now)
		s.Demote()
		admits := func(token string) bool { return s.Tokens()[token] != "" }
		return Subject{Fleet: s.Open("ann", nil), Ref: s.Ref, Join: s.Join, Report: s.Report, Admits: admits, LoseLock: func() { s.Open("bob", nil) }}
	})
}
