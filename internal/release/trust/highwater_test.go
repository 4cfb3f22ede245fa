package trust

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func releasePermit(epoch int64, from, to string) Permit {
	return Permit{V: 1, Environment: "dev", Epoch: epoch, Release: &ReleaseStep{from, to, "tree of " + to}}
}

func dataPermit(epoch, from, to int64, digest string) Permit {
	return Permit{V: 1, Environment: "dev", Epoch: epoch, Data: &DataStep{from, to, digest}}
}

func target(release string, data int64) Target {
	t := Target{Environment: "dev", Release: release, Data: data, DataDigest: "digest"}
	if release != "" {
		t.Tree = "tree of " + release
	}
	return t
}

// A writer to etcd must not be able to restore a release with known vulnerabilities.
func TestHighWaterMarkHolds(t *testing.T) {
	mark := HighWaterMark{Environment: "dev", Release: "1.4.0", Data: 7, Permit: 20, Required: true}
	with := func(release string, data, permit int64) HighWaterMark {
		return HighWaterMark{Environment: "dev", Release: release, Data: data, Permit: permit, Required: true}
	}
	both := releasePermit(21, "1.4.0", "1.3.0")
	both.Data = &DataStep{7, 5, "digest"}
	elsewhere, otherTree := releasePermit(21, "1.4.0", "1.3.0"), releasePermit(21, "1.4.0", "1.3.0")
	elsewhere.Environment, otherTree.Release.Tree = "production", "another"
	for _, c := range []struct {
		name    string
		target  Target
		permits []Permit
		want    HighWaterMark
		why     string
	}{
		{"the same again", target("1.4.0", 7), nil, with("1.4.0", 7, 20), ""},
		{"a newer release", target("1.10.0", 7), nil, with("1.10.0", 7, 20), ""},
		{"newer data", target("1.4.0", 8), nil, with("1.4.0", 8, 20), ""},
		{"a pre-release is older", target("1.4.0-rc1", 7), nil, mark, "release 1.4.0-rc1 is older than 1.4.0, the highest that this node attempted, and no signed rollback allows it"},
		{"a pre-release of the next is newer", target("1.5.0-rc1", 7), nil, with("1.5.0-rc1", 7, 20), ""},
		{"an older release", target("1.3.0", 7), nil, mark, "release 1.3.0 is older than 1.4.0, the highest that this node attempted, and no signed rollback allows it"},
		{"older data", target("1.4.0", 6), nil, mark, "data generation 6 is older than 7, the highest that this node attempted, and no signed rollback allows it"},
		{"no data any more", target("1.4.0", 0), nil, mark, "data generation (none) is older than 7, the highest that this node attempted, and no signed rollback allows it"},
		{"a newer release with older data", target("1.5.0", 6), nil, mark, "data generation 6 is older than 7, the highest that this node attempted, and no signed rollback allows it"},
		{"no version", target("", 7), nil, mark, "release (none) is older than 1.4.0, the highest that this node attempted, and no signed rollback allows it"},
		{"a version without an order", target("newest", 7), nil, mark, `release "newest" cannot be compared with older ones: malformed version: newest`},
		{"permitted", target("1.3.0", 7), []Permit{releasePermit(21, "1.4.0", "1.3.0")}, with("1.3.0", 7, 21), ""},
		{"permitted from above", target("1.3.0", 7), []Permit{releasePermit(25, "2.0.0", "1.3.0")}, with("1.3.0", 7, 25), ""},
		{"permitted, with newer data", target("1.3.0", 9), []Permit{releasePermit(21, "1.4.0", "1.3.0")}, with("1.3.0", 9, 21), ""},
		{"a permit that was used", target("1.3.0", 7), []Permit{releasePermit(20, "1.4.0", "1.3.0")}, mark, "older than 1.4.0"},
		{"a permit for lower nodes", target("1.3.0", 7), []Permit{releasePermit(21, "1.3.9", "1.3.0")}, mark, "older than 1.4.0"},
		{"a permit to something else", target("1.3.0", 7), []Permit{releasePermit(21, "1.4.0", "1.2.0")}, mark, "older than 1.4.0"},
		{"a permit for another tree", target("1.3.0", 7), []Permit{otherTree}, mark, "older than 1.4.0"},
		{"a permit of another environment", target("1.3.0", 7), []Permit{elsewhere}, mark, "older than 1.4.0"},
		{"a permit for data alone", target("1.3.0", 7), []Permit{dataPermit(21, 7, 5, "digest")}, mark, "older than 1.4.0"},
		{"data permitted", target("1.4.0", 5), []Permit{dataPermit(21, 7, 5, "digest")}, with("1.4.0", 5, 21), ""},
		{"data permitted away", target("1.4.0", 0), []Permit{dataPermit(21, 7, 0, "")}, with("1.4.0", 0, 21), ""},
		{"data of another digest", target("1.4.0", 5), []Permit{dataPermit(21, 7, 5, "another")}, mark, "older than 7"},
		{"both by one", target("1.3.0", 5), []Permit{both}, with("1.3.0", 5, 21), ""},
		{"both by two", target("1.3.0", 5), []Permit{releasePermit(22, "1.4.0", "1.3.0"), dataPermit(24, 7, 5, "digest")}, with("1.3.0", 5, 24), ""},
		{"one of both", target("1.3.0", 5), []Permit{releasePermit(22, "1.4.0", "1.3.0")}, mark, "older than 7"},
		{"the newest that fits", target("1.3.0", 7), []Permit{releasePermit(22, "1.4.0", "1.3.0"), releasePermit(30, "1.4.0", "1.3.0"), releasePermit(31, "1.4.0", "1.2.0")}, with("1.3.0", 7, 30), ""},
		{"the newest comes first", target("1.3.0", 7), []Permit{releasePermit(30, "1.4.0", "1.3.0"), releasePermit(22, "1.4.0", "1.3.0")}, with("1.3.0", 7, 30), ""},
		{"a data permit for lower nodes", target("1.4.0", 5), []Permit{dataPermit(21, 6, 5, "digest")}, mark, "older than 7"},
		{"another environment", Target{Environment: "staging", Release: "0.1.0"}, nil, HighWaterMark{Environment: "staging", Release: "0.1.0", Required: true}, ""},
		{"no environment is given", Target{Release: "1.4.0", Data: 7}, nil, mark, "no environment is named"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := mark.Check(c.target, c.permits)
			if why := whyNot(t, err); !strings.Contains(why, c.why) || (why == "") != (c.why == "") {
				t.Errorf("refused with %q, not %q", why, c.why)
			}
			if err == nil && got != c.want {
				t.Errorf("the mark is %+v, not %+v", got, c.want)
			}
		})
	}
}

// A known digest proves nothing about the number beside it: who may write a target would raise the mark out of reach.
func TestKnownDataIsNumberAndDigest(t *testing.T) {
	verified := HighWaterMark{Environment: "dev"}.verified(target("1.0.0", 7))
	noData := HighWaterMark{Environment: "dev"}.verified(Target{Environment: "dev", Release: "1.0.0", DataDigest: "digest"})
	earlier := HighWaterMark{Environment: "dev", Data: 7, Verified: "digest"} // of an agent that kept no number
	other := target("1.0.0", 7)
	other.DataDigest = "other"
	elsewhere := target("1.0.0", 7)
	elsewhere.Environment = "production"
	for _, c := range []struct {
		name   string
		mark   HighWaterMark
		target Target
		want   bool
	}{
		{"the pair", verified, target("2.0.0", 7), true},
		{"another number", verified, target("1.0.0", 1<<63-1), false},
		{"another digest", verified, other, false},
		{"another environment", verified, elsewhere, false},
		{"no data", verified, target("1.0.0", 0), false},
		{"a digest without data is never verified", noData, target("1.0.0", 7), false},
		{"a file of an earlier agent", earlier, target("1.0.0", 7), false},
		{"nothing yet", HighWaterMark{}, target("1.0.0", 7), false},
	} {
		if got := c.mark.Knows(c.target); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// A recovery reaches from any height. After its end it must allow nothing: it would be a downgrade for later nodes.
func TestPermitEnds(t *testing.T) {
	p := dataPermit(5, 1<<62, 7, "digest")
	if p.Ended(now) {
		t.Error("a permit without an end ended")
	}
	p.Until = now.Add(time.Hour)
	record, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if p, err = ParsePermit(record); err != nil {
		t.Fatal(err)
	}
	if p.Ended(now.Add(59*time.Minute)) || !p.Ended(now.Add(time.Hour)) {
		t.Errorf("it ends at %s", p.Until)
	}
}

// A permit allows one downgrade. It cannot be used again after the node was upgraded.
func TestPermitIsUsedOnce(t *testing.T) {
	permits := []Permit{releasePermit(5, "2.0.0", "1.0.0")}
	f := HighWaterMark{}
	for _, step := range []struct {
		release string
		refused bool
	}{{"2.0.0", false}, {"1.0.0", false}, {"1.0.0", false}, {"2.0.0", false}, {"1.0.0", true}} {
		next, err := f.Check(target(step.release, 0), permits)
		if (err != nil) != step.refused {
			t.Fatalf("%s from %+v: %v", step.release, f, err)
		}
		if err == nil {
			f = next
		}
	}
}

// For any sequence of targets, a node is downgraded only with a permit, and each epoch counts only once.
func TestHighWaterMarkSinksOnlyWithPermit(t *testing.T) {
	releases := rapid.SampledFrom([]string{"", "0.9.0", "1.0.0-rc1", "1.0.0", "1.2.0", "1.10.0", "2.0.0"})
	data := rapid.Int64Range(0, 4)
	permits := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Permit {
		p := releasePermit(rapid.Int64Range(1, 9).Draw(t, "epoch"), releases.Draw(t, "from"), releases.Draw(t, "to"))
		p.Data = &DataStep{data.Draw(t, "from data"), data.Draw(t, "to data"), "digest"}
		return p
	}), 0, 3)
	rapid.Check(t, func(t *rapid.T) {
		f := HighWaterMark{}
		for range 8 {
			to, with := target(releases.Draw(t, "release"), data.Draw(t, "data")), permits.Draw(t, "permits")
			next, err := f.Check(to, with)
			if err != nil {
				continue
			}
			order, err := compareVersions(next.Release, f.Release)
			if err != nil {
				t.Fatal(err)
			}
			if sank := order < 0 || next.Data < f.Data; sank != (next.Permit > f.Permit) {
				t.Fatalf("%+v became %+v with %+v", f, next, with)
			}
			if next.Release != to.Release || next.Data != to.Data || next.Permit < f.Permit {
				t.Fatalf("%+v became %+v for %+v", f, next, to)
			}
			f = next
		}
	})
}

// A misread permit would allow targets that no operator approved.
func TestPermitsAreReadStrictly(t *testing.T) {
	p := releasePermit(5, "2.0.0", "1.0.0")
	p.Data = &DataStep{7, 0, ""}
	p.By, p.Why, p.At = "alice", "does <not> compile\nat all", now
	b, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "\n") {
		t.Errorf("it is not one line: %q", b)
	}
	got, err := ParsePermit(b)
	if err != nil || got.Release.To != "1.0.0" || got.Data.From != 7 || got.Why != p.Why || !got.At.Equal(now) {
		t.Errorf("%+v: %v", got, err)
	}
	for in, why := range map[string]string{
		``:              "the record cannot be read: it is empty",
		`{}`:            "its format is 0",
		`null`:          "its format is 0",
		`[]`:            "cannot unmarshal",
		`{"v":2,"x":1}`: "its format is newer than this program; upgrade pulley on this machine",
		`{"v":1,"epoch":1,"release":{"from":"2","to":"1","tree":"x"},"at":"2026-01-01T00:00:00Z"}`:                          "it names no environment",
		`{"v":1,"environment":"dev","release":{"from":"2","to":"1","tree":"x"},"at":"2026-01-01T00:00:00Z"}`:                "it has no epoch",
		`{"v":1,"environment":"dev","epoch":1,"at":"2026-01-01T00:00:00Z"}`:                                                 "it permits nothing",
		`{"v":1,"environment":"dev","epoch":1,"release":{"from":"","to":"1","tree":"x"},"at":"2026-01-01T00:00:00Z"}`:       "malformed version",
		`{"v":1,"environment":"dev","epoch":1,"release":{"from":"2","to":"x y","tree":"x"},"at":"2026-01-01T00:00:00Z"}`:    "malformed version",
		`{"v":1,"environment":"dev","epoch":1,"release":{"from":"2","to":"1","tree":""},"at":"2026-01-01T00:00:00Z"}`:       "both a version and a tree",
		`{"v":1,"environment":"dev","epoch":1,"data":{"from":2,"to":1,"digest":""},"at":"2026-01-01T00:00:00Z"}`:            "both a generation and a digest",
		`{"v":1,"environment":"dev","epoch":1,"data":{"from":2,"to":-1,"digest":"x"},"at":"2026-01-01T00:00:00Z"}`:          "both a generation and a digest",
		`{"v":1,"environment":"dev","epoch":1,"data":{"from":2,"to":0,"digest":""},"all":true,"at":"2026-01-01T00:00:00Z"}`: `unknown field "all"`,
		`{"v":1,"environment":"dev","epoch":1,"data":{"from":2,"to":0,"digest":""},"at":"2026-01-01T00:00:00Z"} {}`:         "data follows its end",
	} {
		if _, err := ParsePermit([]byte(in)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, not %q", in, err, why)
		}
	}
	if _, err := (Permit{Environment: "dev", Epoch: 1}).Encode(); err == nil {
		t.Error("a permit for nothing was written")
	}
}

// A lost mark would allow every old target. A damaged mark must be reported, not replaced.
func TestHighWaterMarkOnDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trust.json")
	if f, err := LoadHighWaterMark(path); err != nil || f != (HighWaterMark{}) {
		t.Fatalf("%+v: %v", f, err)
	}
	for _, want := range []HighWaterMark{{}, {Required: true}, {"dev@t42", "1.4.0", 7, 20, true, "ab", 7, 22, 23}, {"dev", "1.3.0", 0, 21, false, "", 0, 0, 0}} {
		if err := want.Save(path); err != nil {
			t.Fatal(err)
		}
		if got, err := LoadHighWaterMark(path); err != nil || got != want {
			t.Errorf("%+v was saved, %+v read: %v", want, got, err)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("saving left %v: %v", left, err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bad := []string{"null", "{}", "[]", `"x"`, string(whole) + "{}", `{"v":1,"environment":"dev","release":"x y"}`, `{"v":1,"environment":"dev","data":-1}`,
		`{"v":1,"release":"1.0.0"}`, `{"v":1,"forget":true}`, `{"v":0}`, strings.Repeat(" ", 64<<10) + string(whole)}
	for n := range len(strings.TrimSpace(string(whole))) {
		bad = append(bad, string(whole[:n]))
	}
	for _, b := range bad {
		if err := os.WriteFile(path, []byte(b), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := LoadHighWaterMark(path)
		if err == nil || !strings.Contains(err.Error(), "cannot read "+path+": it is damaged: ") || !strings.Contains(err.Error(), "\ncheck that the node's target") {
			t.Errorf("%.60q: %v", b, err)
		}
	}
	if err := os.WriteFile(path, []byte(`{"v":2,"new":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadHighWaterMark(path); err == nil || !strings.Contains(err.Error(), "upgrade pulley on this machine") {
		t.Errorf("a newer format: %v", err)
	}
	if err := (HighWaterMark{Release: "1.0.0"}).Save(path); err == nil {
		t.Error("a mark was saved that can't be read")
	}
	if err := (HighWaterMark{}).Save(filepath.Join(path, "below", "trust.json")); err == nil {
		t.Error("a mark was saved nowhere")
	}
}

// The holder of a stolen key signs a permit under the highest number: no later permit could be above it. A number that no
// change can have is no permit, and a mark with such a number bounds nothing.
func TestEpochThatNoChangeCanHaveBoundsNothing(t *testing.T) {
	limit := now.Unix() + epochsAhead
	for epoch, want := range map[int64]bool{-1: false, 0: true, now.Unix(): true, limit: true, limit + 1: false, 1<<63 - 1: false} {
		if got := PlausibleEpoch(epoch, now); got != want {
			t.Errorf("epoch %d: %v", epoch, got)
		}
	}
	signers := mustParse(t, "alice@dev "+text(softKey(t, 1).PublicKey()), "")
	raise := func(mark int64, epochs ...int64) (int64, error) {
		v := Verifier{Now: func() time.Time { return now }, Permits: func(_ context.Context, _ string, more func([]SignedPermit) bool) error {
			var page []SignedPermit
			for _, epoch := range epochs {
				p := releasePermit(epoch, "2.0.0", "1.0.0")
				record, err := p.Encode()
				if err != nil {
					return err
				}
				page = append(page, SignedPermit{Permit: p, Record: record, Signatures: sign(t, softKey(t, 1), Rollback, string(record))})
			}
			more(page)
			return nil
		}}
		next, err := v.Raise(t.Context(), signers, HighWaterMark{Environment: "dev", Release: "2.0.0", Permit: mark}, target("1.0.0", 0))
		return next.Permit, err
	}
	for _, c := range []struct {
		mark   int64
		epochs []int64
		used   int64 // 0: refused
	}{
		{5, []int64{1<<63 - 1, limit + 1}, 0},
		{5, []int64{1<<63 - 1, 6}, 6},
		{5, []int64{limit}, limit},
		{limit, []int64{6}, 0},
		{limit + 1, []int64{6}, 6},
		{1<<63 - 1, []int64{6}, 6},
	} {
		if used, err := raise(c.mark, c.epochs...); (err != nil) != (c.used == 0) || err == nil && used != c.used {
			t.Errorf("at the mark %d, of the permits %v: used %d, %v", c.mark, c.epochs, used, err)
		}
	}
}

// A signer who continued a number that somebody wrote, or a thief of a key, would end all later data.
func TestDataWithAnImpossibleNumberIsRefused(t *testing.T) {
	t.Parallel()
	key := softKey(t, 1)
	s := mustParse(t, "alice@dev "+text(key.PublicKey()), "")
	v := &Verifier{Now: func() time.Time { return now }}
	for number, possible := range map[int64]bool{1: true, MaxEpoch(now): true, MaxEpoch(now) + 1: false, 1<<63 - 1: false} {
		const record = `{"v":1}`
		r := Record{Environment: "dev", Number: number, Digest: "aa", Bytes: []byte(record), Signatures: sign(t, key, Data, record)}
		err := v.Data(s, Target{Environment: "dev", Data: number, DataDigest: "aa"}, r)
		if want := fmt.Sprintf("no data can have generation %d", number); possible != (err == nil) || !possible && !strings.Contains(err.Error(), want) {
			t.Errorf("generation %d: %v", number, err)
		}
	}
}
