package upgrade

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"pulley/internal/model"
)

var now = time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)

func unavailable(text model.Prose) model.Problem {
	return model.Problem{Code: model.UpgradeUnavailable, Text: text}
}

func program(version string) Program {
	return Program{Version: version, Digest: strings.Repeat("0", 63) + version[:1]}
}

// A version that failed on a node must not be retried every five minutes. It must be retried after a repair or on
// request.
func TestDroppedVersionIsRetriedOnRequest(t *testing.T) {
	dropped := State{}.Drop(program("2.0.0"), model.AgentChoice{Try: 3}, unavailable("it crashed"), now)
	for _, c := range []struct {
		name string
		s    State
		want model.AgentChoice
		move Move
	}{
		{"no version is set", State{}, model.AgentChoice{}, Stay},
		{"a version is wanted", State{}, model.AgentChoice{Version: "2.0.0"}, Fetch},
		{"it is in place", State{}.Found(program("2.0.0"), 0, "x"), model.AgentChoice{Version: "2.0.0"}, Stay},
		{"another is in place", State{}.Found(program("1.0.0"), 0, "x"), model.AgentChoice{Version: "2.0.0"}, Fetch},
		{"it is on probation", State{}.Tested(program("2.0.0"), model.AgentChoice{Try: 0}, now), model.AgentChoice{Version: "2.0.0"}, Stay},
		{"another is on probation", State{}.Tested(program("1.5.0"), model.AgentChoice{Try: 0}, now), model.AgentChoice{Version: "2.0.0"}, Forget},
		{"none is wanted any more", State{}.Tested(program("1.5.0"), model.AgentChoice{Try: 0}, now), model.AgentChoice{}, Forget},
		{"it was dropped", dropped, model.AgentChoice{Version: "2.0.0", Try: 3}, Stay},
		{"it was dropped, and no operator retried it", dropped, model.AgentChoice{Version: "2.0.0", Try: 2}, Stay},
		{"it was dropped, and is to be tried again", dropped, model.AgentChoice{Version: "2.0.0", Try: 4}, Fetch},
		{"another was dropped", dropped, model.AgentChoice{Version: "2.0.1", Try: 3}, Forget},
		{"it could not be had a minute ago", State{}.Wait(model.AgentChoice{Version: "2.0.0"}, unavailable("no"), now.Add(-time.Minute)), model.AgentChoice{Version: "2.0.0"}, Stay},
		{"it could not be had ten minutes ago", State{}.Wait(model.AgentChoice{Version: "2.0.0"}, unavailable("no"), now.Add(-10*time.Minute)), model.AgentChoice{Version: "2.0.0"}, Fetch},
		{"it could not be had by a clock that was ahead", State{}.Wait(model.AgentChoice{Version: "2.0.0"}, unavailable("no"), now.Add(time.Hour)), model.AgentChoice{Version: "2.0.0"}, Fetch},
		{"another could not be had", State{}.Wait(model.AgentChoice{Version: "1.9.0"}, unavailable("no"), now), model.AgentChoice{Version: "2.0.0"}, Forget},
	} {
		got := c.s.Next(c.want, now)
		if got != c.move {
			t.Errorf("%s: %s, want %s", c.name, got, c.move)
		}
		if got == Forget { // otherwise the node would never fetch
			if next := c.s.Forgotten(c.want).Next(c.want, now); next == Forget || c.want.Version != "" && next != Fetch {
				t.Errorf("%s: once forgotten: %s", c.name, next)
			}
		}
	}
}

// An agent that is installed too early was not watched for long enough to crash.
func TestCandidateNeedsTicksAndTime(t *testing.T) {
	p := Proof{Ticks: GoodTicks, Probation: Probation}
	s := State{}.Tested(program("2.0.0"), model.AgentChoice{Try: 0}, now)
	for i, c := range []struct {
		after  time.Duration
		proven bool
	}{{time.Minute, false}, {2 * time.Minute, false}, {3 * time.Minute, false}, {9 * time.Minute, false}, {10 * time.Minute, true}} {
		var proven bool
		if s, proven = s.Credit(p, false, now.Add(c.after)); proven != c.proven {
			t.Errorf("tick %d after %s: verified %t", i+1, c.after, proven)
		}
	}
	s = State{}.Tested(program("2.0.0"), model.AgentChoice{Try: 0}, now)
	for i, c := range []struct {
		after  time.Duration
		proven bool
	}{{time.Hour, false}, {2 * time.Hour, false}, {3 * time.Hour, true}} {
		var proven bool
		if s, proven = s.Credit(p, false, now.Add(c.after)); proven != c.proven {
			t.Errorf("rare tick %d: verified %t", i+1, proven)
		}
	}
	// If the clock was a year ahead at the start of a probation, the upgrade must not wait for a year.
	s = State{}.Tested(program("2.0.0"), model.AgentChoice{Try: 0}, now.Add(8760*time.Hour))
	for _, after := range []time.Duration{0, 5 * time.Minute} {
		if s, _ = s.Credit(p, false, now.Add(after)); !s.Candidate.Since.Equal(now) {
			t.Errorf("probation began at %s", s.Candidate.Since)
		}
	}
	if _, proven := s.Credit(p, false, now.Add(10*time.Minute)); !proven {
		t.Error("it is not verified")
	}
}

// Operators see only in this status why a node does not run the wanted version.
func TestUpgradeInStatus(t *testing.T) {
	want := model.AgentChoice{Version: "2.0.0"}
	for _, c := range []struct {
		name  string
		s     State
		want  model.AgentChoice
		own   string
		phase model.UpgradePhase
		says  string
	}{
		{"no version is set", State{}, model.AgentChoice{}, "1.0.0", "", ""},
		{"it is in place", State{}.Found(program("2.0.0"), 0, "x"), want, "2.0.0", "", ""},
		{"it seems to be in place", State{}, want, "2.0.0", "", ""},
		{"it is to be fetched", State{}, want, "1.0.0", model.UpgradeWaiting, ""},
		{"it can't be had", State{}.Wait(want, unavailable("no program for linux/arm64"), now), want, "1.0.0", model.UpgradeWaiting, "arm64"},
		{"it is on probation", State{}.Tested(program("2.0.0"), model.AgentChoice{Try: 0}, now), want, "1.0.0", model.UpgradeProbation, ""},
		{"the candidate reports it too", State{}.Tested(program("2.0.0"), model.AgentChoice{Try: 0}, now), want, "2.0.0", model.UpgradeProbation, ""},
		{"it was dropped", State{}.Found(program("1.0.0"), 0, "x").Drop(program("2.0.0"), model.AgentChoice{Try: 0}, unavailable("it crashed"), now), want, "1.0.0", model.UpgradeDropped, "crashed"},
		{"it is tried again", State{}.Drop(program("2.0.0"), model.AgentChoice{Try: 0}, unavailable("it crashed"), now), model.AgentChoice{Version: "2.0.0", Try: 1}, "1.0.0", model.UpgradeWaiting, ""},
	} {
		u := c.s.Report(c.want, c.own)
		switch {
		case u == nil && c.phase == "":
		case u == nil || u.Phase != c.phase || u.Wanted != "2.0.0" || !strings.Contains(u.Problem.String(), c.says) || c.says == "" && u.Problem != (model.Problem{}):
			t.Errorf("%s: %+v", c.name, u)
		}
	}
}

// The output of a broken agent is stored and shown: a megabyte of it must not fill a status.
func TestStoredProblemIsBounded(t *testing.T) {
	s := State{}.Drop(program("2.0.0"), model.AgentChoice{Try: 0}, unavailable(model.Prose(strings.Repeat("ä", 1<<20))), now)
	if text := string(s.Dropped.Problem.Text); len(text) > maxText || !strings.HasSuffix(text, "ä…") {
		t.Errorf("%d bytes are kept", len(text))
	}
}

// A candidate that breaks Puppet every half hour must not be installed because of idle ticks in between. One bad minute
// must not drop a good one.
func TestOneDoubtDropsNothing(t *testing.T) {
	p := Proof{Ticks: GoodTicks, Probation: Probation}
	s := State{}.Tested(program("2.0.0"), model.AgentChoice{Try: 0}, now.Add(-time.Hour))
	var condemned, proven bool
	for range MaxDoubts - 1 {
		if s, condemned = s.Doubt(unavailable("it could not reach etcd"), false); condemned {
			t.Fatalf("condemned after %d", s.Candidate.Doubts)
		}
	}
	if again, condemned := s.Doubt(unavailable("it could not reach etcd"), false); !condemned || s.Candidate.Doubts != MaxDoubts-1 {
		t.Errorf("not condemned: %+v", again.Candidate)
	}
	if s, proven = s.Credit(p, false, now); proven || s.Candidate.Doubts != 0 || s.Candidate.Good != 1 {
		t.Errorf("after a good tick: %+v, %t", s.Candidate, proven)
	}
	s, _ = s.Doubt(unavailable("its run of Puppet failed"), true)
	if u := s.Report(model.AgentChoice{Version: "2.0.0"}, "1.0.0"); u.Phase != model.UpgradeProbation || u.Problem != unavailable("its run of Puppet failed") {
		t.Errorf("the status says %+v", u)
	}
	for range GoodTicks {
		if s, proven = s.Credit(p, false, now); proven || s.Candidate.Doubts != 1 {
			t.Fatalf("ticks without Puppet took the doubt away: %+v", s.Candidate)
		}
	}
	for range GoodTicks {
		s, proven = s.Credit(p, true, now)
	}
	if !proven {
		t.Errorf("it is not verified: %+v", s.Candidate)
	}
}

// A choice in an unknown format must not make every node delete its record of dropped versions and crash once more.
func TestUnreadableChoiceKeepsCandidate(t *testing.T) {
	unknown := model.AgentChoice{Unknown: true}
	for _, s := range []State{
		State{}.Drop(program("2.0.0"), model.AgentChoice{Try: 3}, unavailable("it crashed"), now), State{}.Tested(program("2.0.0"), model.AgentChoice{Try: 3}, now), {},
		State{}.Wait(model.AgentChoice{Version: "2.0.0"}, unavailable("no"), now.Add(-time.Hour)),
	} {
		if move := s.Next(unknown, now); move != Stay {
			t.Errorf("%+v: %s", s, move)
		}
	}
	if u := (State{}.Drop(program("2.0.0"), model.AgentChoice{Try: 3}, unavailable("it crashed"), now)).Report(unknown, "1.0.0"); u == nil || u.Phase != model.UpgradeDropped || u.Wanted != "2.0.0" {
		t.Errorf("the status says %+v", u)
	}
}

// A lenient judgement installs a broken agent. A strict one keeps the fleet on an old agent.
func TestJudge(t *testing.T) {
	all := []string{"observe", "desire", "decide", "report"}
	for _, c := range []struct {
		name    string
		trial   Trial
		finding Finding
		says    string
	}{
		{"all is well", Trial{Steps: all, Ending: &Ending{}}, Good, ""},
		{"Puppet changed something, by its exit code", Trial{Steps: all, Ending: &Ending{Code: 2}, Code: 2}, Good, ""},
		{"the kernel can't run it", Trial{Err: &os.PathError{Err: syscall.ENOEXEC}}, Bad, "exec format error"},
		{"there is no memory for it", Trial{Err: &os.PathError{Err: syscall.ENOMEM}}, Nothing, "cannot allocate memory"},
		{"there are too many processes", Trial{Err: &os.PathError{Err: syscall.EAGAIN}}, Nothing, "temporarily"},
		{"nothing may be started where it lies", Trial{Err: &os.PathError{Err: syscall.EACCES}}, Nothing, "permission denied"},
		{"it panics at its start", Trial{Code: 2, Words: "panic: assignment to entry in nil map\n\ngoroutine 1"}, Bad, "never began its tick: panic: assignment to entry in nil map"},
		{"it panics in a step", Trial{Steps: []string{"observe"}, Code: 2, Words: "level=INFO\npanic: oh\n"}, Bad, "in step observe and did not report the end of its tick: panic: oh"},
		{"it is killed", Trial{Steps: all, Code: -1, Signal: "killed"}, Bad, "killed"},
		{"it is killed after its last word", Trial{Steps: all, Ending: &Ending{}, Code: -1, Signal: "segmentation fault"}, Bad, "segmentation fault"},
		{"it says nothing", Trial{}, Bad, "exited with code 0 and never began its tick"},
		{"it says nothing in the end", Trial{Steps: all}, Bad, "did not report the end of its tick"},
		{"it does not report", Trial{Steps: all[:3], Ending: &Ending{}}, Bad, "etcd has no report of it"},
		{"it ends otherwise than it says", Trial{Steps: all, Ending: &Ending{}, Code: 1}, Bad, "exited with code 1 and had announced another"},
		{"it hangs at its start", Trial{Late: startStep, Limit: time.Minute, Signal: "killed", Code: -1}, Bad, "did not begin its tick within 1m0s"},
		{"it hangs in a step", Trial{Steps: all[:1], Late: "observe", Limit: time.Minute, Signal: "killed", Code: -1}, Bad, "made no progress for 1m0s in step observe"},
		{"it hangs after its last word", Trial{Steps: all, Ending: &Ending{}, Late: endStep, Limit: time.Minute, Code: -1, Signal: "killed"}, Bad, "did not exit within 1m0s"},
		{"it hangs while this agent is stopped", Trial{Steps: all[:1], Late: "observe", Limit: time.Minute, Stopped: true}, Bad, "made no progress"},
		{"this agent is stopped", Trial{Steps: all[:1], Stopped: true, Code: -1, Signal: "terminated"}, Nothing, ""},
		{"another run is in progress", Trial{Ending: &Ending{Locked: true}}, Nothing, ""},
		{"etcd does not answer it", Trial{Steps: all, Ending: &Ending{Unreachable: true, Code: 3}, Code: 3}, Reach, "could not reach etcd"},
		{"Puppet fails", Trial{Steps: all, Ending: &Ending{Failed: true, Code: 1}, Code: 1}, Compare, "run of Puppet failed"},
		{"its tick fails", Trial{Steps: all, Ending: &Ending{Problem: "disk full", Code: 1}, Code: 1}, Compare, "disk full"},
	} {
		finding, why := Judge(c.trial)
		if finding != c.finding || !strings.Contains(why.String(), c.says) {
			t.Errorf("%s: %s, %q", c.name, finding, why)
		}
	}
}

// A version that a node dropped must run again when a rollout orders it again, and never only because the rollout ended.
func TestRolloutOrdersDroppedVersionAgain(t *testing.T) {
	first, again := model.AgentChoice{Version: "2.0.0", Order: "r7.1"}, model.AgentChoice{Version: "2.0.0", Order: "r7.2"}
	s := State{}.Drop(program("2.0.0"), first, unavailable("it crashed"), time.Now())
	for name, c := range map[string]struct {
		want model.AgentChoice
		move Move
	}{
		"the same order":    {first, Stay},
		"another order":     {again, Fetch},
		"it became desired": {model.AgentChoice{Version: "2.0.0"}, Stay},
		"reverted":          {model.AgentChoice{Version: "1.0.0"}, Forget},
	} {
		if got := s.Next(c.want, time.Now()); got != c.move {
			t.Errorf("%s: %s, want %s", name, got, c.move)
		}
	}
}

// A revert must bring a node back to the older version without --allow-downgrade, and nothing else may.
func TestReturnFromRollout(t *testing.T) {
	installed := State{Installed: &Installed{Program: program("2.0.0"), Order: "r7.1"}}
	if !installed.Returns() || (State{Installed: &Installed{Program: program("2.0.0")}}).Returns() {
		t.Error("only a version of a rollout has a way back")
	}
	if s, changed := installed.Seen(model.AgentChoice{Version: "2.0.0", Order: "r7.1"}); changed || !s.Returns() {
		t.Error("the way back ended while the rollout is in progress")
	}
	if s, changed := installed.Seen(model.AgentChoice{Version: "2.0.0"}); !changed || s.Returns() {
		t.Error("the way back is open after the rollout completed")
	}
}
