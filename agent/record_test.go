package agent

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
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

func sampleRun() Run {
	return Run{
		ID: "20260304T050607Z-1", Node: "web1", Target: verA, Action: Take, Reason: ReasonNew, Started: start, Duration: time.Minute,
		Steps: map[string]time.Duration{"apply": time.Minute},
		Result: Result{
			Kind: Between, Outcome: Failed, Problem: Problem{Code: HookFailed, Text: "File[/etc/motd] failed"}, ExitCode: 4, Counts: Counts{Total: 9, Failed: 1},
			Durations: map[string]time.Duration{"file": time.Second},
			Resources: []ResourceEvent{{Resource: "File[/etc/motd]", Status: "failed", File: "manifests/site.pp", Line: 3, Messages: []string{"no"}}},
			Log:       []LogLine{{Level: "err", Source: "Puppet", Message: "no", Time: start}},
		},
	}
}

// `pulley runs` must show the run as it happened, if the record fits.
func TestRunRoundTrip(t *testing.T) {
	want := sampleRun()
	e, err := encodeRun(want)
	if err != nil {
		t.Fatal(err)
	}
	got, truncated, err := DecodeRun(e.Bytes)
	if err != nil || truncated || e.ID != want.ID {
		t.Fatalf("%+v, truncated: %t, %v", e.ID, truncated, err)
	}
	same(t, "the run", got, want)
}

// A run with a huge log must neither fill etcd nor lose its failures and their causes.
func TestRunRecordIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := sampleRun()
		seed := rapid.Uint64().Draw(t, "seed")
		size := rapid.SampledFrom([]int{0, 10, 1000, 200_000})
		r.Problem = Problem{Code: CatalogRefused, Text: Prose(noise(seed, size.Draw(t, "problem")))}
		for i := range rapid.IntRange(0, 800).Draw(t, "resources") {
			r.Resources = append(r.Resources, ResourceEvent{Resource: noise(seed+uint64(i), 60), Status: "failed", Messages: []string{noise(seed, 90)}})
		}
		for i := range rapid.IntRange(0, 800).Draw(t, "log") {
			r.Log = append(r.Log, LogLine{Level: "err", Message: noise(seed+uint64(i), 120)})
		}
		for i := range rapid.IntRange(0, 300).Draw(t, "durations") {
			r.Durations[noise(uint64(i), 40)] = time.Second
		}
		if len(r.Log) > 1 {
			r.Log[1].Message = noise(seed, size.Draw(t, "one line"))
		}
		r.Resources[0].Messages = append(r.Resources[0].Messages, noise(seed, size.Draw(t, "one message")), "\x00<&>")
		whole, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		e, err := encodeRun(r)
		if err != nil {
			t.Fatal(err)
		}
		if len(e.Bytes) > maxRunBytes {
			t.Fatalf("%d bytes", len(e.Bytes))
		}
		got, truncated, err := DecodeRun(e.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if back, _ := json.Marshal(got); truncated == bytes.Equal(back, whole) {
			t.Fatalf("truncated: %t, of %d bytes %d came back", truncated, len(whole), len(back))
		}
		if got.ID != r.ID || got.Target != r.Target || got.Counts != r.Counts || got.Kind != r.Kind || got.Problem == (Problem{}) && r.Problem != (Problem{}) {
			t.Fatalf("what matters most is lost: %+v", got)
		}
	})
}

// Operators need the first failed resource.
func TestTruncatedRunKeepsFirstResources(t *testing.T) {
	r := sampleRun()
	for i := range 500 {
		r.Log = append(r.Log, LogLine{Level: "notice", Message: noise(uint64(i), 200)})
		r.Resources = append(r.Resources, ResourceEvent{Resource: noise(uint64(i), 60), Status: "changed"})
	}
	e, err := encodeRun(r)
	if err != nil {
		t.Fatal(err)
	}
	got, truncated, err := DecodeRun(e.Bytes)
	if err != nil || !truncated || len(got.Resources) == 0 || !reflect.DeepEqual(got.Resources[0], r.Resources[0]) || len(got.Log) < keptAtLeastLog {
		t.Errorf("truncated: %t, %d resources, %d lines: %v", truncated, len(got.Resources), len(got.Log), err)
	}
}

func packed(t testing.TB, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// A stolen node identity can write anything under its own runs. It must not crash the operator's program.
func TestInvalidRunRecordIsAnError(t *testing.T) {
	whole := packed(t, `{"v":1}`)
	for want, b := range map[string][]byte{
		"cannot unpack it":                    []byte("not gzip"),
		"unexpected EOF":                      whole[:len(whole)-3],
		"larger than 1048576 bytes":           packed(t, `{"v":1,"node":"`+strings.Repeat("x", 2<<20)+`"}`),
		"cannot decode run record":            packed(t, "[]"),
		"format 2 is newer":                   packed(t, `{"v":2}`),
		"its format 3 is newer than this pro": packed(t, `{"v":3,"steps":"renamed"}`),
	} {
		if _, _, err := DecodeRun(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func FuzzDecodeRun(f *testing.F) {
	e, err := encodeRun(sampleRun())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(e.Bytes)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, _, err := DecodeRun(b)
		if err != nil {
			return
		}
		again, err := encodeRun(r)
		if err != nil {
			return // its minimal record, with names, may be too large
		}
		if len(again.Bytes) > maxRunBytes {
			t.Fatalf("%d bytes", len(again.Bytes))
		}
		if _, _, err := DecodeRun(again.Bytes); err != nil {
			t.Fatalf("what was written can't be read: %v", err)
		}
	})
}

// Random values rarely reach the limit together: here each part is as long as it can be.
func TestLongestStatusFits(t *testing.T) {
	name, text := strings.Repeat("n", 63), Prose(strings.Repeat("\x00", 1000))
	longest := func(last string) Target { // three targets that differ
		v := version("999.999.999-" + strings.Repeat("a", 39) + last)
		v.Data = 1 << 62
		return v
	}
	wanted := longest("w")
	at := &tick{
		Agent: &Agent{
			Identity: Identity{Node: name, Role: name}, Settings: DefaultSettings(),
			Version: "v1.24.3-17-g0123456789ab", MachineID: strings.Repeat("f", 32), Boot: strings.Repeat("f", 36), Now: func() time.Time { return start },
		},
		observed: Observed{Disabled: text},
		decision: Decision{
			Action: Nothing, Cause: Cause{ReasonUnreadable, Params{Text: text}}, Wanted: wanted,
			Hold: &Hold{Scope: "roles/" + name, Mode: Freeze, Who: string(text), Why: text, Since: start, Until: start},
		},
		state: State{
			LastGood: longest("g"), Enforcing: longest("e"), RanAt: start, Outcome: Unchanged, LastRun: "20260304T050607Z-1234567", Enforce: EnforceDaemon,
			Served:   &Served{Environment: name, Server: strings.Repeat("s", 253), Reason: "failover", Criterion: string(text), Value: string(text), Code: string(text)},
			Attempts: []Attempt{{Target: wanted, Started: 1 << 30, Finished: 1 << 30, Last: start, Kind: Untouched, Problem: Problem{Code: CatalogRefused, Text: text}}},
		},
	}
	at.Upgrade = func(AgentChoice) *Upgrade {
		return &Upgrade{Wanted: strings.Repeat("1", 64), Phase: UpgradeProbation, Problem: Problem{Code: UpgradeUnavailable, Text: text}}
	}
	at.Signatures = func() *Signatures {
		return &Signatures{State: SignaturesNotChecked, Signers: strings.Repeat("f", 16), Keys: 1000, Release: wanted.Release, Data: 1 << 62, Permit: 1 << 62, Statement: 1 << 62}
	}
	at.state.refuse(wanted, refusedFor(string(text)), start)
	at.state.settle(strings.Repeat("a", 16), failedHook(text))
	b, err := json.Marshal(at.status())
	if err != nil || len(b) > maxStatusBytes {
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
		target := rapid.Custom(func(t *rapid.T) Target {
			v := version(rapid.StringMatching(`[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}(-[a-z0-9.]{1,40})?`).Draw(t, "release"))
			v.Data = Generation(rapid.Int64Range(0, 1<<62).Draw(t, "data"))
			return v
		})
		wanted, enforcing := target.Draw(t, "wanted"), target.Draw(t, "enforcing")
		at := &tick{
			Agent: &Agent{
				Identity: Identity{Node: name.Draw(t, "node"), Role: name.Draw(t, "role")}, Settings: DefaultSettings(),
				Version: "v1.24.3-17-g0123456789ab", MachineID: strings.Repeat("f", 32), Boot: strings.Repeat("f", 36), Now: func() time.Time { return start },
			},
			observed: Observed{Disabled: Prose(words.Draw(t, "disabled"))},
			decision: Decision{
				Action: Nothing, Cause: Cause{ReasonUnreadable, Params{Text: Prose(words.Draw(t, "detail"))}}, Wanted: wanted,
				Hold: &Hold{Scope: "roles/" + name.Draw(t, "held"), Mode: Freeze, Who: words.Draw(t, "who"), Why: Prose(words.Draw(t, "why")), Since: start, Until: start},
			},
			state: State{
				LastGood: target.Draw(t, "last good"), Enforcing: enforcing, RanAt: start, Outcome: Unchanged, LastRun: "20260304T050607Z-1234567",
				Attempts: []Attempt{{Target: wanted, Started: 1 << 30, Finished: 1 << 30, Last: start, Kind: Untouched, Problem: Problem{Code: CatalogRefused, Text: Prose(words.Draw(t, "problem"))}}},
			},
		}
		own := words.Draw(t, "own agent")
		at.Upgrade = func(AgentChoice) *Upgrade {
			return &Upgrade{Wanted: strings.Repeat("1", 64), Phase: UpgradeProbation, Problem: Problem{Code: UpgradeUnavailable, Text: Prose(own)}}
		}
		at.state.refuse(wanted, refusedFor(words.Draw(t, "refused")), start)
		at.state.settle(strings.Repeat("a", 16), failedHook(Prose(words.Draw(t, "answer"))))
		s := at.status()
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > maxStatusBytes {
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
	w.etcd.operator(t, func(d *Desired) { d.Holds = []Hold{freeze} })
	w.tick(t)
	w.etcd.operator(t, func(d *Desired) { d.Holds = nil })
	w.tick(t)
	if s := w.etcd.status(t); !strings.Contains(s.why().Sentence(), "Syntax error at '}' (file: manifests/site.pp, line: 3)") {
		t.Errorf("%q", s.why().Sentence())
	}
}

// A node's records in etcd are limited by bytes: a node that changes something in every tick must not fill etcd.
func TestRunsInEtcdAreBounded(t *testing.T) {
	w := fleetOn(t, verA)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		w.puppet.result = func(job Job) (Result, error) {
			res := Result{Kind: Success, Outcome: Changed}
			for range r.IntN(40) {
				res.Log = append(res.Log, LogLine{Level: "notice", Message: noise(r.Uint64(), 300)})
			}
			return res, nil
		}
		w.now = w.now.Add(31 * time.Minute)
		away := i%10 == 9
		if away {
			w.etcd.onReport = func() error { return fmt.Errorf("timeout: %w", ErrUnreachable) }
		}
		run := w.good(t)
		w.etcd.onReport = nil
		total := 0
		kept := w.etcd.load().Runs
		for _, b := range kept {
			total += len(b)
		}
		if total > maxRunsBytes || len(kept) > maxRunsKept {
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

// A record that is sent twice must be counted once. Otherwise the node deletes it and still counts its bytes.
func TestRecordSentTwiceCountsOnce(t *testing.T) {
	var reported Reported
	etcd := map[string]bool{}
	for i := range 3 * maxRunsKept {
		run := EncodedRun{ID: fmt.Sprint("r", i), Bytes: make([]byte, 100)}
		for range 3 {
			etcd[run.ID] = true
			for _, id := range reported.remember([]EncodedRun{run}) {
				delete(etcd, id)
			}
		}
		if len(reported.Runs) != len(etcd) || !etcd[run.ID] {
			t.Fatalf("after %s the node counts %d records and etcd has %d", run.ID, len(reported.Runs), len(etcd))
		}
	}
	if len(reported.Runs) != maxRunsKept {
		t.Errorf("%d are known", len(reported.Runs))
	}
}

// Without it, the diffs of one large run would push the failed resources and the log out of its record.
func TestDiffsGiveWayInRecords(t *testing.T) {
	r := Run{ID: "1", Node: "web1"}
	for i := range 100 {
		r.Resources = append(r.Resources, ResourceEvent{Resource: fmt.Sprintf("File[/%d]", i), Status: "changed", Diff: noise(uint64(i), 4<<10)})
		r.Log = append(r.Log, LogLine{Level: "notice", Message: fmt.Sprint("line ", i)})
	}
	e, err := encodeRun(r)
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := DecodeRun(e.Bytes)
	if err != nil || len(got.Resources) != 100 || len(got.Log) != 100 || !got.Resources[0].Cut || got.Resources[0].Diff != "" {
		t.Errorf("%d resources, %d lines, %v: %+v", len(got.Resources), len(got.Log), err, got.Resources[0])
	}
	if r.Resources[0].Diff == "" {
		t.Error("the caller's run changed")
	}
}
