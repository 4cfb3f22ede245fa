package agent

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"pulley/internal/model"
)

// noise returns incompressible text, like the hashes and addresses in Puppet's messages.
func noise(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(' ' + r.IntN(95))
	}
	return string(b)
}

// In a healthy fleet of ten thousand nodes, etcd stores ten thousand of these every five minutes.
func TestStatusOfConvergedNodeIsSmall(t *testing.T) {
	w := fleetOn(t, version("1.24.3"))
	w.agent.Identity.Node, w.agent.Identity.Role = "controller12_stage", "controller"
	w.idle(t)
	b, err := json.Marshal(w.etcd.status(t))
	if err != nil || len(b) > 1<<10 {
		t.Errorf("%d bytes: %s", len(b), b)
	}
}

// A typical failure must keep its text, not only its names.
func TestStatusKeepsTextOfOrdinaryFailure(t *testing.T) {
	w := fleetOn(t, version("1.24.3"))
	w.promote(t, halfway)
	w.tick(t)
	w.promote(t, syntax)
	w.etcd.operator(t, func(d *model.Desired) { d.Holds = []model.Hold{freeze} })
	w.tick(t)
	w.etcd.operator(t, func(d *model.Desired) { d.Holds = nil })
	w.tick(t)
	if s := w.etcd.status(t); !strings.Contains(s.Why().Sentence(), "Syntax error at '}' (file: manifests/site.pp, line: 3)") {
		t.Errorf("%q", s.Why().Sentence())
	}
}

// A node's records in etcd are limited by bytes: a node that changes something in every tick must not fill etcd.
func TestRunsInEtcdAreBounded(t *testing.T) {
	w := fleetOn(t, verA)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		w.puppet.result = func(job model.Job) (model.Result, error) {
			res := model.Result{Kind: model.Success, Outcome: model.Changed}
			for range r.IntN(40) {
				res.Log = append(res.Log, model.LogLine{Level: "notice", Message: noise(r.Uint64(), 300)})
			}
			return res, nil
		}
		w.now = w.now.Add(31 * time.Minute)
		away := i%10 == 9
		if away {
			w.etcd.onReport = func() error { return fmt.Errorf("timeout: %w", model.ErrUnreachable) }
		}
		run := w.good(t)
		w.etcd.onReport = nil
		total := 0
		kept := w.etcd.load().Runs
		for _, b := range kept {
			total += len(b)
		}
		if total > model.MaxRunsBytes || len(kept) > model.MaxRunsKept {
			t.Fatalf("after run %d etcd has %d records of %d bytes", i, len(kept), total)
		}
		if kept[run.ID] == nil && !away {
			t.Fatalf("the newest record is not among them")
		}
	}
	if n := len(w.etcd.load().Runs); n < 5 {
		t.Errorf("only %d records are kept", n)
	}
}

// Random values rarely reach the limit together: here each part is as long as it can be.
func TestLongestStatusFits(t *testing.T) {
	name, text := strings.Repeat("n", 63), model.Prose(strings.Repeat("\x00", 1000))
	longest := func(last string) model.Target { // three targets that differ
		v := version("999.999.999-" + strings.Repeat("a", 39) + last)
		v.Data = 1 << 62
		return v
	}
	wanted := longest("w")
	at := &tick{
		Agent: &Agent{
			Identity: model.Identity{Node: name, Role: name}, Settings: model.DefaultSettings(),
			Version: "v1.24.3-17-g0123456789ab", MachineID: strings.Repeat("f", 32), Boot: strings.Repeat("f", 36), Now: func() time.Time { return start },
		},
		observed: model.Observed{Disabled: text},
		decision: model.Decision{
			Action: model.Nothing, Cause: model.Cause{Reason: model.ReasonUnreadable, Params: model.Params{Text: text}}, Wanted: wanted,
			Hold: &model.Hold{Scope: "roles/" + name, Mode: model.Freeze, Who: string(text), Why: text, Since: start, Until: start},
		},
		state: model.State{
			LastGood: longest("g"), Enforcing: longest("e"), RanAt: start, Outcome: model.Unchanged, LastRun: "20260304T050607Z-1234567", Enforce: model.EnforceDaemon,
			Served:   &model.Served{Environment: name, Server: strings.Repeat("s", 253), Reason: "failover", Criterion: string(text), Value: string(text), Code: string(text)},
			Attempts: []model.Attempt{{Target: wanted, Started: 1 << 30, Finished: 1 << 30, Last: start, Kind: model.Untouched, Problem: model.Problem{Code: model.CatalogRefused, Text: text}}},
		},
	}
	at.Upgrade = func(model.AgentChoice) *model.Upgrade {
		return &model.Upgrade{Wanted: strings.Repeat("1", 64), Phase: model.UpgradeProbation, Problem: model.Problem{Code: model.UpgradeUnavailable, Text: text}}
	}
	at.Signatures = func() *model.Signatures {
		return &model.Signatures{State: model.SignaturesNotChecked, Signers: strings.Repeat("f", 16), Keys: 1000, Release: wanted.Release, Data: 1 << 62, Permit: 1 << 62, Statement: 1 << 62}
	}
	at.state.Refuse(wanted, refusedFor(string(text)), start)
	at.state.Settle(strings.Repeat("a", 16), failedHook(text))
	b, err := json.Marshal(at.status())
	if err != nil || len(b) > model.MaxStatusBytes {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// Every fleet view reads the status of every node. A status above the limit would be rejected, and the node would look
// silent.
func TestStatusSizeIsBounded(t *testing.T) {
	words := rapid.Custom(func(t *rapid.T) string {
		word := rapid.OneOf(
			rapid.String(),
			rapid.SampledFrom([]string{"\x00", "<", "\"", "\u2028", "é", "漢", "😀", "a "}),
			rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		).Draw(t, "word")
		return strings.Repeat(word, rapid.SampledFrom([]int{0, 1, 40, 1000}).Draw(t, "times"))
	})
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z][a-z0-9_]{0,62}`)
		target := rapid.Custom(func(t *rapid.T) model.Target {
			v := version(rapid.StringMatching(`[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}(-[a-z0-9.]{1,40})?`).Draw(t, "release"))
			v.Data = model.Generation(rapid.Int64Range(0, 1<<62).Draw(t, "data"))
			return v
		})
		wanted, enforcing := target.Draw(t, "wanted"), target.Draw(t, "enforcing")
		at := &tick{
			Agent: &Agent{
				Identity: model.Identity{Node: name.Draw(t, "node"), Role: name.Draw(t, "role")}, Settings: model.DefaultSettings(),
				Version: "v1.24.3-17-g0123456789ab", MachineID: strings.Repeat("f", 32), Boot: strings.Repeat("f", 36), Now: func() time.Time { return start },
			},
			observed: model.Observed{Disabled: model.Prose(words.Draw(t, "disabled"))},
			decision: model.Decision{
				Action: model.Nothing, Cause: model.Cause{Reason: model.ReasonUnreadable, Params: model.Params{Text: model.Prose(words.Draw(t, "detail"))}}, Wanted: wanted,
				Hold: &model.Hold{Scope: "roles/" + name.Draw(t, "held"), Mode: model.Freeze, Who: words.Draw(t, "who"), Why: model.Prose(words.Draw(t, "why")), Since: start, Until: start},
			},
			state: model.State{
				LastGood: target.Draw(t, "last good"), Enforcing: enforcing, RanAt: start, Outcome: model.Unchanged, LastRun: "20260304T050607Z-1234567",
				Attempts: []model.Attempt{{Target: wanted, Started: 1 << 30, Finished: 1 << 30, Last: start, Kind: model.Untouched, Problem: model.Problem{Code: model.CatalogRefused, Text: model.Prose(words.Draw(t, "problem"))}}},
			},
		}
		own := words.Draw(t, "own agent")
		at.Upgrade = func(model.AgentChoice) *model.Upgrade {
			return &model.Upgrade{Wanted: strings.Repeat("1", 64), Phase: model.UpgradeProbation, Problem: model.Problem{Code: model.UpgradeUnavailable, Text: model.Prose(own)}}
		}
		at.state.Refuse(wanted, refusedFor(words.Draw(t, "refused")), start)
		at.state.Settle(strings.Repeat("a", 16), failedHook(model.Prose(words.Draw(t, "answer"))))
		s := at.status()
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > model.MaxStatusBytes {
			t.Fatalf("%d bytes: %s", len(b), b)
		}
		if s.Node != at.Identity.Node || s.Target != wanted || s.LastGood != at.state.LastGood || s.Enforcing != enforcing || s.Attempt.Target != wanted || s.Refusal.Target != wanted {
			t.Fatal("a name or a target was cut")
		}
		if p := string(at.state.Attempts[0].Problem.Text); utf8.ValidString(p) && !utf8.ValidString(string(s.Attempt.Problem.Text)) {
			t.Fatalf("%q was cut within a character: %q", p, s.Attempt.Problem)
		}
	})
}

// `pulley explain` repeats the node's own decision on the operator's machine: the two must be equal.
func TestStatusExplainsNode(t *testing.T) {
	for _, c := range decisions {
		o, d := onA()
		c.when(&o, &d)
		if d.Unreachable != "" || d.Unreadable != "" {
			continue // the operator has no answer from etcd either
		}
		t.Run(c.say, func(t *testing.T) {
			o.Force, o.Noop, o.Partial, o.Look = false, false, false, model.Target{} // options of one tick, not of the node
			own := model.Decide(o, d, start)
			tick := &tick{
				Agent:    &Agent{Identity: o.Identity, Settings: o.Settings, MachineID: o.Machine, Now: func() time.Time { return start }},
				observed: o, desired: d, decision: own, state: o.State,
			}
			b, err := json.Marshal(tick.status())
			if err != nil {
				t.Fatal(err)
			}
			var said model.Status
			if err := json.Unmarshal(b, &said); err != nil {
				t.Fatal(err)
			}
			explained := model.Decide(said.Observed(o.Identity), d, start)
			if explained.Action != own.Action || explained.Reason != own.Reason || explained.Blocked.Reason != own.Blocked.Reason || !reflect.DeepEqual(explained.Ladder, own.Ladder) {
				t.Errorf("the node says %s because %s %+v,\nexplain says %s because %s %+v", own.Action, own.Reason, own.Ladder, explained.Action, explained.Reason, explained.Ladder)
			}
		})
	}
}
