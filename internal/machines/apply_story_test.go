package machines_test

import (
	"slices"
	"time"

	"pgregory.net/rapid"

	"pulley/environments"
	"pulley/internal/machines"
)

// A move is one event of a story, drawn before it begins.
type move struct {
	Do      string
	Want    *environments.Environment // edit
	Think   time.Duration             // apply: between the plan and its execution
	Next    time.Duration             // rivals: start of the second one
	Pick    int                       // kill
	State   machines.State            // kill: "" removes it
	In      time.Duration             // kill, interrupt: after this time, during another event
	Name    string                    // plant
	NoDrain bool
	Lost    bool          // apply: the operator confirms that machines are gone
	Skew    time.Duration // apply: error of the operator's clock
	Hides   hides         // hide
}

// An incident is a fault of the nth call of a kind.
type incident struct {
	Call  string
	Nth   int
	Fault fault
}

// incidents are the possible faults of each kind of call.
var incidents = map[string][]fault{
	"create": {
		failBefore, failAfter, crashBefore, crashAfter, throttle, nameBusy, quota,
		refuses, late, makesTwo, errorEnd, loseIt, noBoot, noRun,
	},
	"delete": {
		failBefore, failAfter, crashBefore, crashAfter, throttle, slow, deaf,
	},
	"list":  {failBefore, throttle, crashBefore},
	"world": {failBefore, crashBefore},
	"ask":   {failBefore, failAfter, crashBefore, crashAfter, hookFail, hookHang},
}

func drawIncident(t *rapid.T) incident {
	call := rapid.SampledFrom([]string{"create", "create", "create", "delete", "delete", "list", "world", "ask", "put", "drop", "note", "put spec", "order", "hold", "release", "remove", "acts"}).Draw(t, "call")
	faults := incidents[call]
	if faults == nil {
		faults = []fault{failBefore, failAfter, crashBefore, crashAfter}
	}
	return incident{call, rapid.IntRange(1, 14).Draw(t, "nth"), rapid.SampledFrom(faults).Draw(t, "fault")}
}

// oldOne is a foreign machine that may be a member of web.
const oldOne = "old1.example.com"

func drawFleet(t *rapid.T) *environments.Environment {
	var roles []environments.Role
	for _, name := range []string{"db", "web", "app"} {
		if !rapid.Bool().Draw(t, name) {
			continue
		}
		r := role(name, rapid.IntRange(0, 4).Draw(t, "cardinality"), flavor(rapid.SampledFrom([]string{"", "small", "large"}).Draw(t, "flavor")))
		for _, before := range roles {
			if rapid.Bool().Draw(t, "after "+before.Name) {
				r.After = append(r.After, before.Name)
			}
			if rapid.Bool().Draw(t, "reacts to "+before.Name) {
				r.ReactsTo = append(r.ReactsTo, before.Name)
			}
		}
		r.Replace.Batch = rapid.SampledFrom([]string{"", "2", "50%"}).Draw(t, "batch")
		r.Replace.Failures = rapid.SampledFrom([]string{"", "1", "100%"}).Draw(t, "failures")
		r.Protected = rapid.IntRange(0, 7).Draw(t, "protected") == 0
		if name == "web" && rapid.IntRange(0, 3).Draw(t, "member") == 0 {
			r.Members = []string{oldOne}
		}
		roles = append(roles, r)
	}
	if rapid.Bool().Draw(t, "backwards") {
		slices.Reverse(roles)
	}
	return fleetOf(roles...)
}

func drawMove(t *rapid.T) move {
	m := move{Do: rapid.SampledFrom([]string{"edit", "edit", "apply", "apply", "apply", "rivals", "kill", "kill", "plant", "hold", "interrupt",
		"unlist", "hide", "hide", "away", "destroy", "watch", "watch", "enroll"}).Draw(t, "do")}
	pause := rapid.SampledFrom([]time.Duration{0, time.Second, 40 * time.Second, 3 * time.Minute, time.Hour})
	switch m.Do {
	case "edit":
		m.Want = drawFleet(t)
	case "apply":
		m.Think, m.NoDrain = pause.Draw(t, "think"), rapid.Bool().Draw(t, "no drain")
		m.Lost = rapid.IntRange(0, 3).Draw(t, "lost") == 0
		m.Skew = rapid.SampledFrom([]time.Duration{0, 0, 0, -40 * time.Minute, -5 * time.Minute, 5 * time.Minute}).Draw(t, "skew")
	case "destroy":
		m.Think = pause.Draw(t, "think")
	case "unlist", "watch":
		m.Pick = rapid.IntRange(0, 9).Draw(t, "pick")
	case "hide":
		m.Hides = rapid.SampledFrom([]hides{all, half, lags}).Draw(t, "hides")
		m.In = rapid.SampledFrom([]time.Duration{30 * time.Second, 4 * time.Minute, time.Hour}).Draw(t, "for")
	case "rivals":
		m.Next = pause.Draw(t, "next")
	case "kill":
		m.Pick, m.In = rapid.IntRange(0, 9).Draw(t, "pick"), pause.Draw(t, "in")
		m.State = rapid.SampledFrom([]machines.State{"", machines.Stopped, machines.Failed, machines.Deleting, machines.Unknown}).Draw(t, "state")
	case "interrupt":
		m.In = pause.Draw(t, "in")
	case "plant":
		m.Name = rapid.SampledFrom([]string{"web1", "web2", "app3", "db1", "web9", "web1-t42", "../etc", "WEB1", "a\x1b[2Jb", "1"}).Draw(t, "name")
	case "hold":
		m.Name = rapid.SampledFrom([]string{"web1", "app2", "db1"}).Draw(t, "node")
	}
	return m
}

// story is a sequence of moves, drawn completely before it begins.
type story struct {
	Moves     []move
	Incidents []incident
	Parallel  int
	Latency   time.Duration
	Stack     string
}

func drawStory(t *rapid.T) story {
	return story{
		Moves:     append([]move{{Do: "edit", Want: drawFleet(t)}}, rapid.SliceOfN(rapid.Custom(drawMove), 1, 9).Draw(t, "moves")...),
		Incidents: rapid.SliceOfN(rapid.Custom(drawIncident), 0, 8).Draw(t, "incidents"),
		Parallel:  rapid.IntRange(1, 5).Draw(t, "parallel"),
		Latency:   rapid.SampledFrom([]time.Duration{time.Millisecond, 300 * time.Millisecond, 3 * time.Second}).Draw(t, "latency"),
		Stack:     rapid.SampledFrom([]string{"", "", "", "t42"}).Draw(t, "stack"),
	}
}
