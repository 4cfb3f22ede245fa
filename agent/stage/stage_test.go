package stage

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pulley/agent/nodeconfig"
	"pulley/internal/release/content"
	"pulley/internal/release/mirror"
	"pulley/internal/release/trust"
)

const (
	alice = "alice@* ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm8Y7cAjAOJKk1UyHSV1vTM9WKTVQkTNBXEdUDX9LBb\n"
	bob   = "bob@dev ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICVcb9hHdGv0sqfRO6ql5CzLmEGbiF6bz9NLAaqfN9Pl\n"
)

// listed creates a machine's lists; "" creates no file.
func listed(t *testing.T, allowed, revoked string, change func(*nodeconfig.Config)) trust.Files {
	t.Helper()
	c := nodeconfig.Under(t.TempDir())
	if change != nil {
		change(&c)
	}
	for _, dir := range []string{"etc/pulley", "var/lib/pulley"} {
		if err := os.MkdirAll(filepath.Join(c.Root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	f := Signers(c)
	for path, text := range map[string]string{f.Allowed: allowed, f.Revoked: revoked} {
		if text == "" {
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// A node that loses its list of signers, by accident or by an attack, must not take an unsigned release.
func TestLostSignersRefuseNewTargets(t *testing.T) {
	named := func(c *nodeconfig.Config) {
		c.AllowedSigners, c.RevokedSigners = filepath.Join(c.Root, "allowed"), filepath.Join(c.Root, "revoked")
	}
	revokedOnly := func(c *nodeconfig.Config) { c.RevokedSigners = filepath.Join(c.Root, "revoked") }
	for name, c := range map[string]struct {
		allowed, revoked string
		mark             trust.HighWaterMark
		spoil            string // content of trust.json
		change           func(*nodeconfig.Config)
		want             string // substring of the error, or of the output of `pulley-agent status`
	}{
		"there never was one":              {want: "not checked"},
		"there is one":                     {allowed: alice, want: "checked"},
		"of two people":                    {allowed: alice + bob, revoked: strings.TrimPrefix(alice, "alice@* "), want: "checked"},
		"there was one":                    {mark: trust.HighWaterMark{Required: true}, want: "etc/pulley/allowed_signers, is missing"},
		"there was one, elsewhere":         {mark: trust.HighWaterMark{Required: true, Environment: "dev", Release: "1.0.0"}, want: "is missing"},
		"the settings name one":            {change: named, want: "/allowed, is missing"},
		"the settings name both":           {allowed: alice, change: named, want: "cannot read the revoked keys"},
		"the settings name a list of lost": {allowed: alice, change: revokedOnly, want: "cannot read the revoked keys"},
		"a line that can't be read":        {allowed: alice + "bob\n", want: "line 2"},
		"a revoked key that can't be read": {allowed: alice, revoked: "bob\n", want: "revoked_signers: line 1"},
		"a list that is far too long":      {allowed: alice + strings.Repeat("#\n", nodeconfig.MaxFileBytes/2), want: "larger than 1 MiB"},
		"a mark that makes no sense":       {allowed: alice, spoil: "{", want: "trust.json: it is damaged"},
		"a mark, and no list":              {spoil: "{", want: "trust.json: it is damaged"},
		"a mark of a newer agent":          {allowed: alice, spoil: `{"v":99}`, want: "upgrade pulley"},
	} {
		f := listed(t, c.allowed, c.revoked, c.change)
		if c.mark != (trust.HighWaterMark{}) {
			if err := c.mark.Save(f.Mark); err != nil {
				t.Fatal(err)
			}
		}
		if c.spoil != "" {
			if err := os.WriteFile(f.Mark, []byte(c.spoil), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		v := &trust.Verifier{Files: f}
		signers, _, err := v.Signers()
		says := Check(f).String()
		var refused *trust.Refusal
		if failed := strings.HasPrefix(says, "the node accepts no new target: "); failed != (err != nil) || failed != errors.As(err, &refused) || !strings.Contains(says, c.want) {
			t.Errorf("%s: %q, %v; want %q", name, says, err, c.want)
		}
		if (signers != nil) != (says == "checked") {
			t.Errorf("%s: signers are %v", name, signers)
		}
		if after, err := trust.LoadHighWaterMark(f.Mark); signers != nil && (err != nil || !after.Required) {
			t.Errorf("%s: were the list lost now, signatures would not be missed: %+v, %v", name, after, err)
		}
	}
}

// deltas is a source of every delta. It counts its reads.
type deltas struct {
	content.Source
	asked []int64
	err   error
}

func (d *deltas) Deltas(_ context.Context, line string, from, to int64) ([][]byte, error) {
	d.asked = append(d.asked, from, to)
	var all [][]byte
	for i := from; i <= to; i++ {
		all = append(all, []byte{line[0], byte(i)})
	}
	return all, d.err
}

// The delta that comes with the record is mostly all that ten thousand nodes need. A second read would double the load.
func TestRecordsAreReadOnce(t *testing.T) {
	have := ahead{line: "1.0.0", seq: 5, bytes: []byte{'1', 5}}
	for name, c := range map[string]struct {
		have     ahead
		line     string
		from, to int64
		asked    []int64
	}{
		"just this one":     {have, "1.0.0", 5, 5, nil},
		"and those behind":  {have, "1.0.0", 5, 8, []int64{6, 8}},
		"later ones":        {have, "1.0.0", 6, 8, []int64{6, 8}},
		"earlier ones":      {have, "1.0.0", 4, 6, []int64{4, 6}},
		"of another line":   {have, "2.0.0", 5, 6, []int64{5, 6}},
		"there was no such": {ahead{line: "1.0.0", seq: 5}, "1.0.0", 5, 5, []int64{5, 5}},
	} {
		src := &deltas{}
		got, err := c.have.before(src).Deltas(t.Context(), c.line, c.from, c.to)
		want, _ := (&deltas{}).Deltas(t.Context(), c.line, c.from, c.to)
		if err != nil || !slices.EqualFunc(got, want, bytes.Equal) || !reflect.DeepEqual(src.asked, c.asked) {
			t.Errorf("%s: %v, %v; asked for %v", name, got, err, src.asked)
		}
	}
	if _, err := have.before(&deltas{err: os.ErrNotExist}).Deltas(t.Context(), "1.0.0", 5, 6); err == nil {
		t.Error("a delta that is missing is not missed")
	}
}

// If the delta that comes with the record is damaged, an intact one must come from a mirror.
func TestDamagedDeltaComesFromMirror(t *testing.T) {
	etcd, mirrors := &deltas{}, &deltas{}
	src := mirror.Fallback(ahead{line: "1.0.0", seq: 5, bytes: []byte("damaged")}.before(etcd), mirrors)
	for _, want := range []string{"damaged", "1\x05"} {
		if got, err := src.Deltas(t.Context(), "1.0.0", 5, 5); err != nil || string(got[0]) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	if etcd.asked != nil || !slices.Equal(mirrors.asked, []int64{5, 5}) {
		t.Errorf("etcd was asked for %v, the mirror for %v", etcd.asked, mirrors.asked)
	}
}
