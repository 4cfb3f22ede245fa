package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"pulley/internal/model"
)

func env(values map[string]string) (Env, *bytes.Buffer, *bytes.Buffer) {
	var out, err bytes.Buffer
	return Env{Stdout: &out, Stderr: &err, Getenv: func(k string) string { return values[k] }}, &out, &err
}

// Scripts and cron branch on exit codes. People read the first line and then the hint.
func TestErrorsBecomeCodesAndHints(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		code int
		says string
	}{
		"nothing wrong":  {nil, 0, ""},
		"a failure":      {errors.New("cannot x: y"), 1, "pulley: cannot x: y\n"},
		"from a node":    {errors.New("cannot x: \x1b[2Jy\ntry \x07z\u009b"), 1, "pulley: cannot x:  [2Jy\n  try  z \n"},
		"with a hint":    {fmt.Errorf("cannot x: %w", errors.New("y\ntry z")), 1, "pulley: cannot x: y\n  try z\n"},
		"wrong usage":    {Usagef("which %s?", "one"), 2, "pulley: which one?\n"},
		"etcd is down":   {fmt.Errorf("cannot x: %w", model.ErrUnreachable), 3, "pulley: cannot x: etcd is unreachable\n"},
		"Ctrl-C":         {fmt.Errorf("cannot x: %w", context.Canceled), 1, "pulley: cannot x: interrupted\n"},
		"said elsewhere": {&SilentError{Code: 6}, 6, ""},
	} {
		e, _, stderr := env(nil)
		if code := Exit(e, "pulley", c.err); code != c.code || stderr.String() != c.says {
			t.Errorf("%s: exit code %d and %q; want %d and %q", name, code, stderr, c.code, c.says)
		}
	}
}

// Node data reaches an operator's terminal. It must not be able to control the terminal.
func TestTablesAlignAndEscapeControlCharacters(t *testing.T) {
	e, out, _ := env(nil)
	table := NewTable(e)
	table.Row("NODE", "STATE", "WHY")
	table.Row("compute1", "", "")
	table.Row("c2", "failed", "bad\x1b[2J\nnews\u2028")
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	want := "NODE      STATE   WHY\ncompute1\nc2        failed  bad [2J news\n"
	if out.String() != want {
		t.Errorf("got\n%q, want\n%q", out, want)
	}
}

// A variable that overrides a flag, or etcdctl's variable that overrides Pulley's, connects to another fleet.
func TestConnectionPrefersFlagsThenOursThenEtcdctls(t *testing.T) {
	vars := map[string]string{"PULLEY_ENDPOINTS": "a:1, b:2", "ETCDCTL_ENDPOINTS": "c:3", "ETCDCTL_CACERT": "/ca", "ETCDCTL_KEY": "/key", "PULLEY_KEY": "/ours"}
	e, _, _ := env(vars)
	c := Connection{}
	c.Fill(e)
	if got := strings.Join(c.Endpoints, " "); got != "https://a:1 https://b:2" || c.CACert != "/ca" || c.Key != "/ours" {
		t.Errorf("%+v", c)
	}
	c = Connection{Endpoints: []string{"http://d:4"}}
	c.Fill(e)
	if got := strings.Join(c.Endpoints, " "); got != "http://d:4" {
		t.Errorf("a flag lost against a variable: %s", got)
	}
	c = Connection{}
	none, _, _ := env(nil)
	c.Fill(none)
	if got := c.Config().Endpoints; len(got) != 1 || got[0] != DefaultEndpoint {
		t.Errorf("without anything: %v", got)
	}
}

// CI sets options by variables. An invalid variable must be reported, not ignored.
func TestVariablesStandForFlags(t *testing.T) {
	e, _, _ := env(map[string]string{"PULLEY_TIMEOUT": "7s", "PULLEY_OUTPUT": "json", "PULLEY_ENVIRONMENT": "production"})
	var c Connection
	c.Fill(e)
	var o Output
	o.Fill(e)
	if c.Timeout != 7*time.Second || c.Check() != nil || o.Format != "json" {
		t.Errorf("%+v %+v", c, o)
	}
	c, o = Connection{Timeout: time.Second}, Output{Format: "yaml"}
	c.Fill(e)
	o.Fill(e)
	if c.Timeout != time.Second || o.Format != "yaml" {
		t.Errorf("a flag lost against a variable: %+v %+v", c, o)
	}
	for _, wrong := range []string{"soon", "-1s"} {
		e, _, _ := env(map[string]string{"PULLEY_TIMEOUT": wrong})
		c := Connection{}
		c.Fill(e)
		var usage *UsageError
		if err := c.Check(); !errors.As(err, &usage) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	var fleet EnvironmentFlag
	flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
	fleet.AddFlag(flags)
	if ref, err := fleet.Ref(e); err != nil || ref.Environment != "production" {
		t.Errorf("%v %v", ref, err)
	}
	if err := flags.Parse([]string{"-e", ""}); err != nil {
		t.Fatal(err)
	}
	if ref, err := fleet.Ref(e); err == nil {
		t.Errorf(`-e "" reached %s`, ref)
	}
}

// Progress in a log file is noise. Progress that stays on a terminal hides the result.
func TestProgressIsForTerminals(t *testing.T) {
	e, out, stderr := env(nil)
	p := NewProgress(e)
	p.Show("1 object")
	p.Done()
	if stderr.Len() > 0 {
		t.Errorf("without a terminal: %q", stderr)
	}
	e.ErrTerminal = true
	p = NewProgress(e)
	p.Show("1 object")
	p.Show("2 objects")
	p.Done()
	p.Done()
	if got := stderr.String(); got != "\r\x1b[K1 object\r\x1b[K2 objects\r\x1b[K" || out.Len() > 0 {
		t.Errorf("on a terminal: %q, %q", got, out)
	}
}

func TestSpansAndSizesAreShort(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for want, then := range map[string]time.Time{
		"never": {}, "5s ago": now.Add(-5 * time.Second), "3m ago": now.Add(-200 * time.Second), "47h ago": now.Add(-47 * time.Hour),
		"4d ago": now.Add(-100 * time.Hour), "-2m ago": now.Add(2 * time.Minute),
		"-106751d ago": time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), // by a node
	} {
		if got := Ago(now, then); got != want {
			t.Errorf("%s: %s", want, got)
		}
	}
	for want, n := range map[string]int64{"0 B": 0, "1023 B": 1023, "1.0 KiB": 1024, "2.0 GiB": 2 << 30, "2048.0 GiB": 2 << 40} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
