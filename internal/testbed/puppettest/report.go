package puppettest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// report writes a report in Puppet's format 12, or logs an error if it cannot.
func (r *run) report(completed bool) {
	path := r.get("lastrunreport")
	if r.noReport {
		fmt.Println("Error: Could not send report: Is a directory @ rb_file_s_rename - (" + path + ")")
		return
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		fmt.Println("Error: Could not send report: " + err.Error())
		return
	}
	if err := os.WriteFile(path, []byte(r.yaml(completed)), 0o640); err != nil {
		fmt.Println("Error: Could not send report: " + err.Error())
	}
}

func (r *run) yaml(completed bool) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	n := map[string]int{}
	for _, res := range r.resources {
		n["total"]++
		for name, is := range map[string]bool{
			"changed": res.changed, "failed": res.failed, "failed_to_restart": res.restartFailed, "skipped": res.skip,
			"out_of_sync": res.changed || res.failed || res.noop, "noop": res.noop,
		} {
			if is {
				n[name]++
			}
		}
	}
	status := "unchanged"
	switch {
	case r.failure || n["failed"] > 0 || n["failed_to_restart"] > 0:
		status = "failed"
	case n["changed"] > 0:
		status = "changed"
	}
	line("--- !ruby/object:Puppet::Transaction::Report")
	line("host: %s\ntime: '%s'\nconfiguration_version: 1795209586\ntransaction_uuid: 00a5731f-cb92-4641-aa97-b0b52e31f128", r.get("certname"), stamp())
	line("report_format: 12\npuppet_version: 7.23.0\nstatus: %s\ntransaction_completed: %t", status, completed)
	line("noop: %t\nnoop_pending: %t\nenvironment: %s\nlogs:", r.get("noop") == "true", n["noop"] > 0, r.get("environment"))
	for _, e := range r.log {
		line("- level: %s\n  message: %s\n  source: %s\n  tags:\n  - %s\n  time: '%s'\n  file:\n  line:", e.level, strconv.Quote(e.message), strconv.Quote(e.source), e.level, stamp())
	}
	line("metrics:\n  resources:\n    name: resources\n    label: Resources\n    values:")
	for _, name := range []string{"total", "skipped", "failed", "failed_to_restart", "restarted", "changed", "out_of_sync", "scheduled", "corrective_change"} {
		line("    - - %s\n      - %s\n      - %d", name, strings.ReplaceAll(name, "_", " "), n[name])
	}
	line("  time:\n    name: time\n    label: Time\n    values:\n    - - total\n      - Total\n      - 0.012345678")
	line("resource_statuses:")
	for _, res := range r.resources {
		r.resourceYAML(line, res)
	}
	line("corrective_change: false\ncached_catalog_status: not_used")
	return b.String()
}

func (r *run) resourceYAML(line func(string, ...any), res resource) {
	manifest := filepath.Join(r.tree(), "manifests", "site.pp")
	kind, title, _ := strings.Cut(strings.TrimSuffix(res.ref, "]"), "[")
	line("  %s:\n    title: %s\n    file: %s\n    line: %d\n    resource: %s", strconv.Quote(res.ref), strconv.Quote(title), strconv.Quote(manifest), res.line, strconv.Quote(res.ref))
	line("    resource_type: %s\n    containment_path:\n    - Stage[main]\n    - Main\n    - %s", kind, strconv.Quote(res.ref))
	line("    time: '%s'\n    failed: %t\n    failed_to_restart: %t\n    changed: %t", stamp(), res.failed, res.restartFailed, res.changed)
	line("    out_of_sync: %t\n    skipped: %t", res.changed || res.failed || res.noop, res.skip)
	status := ""
	switch {
	case res.failed:
		status = "failure"
	case res.noop:
		status = "noop"
	case res.changed:
		status = "success"
	}
	if status == "" {
		line("    events: []")
	} else {
		line("    events:\n    - audited: false\n      property: content\n      message: %s\n      name: content_changed\n      status: %s\n      corrective_change: false", strconv.Quote(res.message), status)
	}
	line("    corrective_change: false")
}
