package rollout

import (
	"strconv"
	"strings"
	"testing"

	"pulley/internal/model"
	"pulley/internal/model/refusal"
)

// An agent that a node dropped, or that never ran, must not count as taken: the next batch would follow it.
func TestVerdictOnAgent(t *testing.T) {
	plan := Plan{ID: "r5", Agent: model.AgentChoice{Version: "1.1.0"}}
	upgrade := func(phase model.UpgradePhase, code model.ProblemCode) *model.Upgrade {
		return &model.Upgrade{Wanted: "1.1.0", Phase: phase, Problem: model.Problem{Code: code}}
	}
	for name, c := range map[string]struct {
		change func(*model.Status)
		want   answer
		code   FailureCode
	}{
		"it is installed, and its tick succeeded":                      {func(*model.Status) {}, succeeded, ""},
		"a version with the v of a git tag":                            {func(s *model.Status) { s.Version = "v1.1.0" }, succeeded, ""},
		"the status answers another assignment":                        {func(s *model.Status) { s.Assignment = "r5.1" }, silent, ""},
		"an agent that does not know the order keeps its own":          {func(s *model.Status) { s.Version = "1.0.0" }, silent, ""},
		"an agent that does not know the order follows what is wished": {func(s *model.Status) { s.Agent = &model.Upgrade{Wanted: "1.0.1", Phase: model.UpgradeDropped} }, silent, ""},
		"it is to be fetched":                                          {func(s *model.Status) { s.Version, s.Agent = "1.0.0", upgrade(model.UpgradeWaiting, "") }, silent, ""},
		"a mirror does not answer": {func(s *model.Status) {
			s.Version, s.Agent = "1.0.0", upgrade(model.UpgradeWaiting, model.UpgradeUnavailable)
		}, silent, ""},
		"it runs the ticks on probation": {func(s *model.Status) { s.Agent = upgrade(model.UpgradeProbation, "") }, working, ""},
		"it was dropped": {func(s *model.Status) {
			s.Version, s.Agent = "1.0.0", upgrade(model.UpgradeDropped, model.UpgradeKilled)
		}, failed, AgentDropped},
		"its signature is refused": {func(s *model.Status) {
			s.Version, s.Agent = "1.0.0", upgrade(model.UpgradeWaiting, model.UpgradeRefused)
		}, refusedTarget, NodeRefused},
		"it is older": {func(s *model.Status) { s.Version, s.Agent = "1.2.0", upgrade(model.UpgradeWaiting, model.UpgradeOlder) }, refusedTarget, NodeRefused},
		"no program for the platform": {func(s *model.Status) {
			s.Version, s.Agent = "1.0.0", upgrade(model.UpgradeWaiting, model.UpgradeNoProgram)
		}, refusedTarget, NodeRefused},
		"installed, and a run is in progress": {func(s *model.Status) { s.Phase = model.Running }, working, ""},
		"installed, and its run failed": {func(s *model.Status) {
			s.Outcome, s.Attempt = model.Failed, &model.Attempt{Target: oldT, Started: 1, Finished: 1}
		}, failed, RunFailed},
		"installed, and etcd did not answer its run": {func(s *model.Status) {
			s.Attempt = &model.Attempt{Target: oldT, Started: 1, Finished: 1, Problem: model.Problem{Code: model.EtcdLost}}
		}, doubtful, ""},
	} {
		st := model.Status{Version: "1.1.0", Assignment: "r5.2", Phase: model.Idle, Target: oldT, LastGood: oldT, Enforcing: oldT}
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

// The status loses the cause of a refusal with the order: the rollout would name none. A node must not displace the causes of others.
func TestFailuresKeepTheirCauses(t *testing.T) {
	t.Parallel()
	text := Failure{Code: NodeRefused, Problem: model.Problem{Code: model.UpgradeNoProgram, Text: model.Prose(strings.Repeat("x", 10*textBytes))}}
	signature := Failure{Code: NodeRefused, Refusal: refusal.New(refusal.KeyUnknown, "key", strings.Repeat("k", textBytes))}
	hostile := Failure{Code: NodeRefused, Refusal: &refusal.Error{Code: refusal.KeyUnknown, Params: refusal.Params{"key": strings.Repeat("<\x1b", 20<<10)}}}
	for name, c := range map[string]struct {
		version  string
		first, f Failure
		least    int
	}{
		"of an agent":                {"1.1.0", text, text, keptBytes / textBytes},
		"of a run, whose record has": {"", text, text, 0},
		"of a signature":             {"", signature, signature, keptBytes / (2 * textBytes)},
		"after a hostile one":        {"", hostile, signature, keptBytes / (2 * textBytes) / 2},
	} {
		s := State{Failed: map[string]Failure{}, Slots: map[string]Slot{}}
		for i := range keptBytes/textBytes + 20 {
			a := advance{p: Plan{Agent: model.AgentChoice{Version: c.version}}, s: s}
			f := c.f
			if i == 0 {
				f = c.first
			}
			if node := strconv.Itoa(i); i < 10 {
				a.put(node, withdrawn(Slot{}, a.bounded(f), ""))
			} else {
				a.fail(node, a.bounded(f))
			}
		}
		for node, slot := range s.Slots {
			s.Failed[node] = Failure{Problem: slot.Problem, Refusal: slot.Refusal}
		}
		causes, bytes := 0, 0
		for _, f := range s.Failed {
			if n := bytesOf(f.Problem, f.Refusal); n > 0 {
				causes, bytes = causes+1, bytes+n
			}
			if len(f.Problem.Text) > textBytes || f.Refusal != nil && strings.ContainsRune(f.Refusal.Error(), 0x1b) {
				t.Errorf("%s: it kept %q %q", name, f.Problem.Text, f.Refusal)
			}
		}
		if causes < c.least || c.least == 0 && causes > 0 || bytes > keptBytes {
			t.Errorf("%s: %d causes in %d bytes, want at least %d", name, causes, bytes, c.least)
		}
	}
}
