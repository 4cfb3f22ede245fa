package cli

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// Operators think in days and mebibytes. A duration that is read wrongly ends a hold at the wrong time.
func TestDurationsHaveDaysAndSizesUnits(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "7d": 7 * 24 * time.Hour, "2w": 14 * 24 * time.Hour, "1w1d": 8 * 24 * time.Hour, "1d12h": 36 * time.Hour,
		"1d30s": 24*time.Hour + 30*time.Second, "0": 0, "-1s": -time.Second,
	} {
		if got, err := ParseDuration(text); err != nil || got != want {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	for _, wrong := range []string{"", "d", "7 d", "1h1d", "1d-1h", "7days", "99999999d", "1d1d"} {
		if d, err := ParseDuration(wrong); err == nil {
			t.Errorf("%q: %s", wrong, d)
		}
	}
	for want, d := range map[string]time.Duration{
		"30s": 30 * time.Second, "10m": 10 * time.Minute, "4h": 4 * time.Hour, "7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour,
		"1h30m": 90 * time.Minute, "1m20s": 80 * time.Second, "1.5s": 1500 * time.Millisecond, "0s": 0,
	} {
		if got := Duration(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
	f := pflag.NewFlagSet("x", pflag.ContinueOnError)
	var d time.Duration
	var n int64
	DurationVar(f, &d, "for", 0, "how long")
	SizeVar(f, &n, "quota", 2<<30, "how much")
	if got := f.Lookup("quota").DefValue; got != "2 GiB" {
		t.Errorf("default %s", got)
	}
	for text, want := range map[string]int64{"4GiB": 4 << 30, "16 MiB": 16 << 20, "17179869184": 16 << 30, "1GB": 1e9} {
		if err := f.Parse([]string{"--for", "3d", "--quota", text}); err != nil || n != want || d != 72*time.Hour {
			t.Errorf("%s: %d, %s, %v", text, n, d, err)
		}
	}
	for _, wrong := range []string{"x", "", "-1", "1.5.5GiB", "99999999999GiB"} {
		if err := f.Parse([]string{"--quota", wrong}); err == nil {
			t.Errorf("%q: %d", wrong, n)
		}
	}
}
