package puppet

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pulley/agent"
)

func sample(t testing.TB, name string) *runReport {
	t.Helper()
	r, err := readReport(filepath.Join("testdata", name+".yaml"), false)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Operators judge a run by its report: it must agree with Puppet's own.
func TestParseReport(t *testing.T) {
	r := sample(t, "fail")
	if r.Status != "failed" || !r.Completed || r.Noop {
		t.Errorf("report %+v", r)
	}
	if want := (agent.Counts{Total: 9, Failed: 1, Skipped: 1, OutOfSync: 1}); r.Counts != want {
		t.Errorf("counts %+v, want %+v", r.Counts, want)
	}
	if d := r.Durations["config_retrieval"]; d < 97*time.Millisecond || d > 98*time.Millisecond {
		t.Errorf("config_retrieval took %s, want 97.99 ms", d)
	}
	manifest := "/var/lib/pulley/runs/1/environments/dev/manifests/site.pp"
	want := []agent.ResourceEvent{
		{Resource: "Exec[/bin/false]", Status: "failed", File: manifest, Line: 1, Messages: []string{"change from 'notrun' to ['0'] failed: '/bin/false' returned 1 instead of one of [0]"}},
		{Resource: "Notify[x]", Status: "skipped", File: manifest, Line: 1, Messages: []string{"Dependency Exec[/bin/false] has failures: true", "Skipping because of failed dependencies"}},
	}
	if got := fmt.Sprintf("%+v", r.Resources); got != fmt.Sprintf("%+v", want) {
		t.Errorf("resources\n%s, want\n%+v", got, want)
	}
	if len(r.Log) == 0 || r.Log[0].Level != "err" || r.Log[0].Time.IsZero() || r.Log[0].Message == "" {
		t.Errorf("log %+v", r.Log)
	}
	r.relative(relativeTo("/var/lib/pulley/runs/1/environments/dev"))
	if r.Resources[0].File != "manifests/site.pp" {
		t.Errorf("file %q", r.Resources[0].File)
	}

	if r := sample(t, "restart"); r.Counts.FailedToRestart != 1 || len(r.Resources) != 2 || r.Resources[0].Resource != "Exec[/bin/false]" || r.Resources[0].Status != "failed" {
		t.Errorf("failed restart: counts %+v, resources %+v", r.Counts, r.Resources)
	}
	if r := sample(t, "cycle"); r.Status != "failed" || r.Completed {
		t.Errorf("cycle: status %q, completed %t", r.Status, r.Completed)
	}
	if r := sample(t, "terminated"); r.Status != "failed" || r.Completed || len(r.Resources) != 1 || r.Resources[0].Status != "changed" {
		t.Errorf("terminated: %+v", r)
	}
	if r := sample(t, "noop"); !r.Noop || r.Counts.Changed != 1 {
		t.Errorf("noop: %+v", r)
	}
}

// An incomplete report proves nothing.
func TestParseReportRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "null": "---\n", "a list": "- status: changed\n", "no status": "transaction_completed: true\n", "not YAML": "status: [\n",
		"a loop": "status: &a [*a]\n", "deep": "status: " + strings.Repeat("[", 20000),
	} {
		if r, err := parseReport(strings.NewReader(text), false); err == nil {
			t.Errorf("%s: accepted as %+v", name, r)
		}
	}
	if _, err := readReport(filepath.Join(t.TempDir(), "none"), false); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	big := &endless{text: []byte("# filler filler filler filler filler filler filler filler filler\n")}
	if _, err := parseReport(big, false); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("without end: %v", err)
	}
	if big.read > maxReport+1<<20 {
		t.Errorf("%d bytes were read of a report without end", big.read)
	}
}

// endless is an infinite reader.
type endless struct {
	text []byte
	read int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, bytes.Repeat(e.text, len(p)/len(e.text)+1))
	e.read += n
	return n, nil
}

// A node whose declaration contains only messages is not classified: operators must see it as a node without classes.
func TestMessagesClassifyNothing(t *testing.T) {
	const format = "status: changed\ntransaction_completed: true\nresource_statuses:\n  %s:\n    containment_path: [%s]\n"
	for text, want := range map[string]bool{
		fmt.Sprintf(format, "Notify[a]", "'Stage[main]', Main, 'Node[default]', 'Notify[a]'"): false,
		fmt.Sprintf(format, "File[/a]", "'Stage[main]', Main, 'Node[default]', 'File[/a]'"):   true,
		fmt.Sprintf(format, "File[/a]", "'Stage[main]', Main, 'File[/a]'"):                    false,
	} {
		if r, err := parseReport(strings.NewReader(text), false); err != nil || r.declares != want {
			t.Errorf("%s: %+v, %v", text, r, err)
		}
	}
}

// A node's values in etcd must stay small, however much a run changes.
func TestParseReportIsBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("--- !ruby/object:Puppet::Transaction::Report\nstatus: failed\ntransaction_completed: true\nresource_statuses:\n")
	for i := range 1000 {
		fmt.Fprintf(&b, "  File[/x/%d]:\n    failed: %t\n    changed: true\n    events:\n    - status: success\n      message: %q\n", i, i == 900, strings.Repeat("ä", 4000))
	}
	r, err := parseReport(strings.NewReader(b.String()), false)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Resources) != maxResources || r.Resources[0].Resource != "File[/x/900]" || r.Resources[1].Resource != "File[/x/0]" {
		t.Errorf("%d resources, first %q", len(r.Resources), r.Resources[0].Resource)
	}
	message := r.Resources[1].Messages[0]
	if len(message) > maxMessage || !utf8.ValidString(message) || !strings.HasSuffix(message, "…") {
		t.Errorf("message of %d bytes ends %q", len(message), message[len(message)-8:])
	}
}

func FuzzParseReport(f *testing.F) {
	names, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(names) == 0 {
		f.Fatalf("no samples: %v", err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("status: &a {b: *a}\nlogs: *a\nmetrics: {resources: {values: [[total, x, -1], *a]}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseReport(bytes.NewReader(data), false)
		if err != nil {
			return
		}
		if r.Status == "" || len(r.Resources) > maxResources || r.Counts.Failed < 0 || r.Counts.Total < 0 {
			t.Errorf("report %+v", r)
		}
		for _, e := range r.Resources {
			if e.Status == "" || len(e.Messages) > maxMessages || !utf8.ValidString(e.Resource) || len(e.Resource) > maxMessage {
				t.Errorf("resource %+v", e)
			}
		}
	})
}

func FuzzParseConsole(f *testing.F) {
	f.Add([]byte("Error: a\nb\n\x1b[1;31mError: c\x1b[0m\n"))
	f.Add([]byte("no level\nNotice: x\r\n\xff\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		lines, _ := parseConsole(data)
		for _, line := range lines {
			if line.Level == "" || len(line.Message) > maxMessage || !utf8.ValidString(line.Message) {
				t.Errorf("line %+v", line)
			}
		}
	})
}
