package rollout

import (
	"strconv"
	"strings"
	"testing"

	"pulley/agent"
	"pulley/internal/release/trust/refusal"
)

// An agent that a node dropped, or that never ran, must not count as taken: the next batch would follow it.
func TestVerdictOnAgent(t *testing.T) {
	plan := Plan{ID: "r5", Agent: agent.AgentChoice{Version: "1.1.0"}}
	upgrade := func(phase agent.UpgradePhase, code agent.ProblemCode) *agent.Upgrade {
		return &agent.Upgrade{Wanted: "1.1.0", Phase: phase, Problem: agent.Problem{Code: code}}
	}
	for name, c := range map[string]struct {
		change func(*agent.Status)
		want   answer
		code   FailureCode
	}{
		"it is installed, and its tick succeeded":                      {func(*agent.Status) {}, succeeded, ""},
		"a version with the v of a git tag":                            {func(s *agent.Status) { s.Version = "v1.1.0" }, succeeded, ""},
		"the status answers another assignment":                        {func(s *agent.Status) { s.Assignment = "r5.1" }, silent, ""},
		"an agent that does not know the order keeps its own":          {func(s *agent.Status) { s.Version = "1.0.0" }, silent, ""},
		"an agent that does not know the order follows what is wished": {func(s *agent.Status) { s.Agent = &agent.Upgrade{Wanted: "1.0.1", Phase: agent.UpgradeDropped} }, silent, ""},
		"it is to be fetched":                                          {func(s *agent.Status) { s.Version, s.Agent = "1.0.0", upgrade(agent.UpgradeWaiting, "") }, silent, ""},
		"a mirror does not answer": {func(s *agent.Status) {
			s.Version, s.Agent = "1.0.0", upgrade(agent.UpgradeWaiting, agent.UpgradeUnavailable)
		}, silent, ""},
		"it runs the ticks on probation": {func(s *agent.Status) { s.Agent = upgrade(agent.UpgradeProbation, "") }, working, ""},
		"it was dropped": {func(s *agent.Status) {
			s.Version, s.Agent = "1.0.0", upgrade(agent.UpgradeDropped, agent.UpgradeKilled)
		}, failed, AgentDropped},
		"its signature is refused": {func(s *agent.Status) {
			s.Version, s.Agent = "1.0.0", upgrade(agent.UpgradeWaiting, agent.UpgradeRefused)
		}, refusedTarget, NodeRefused},
		"it is older": {func(s *agent.Status) { s.Version, s.Agent = "1.2.0", upgrade(agent.UpgradeWaiting, agent.UpgradeOlder) }, refusedTarget, NodeRefused},
		"no program for the platform": {func(s *agent.Status) {
			s.Version, s.Agent = "1.0.0", upgrade(agent.UpgradeWaiting, agent.UpgradeNoProgram)
		}, refusedTarget, NodeRefused},
		"installed, and a run is in progress": {func(s *agent.Status) { s.Phase = agent.Running }, working, ""},
		"installed, and its run failed": {func(s *agent.Status) {
			s.Outcome, s.Attempt = agent.Failed, &agent.Attempt{Target: oldT, Started: 1, Finished: 1}
		}, failed, RunFailed},
		"installed, and etcd did not answer its run": {func(s *agent.Status) {
			s.Attempt = &agent.Attempt{Target: oldT, Started: 1, Finished: 1, Problem: agent.Problem{Code: agent.EtcdLost}}
		}, doubtful, ""},
	} {
		st := agent.Status{Version: "1.1.0", Assignment: "r5.2", Phase: agent.Idle, Target: oldT, LastGood: oldT, Enforcing: oldT}
		c.change(&st)
		v := verdict(plan, Node{Status: &st, Wanted: oldT}, Slot{ID: "r5.2"})
		if v.answer != c.want || v.failure.Code != c.code {
			t.Errorf("%s: %s %s, want %s %s", name, v.answer, v.failure.Code, c.want, c.code)
		}
		if st.Agent != nil && v.failure.Code != "" && v.failure.Problem != st.Agent.Problem {
			t.Errorf("%s: the failure has the problem %+v", name, v.failure.Problem)
		}
	}
}

// The status loses the cause of a refusal with the order: the rollout would name none.
func TestFailuresKeepTheirCauses(t *testing.T) {
	t.Parallel()
	text := Failure{Code: NodeRefused, Problem: agent.Problem{Code: agent.UpgradeNoProgram, Text: agent.Prose(strings.Repeat("x", 10*textBytes))}}
	signature := Failure{Code: NodeRefused, Refusal: refusal.New(refusal.KeyUnknown, "key", strings.Repeat("k", textBytes-len(refusal.KeyUnknown)-len("key")))}
	for name, c := range map[string]struct {
		version string
		f       Failure
		most    int
	}{
		"of an agent":                {"1.1.0", text, keptBytes / textBytes},
		"of a run, whose record has": {"", text, 0},
		"of a signature":             {"", signature, keptBytes / textBytes},
	} {
		s := State{Failed: map[string]Failure{}, Slots: map[string]Slot{}}
		for i := range keptBytes/textBytes + 20 {
			a := advance{p: Plan{Agent: agent.AgentChoice{Version: c.version}}, s: s}
			if node := strconv.Itoa(i); i < 10 {
				a.put(node, withdrawn(Slot{}, a.bounded(c.f), ""))
			} else {
				a.fail(node, a.bounded(c.f))
			}
		}
		for node, slot := range s.Slots {
			s.Failed[node] = Failure{Problem: slot.Problem, Refusal: slot.Refusal}
		}
		causes := 0
		for _, f := range s.Failed {
			if n := textOf(f.Problem, f.Refusal); n > textBytes {
				t.Errorf("a cause of %d bytes", n)
			} else if n > 0 {
				causes++
			}
		}
		if causes != c.most {
			t.Errorf("%s: %d causes, want %d", name, causes, c.most)
		}
	}
}
