package puppet

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pulley/internal/model"
)

func sample(t testing.TB, name string) *runReport {
	t.Helper()
	r, err := readReport(filepath.Join("testdata", name+".yaml"), false)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Without it, an operator who has asked for diffs sees checksums, or a private text.
func TestDiffsOfRuns(t *testing.T) {
	find := func(r *runReport, resource string) model.ResourceEvent {
		for _, e := range r.Resources {
			if e.Resource == resource {
				return e
			}
		}
		t.Fatalf("%s is not in the report", resource)
		return model.ResourceEvent{}
	}
	r := sample(t, "diff")
	if got, want := find(r, "File[/etc/app/motd]").Diff, "--- /etc/app/motd\n+++ /etc/app/motd\n@@ -1,3 +1,3 @@\n one\n-2\n+two\n three"; !strings.HasPrefix(got, want) {
		t.Errorf("the diff is %q, want %q", got, want)
	}
	if e := find(r, "File[/etc/app/secret]"); e.Diff != "" {
		t.Errorf("sensitive content: %+v", e)
	}
	for _, l := range r.Log {
		if strings.Contains(l.Message, "+++") {
			t.Errorf("the log repeats the diff: %q", l.Message)
		}
	}
	text, err := os.ReadFile("testdata/diff.yaml")
	if err != nil {
		t.Fatal(err)
	}
	mode := strings.Replace(string(text), "property: content", "property: mode", 1)
	if r, err = parseReport(strings.NewReader(mode), false); err != nil || find(r, "File[/etc/app/motd]").Diff != "" || !find(r, "File[/etc/app/motd]").Hidden {
		t.Errorf("a file whose mode changes: %+v, %v", r, err)
	}
	long := strings.Replace(string(text), "+two", "+"+strings.Repeat("x", 9000), 1)
	if r, err = parseReport(strings.NewReader(long), false); err != nil || len(find(r, "File[/etc/app/motd]").Diff) > maxRunDiff || !find(r, "File[/etc/app/motd]").Cut {
		t.Errorf("a long diff: %+v, %v", r, err)
	}
}

// Operators judge a run by its report: it must agree with Puppet's own.
func TestParseReport(t *testing.T) {
	r := sample(t, "fail")
	if r.Status != "failed" || !r.Completed || r.Noop {
		t.Errorf("report %+v", r)
	}
	if want := (model.Counts{Total: 9, Failed: 1, Skipped: 1, OutOfSync: 1}); r.Counts != want {
		t.Errorf("counts %+v, want %+v", r.Counts, want)
	}
	if d := r.Durations["config_retrieval"]; d < 97*time.Millisecond || d > 98*time.Millisecond {
		t.Errorf("config_retrieval took %s, want 97.99 ms", d)
	}
	manifest := "/var/lib/pulley/runs/1/environments/dev/manifests/site.pp"
	want := []model.ResourceEvent{
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
		"cut off": "status: changed\ntransaction_completed: true\n", "cut off in the list": "status: changed\ntransaction_completed: true\nresource_statuses:\n",
		"two documents": "status: changed\ntransaction_completed: true\nresource_statuses: {}\ncached_catalog_status: not_used\n---\nstatus: failed\n",
		"a loop":        "status: &a [*a]\n", "deep": "status: " + strings.Repeat("[", 20000),
	} {
		if r, err := parseReport(strings.NewReader(text), false); err == nil {
			t.Errorf("%s: accepted as %+v", name, r)
		}
	}
	text, err := os.ReadFile("testdata/fail.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for end := len(text) - 1; end > 0; end -= 7 {
		if r, err := parseReport(bytes.NewReader(text[:end]), false); err == nil {
			t.Errorf("the first %d bytes: accepted as %+v", end, r)
		}
	}
	if _, err := readReport(filepath.Join(t.TempDir(), "none"), false); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	big := &endless{text: []byte("# filler filler filler filler filler filler filler filler filler\n")}
	if _, err := parseReport(big, false); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("without end: %v", err)
	}
	if big.read > 3*maxWhole {
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
	const format = "status: changed\ntransaction_completed: true\nresource_statuses:\n  %s:\n    containment_path: [%s]\ncached_catalog_status: not_used\n"
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
	b.WriteString("cached_catalog_status: not_used\n")
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

// A run of many resources succeeds, and its report has as many as fit: neither the size of the report nor the memory of the agent may make it a
// failure.
func TestLargeReport(t *testing.T) {
	const n = 40_000 // 36 MiB
	var b strings.Builder
	b.WriteString("--- !ruby/object:Puppet::Transaction::Report\nhost: web1\nstatus: changed\ntransaction_completed: true\nnoop: false\nlogs:\n")
	for i := range n {
		level := "notice"
		if i == 7 {
			level = "err"
		}
		fmt.Fprintf(&b, "- level: %s\n  message: mode changed '0644' to '0640' of number %d\n  source: \"/Stage[main]/Main/Node[default]/File[/srv/x/%d]/mode\"\n  tags:\n  - %[1]s\n  time: '2026-11-20T21:23:20.152751344+00:00'\n  file:\n  line:\n", level, i, i)
	}
	fmt.Fprintf(&b, "metrics:\n  resources:\n    name: resources\n    label: Resources\n    values:\n    - - total\n      - Total\n      - %d\n    - - changed\n      - Changed\n      - %[1]d\nresource_statuses:\n", n)
	for i := range n {
		key := fmt.Sprintf("  File[/srv/x/%d]:\n", i)
		if i == 3 { // as the library writes a long key
			key = "  ? File[/srv/x/3" + strings.Repeat("-long", 30) + "]\n  :\n"
		}
		fmt.Fprintf(&b, "%s    title: \"/srv/x/%d\"\n    file: \"/r/manifests/site.pp\"\n    line: 2\n    containment_path:\n    - Stage[main]\n    - Main\n    - Node[default]\n    - File[/srv/x/%[2]d]\n    failed: %t\n    failed_to_restart: false\n    changed: %t\n    skipped: false\n    events:\n    - property: mode\n      previous_value: '0644'\n      desired_value: '0640'\n      message: mode changed '0644' to '0640'\n      status: %s\n    tags:\n    - %s\n",
			key, i, i == n-1, i != n-1, map[bool]string{true: "failure", false: "success"}[i == n-1], strings.Repeat("a", 100))
	}
	b.WriteString("corrective_change: false\ncached_catalog_status: not_used\n")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r, err := parseReport(strings.NewReader(b.String()), false)
	runtime.ReadMemStats(&after)
	if err != nil || r.Status != "changed" || !r.Completed || r.Counts.Changed != n || r.Cached != "not_used" || !r.declares {
		t.Fatalf("%v: %+v", err, r)
	}
	if len(r.Resources) != maxResources || r.Resources[0].Resource != fmt.Sprintf("File[/srv/x/%d]", n-1) || r.Resources[1].Resource != "File[/srv/x/0]" || !strings.Contains(r.Resources[4].Resource, "-long-long") || r.left != n-maxResources {
		t.Errorf("%d resources, %d left, the first %q, %q", len(r.Resources), r.left, r.Resources[0].Resource, r.Resources[1].Resource)
	}
	lines := limited(r.Log, maxLogLines, r.cut)
	if last := lines[len(lines)-1].Message; len(lines) != maxLogLines || !strings.Contains(last, fmt.Sprint(n-1)) || lines[1].Level != "err" || !strings.HasPrefix(lines[0].Message, fmt.Sprint(n-maxLogLines+1)+" lines") {
		t.Errorf("%d lines: %q, %+v … %q", len(lines), lines[0].Message, lines[1], last)
	}
	for _, gone := range []int{1, 5000} {
		if _, err := parseReport(strings.NewReader(b.String()[:b.Len()-gone]), false); err == nil {
			t.Errorf("without its last %d bytes, it is accepted", gone)
		}
	}
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 240 {
		t.Errorf("parsing of %d MiB allocated %d MiB", b.Len()>>20, took)
	} else {
		t.Logf("parsing of %d MiB allocated %d MiB in all", b.Len()>>20, took)
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

// A run without a report has the console as its log. A diff there may be that of a private file.
func TestConsoleKeepsNoDiff(t *testing.T) {
	lines, _ := parseConsole([]byte("Notice: /Stage[main]/Main/File[/etc/app]/content: \n--- /etc/app\t2026-11-27\n+++ /tmp/puppet-file\t2026-11-27\n@@ -1,2 +1,2 @@\n one\n\n-password=a\n+password=b\n\\ No newline at end of file\n" +
		"Notice: /Stage[main]/Main/Exec[x]/returns: executed\nmore\n"))
	if text := fmt.Sprint(lines); len(lines) != 2 || strings.Contains(text, "password") || !strings.Contains(text, "executed\nmore") {
		t.Errorf("%q", lines)
	}
}
