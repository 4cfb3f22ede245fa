package model

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
	began := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	return Run{
		ID: "20260304T050607Z-1", Node: "web1", Target: Target{Release: "1.0.0", Data: 7}, Action: Take, Reason: ReasonNew, Started: began, Duration: time.Minute,
		Steps: map[string]time.Duration{"apply": time.Minute},
		Result: Result{
			Kind: Between, Outcome: Failed, Problem: Problem{Code: HookFailed, Text: "File[/etc/motd] failed"}, ExitCode: 4, Counts: Counts{Total: 9, Failed: 1},
			Durations: map[string]time.Duration{"file": time.Second},
			Resources: []ResourceEvent{{Resource: "File[/etc/motd]", Status: "failed", File: "manifests/site.pp", Line: 3, Messages: []string{"no"}}},
			Log:       []LogLine{{Level: "err", Source: "Puppet", Message: "no", Time: began}},
		},
	}
}

// `pulley runs` must show the run as it happened, if the record fits.
func TestRunRoundTrip(t *testing.T) {
	want := sampleRun()
	e, err := EncodeRun(want)
	if err != nil {
		t.Fatal(err)
	}
	got, truncated, err := DecodeRun(e.Bytes)
	if err != nil || truncated || e.ID != want.ID {
		t.Fatalf("%+v, truncated: %t, %v", e.ID, truncated, err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the run:\n got %+v\nwant %+v", got, want)
	}
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
		e, err := EncodeRun(r)
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
	e, err := EncodeRun(r)
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
	e, err := EncodeRun(sampleRun())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(e.Bytes)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, _, err := DecodeRun(b)
		if err != nil {
			return
		}
		again, err := EncodeRun(r)
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

// A record that is sent twice must be counted once. Otherwise the node deletes it and still counts its bytes.
func TestRecordSentTwiceCountsOnce(t *testing.T) {
	var reported Reported
	etcd := map[string]bool{}
	for i := range 3 * MaxRunsKept {
		run := EncodedRun{ID: fmt.Sprint("r", i), Bytes: make([]byte, 100)}
		for range 3 {
			etcd[run.ID] = true
			for _, id := range reported.Remember([]EncodedRun{run}) {
				delete(etcd, id)
			}
		}
		if len(reported.Runs) != len(etcd) || !etcd[run.ID] {
			t.Fatalf("after %s the node counts %d records and etcd has %d", run.ID, len(reported.Runs), len(etcd))
		}
	}
	if len(reported.Runs) != MaxRunsKept {
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
	e, err := EncodeRun(r)
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
