package puppettest

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// run is one `puppet apply` by the fake.
type run struct {
	settings
	resources []resource
	log       []entry
	failure   bool // the complete catalog failed
	noReport  bool
	version   string
	term      chan os.Signal
}

// resource is a resource in the report.
type resource struct {
	ref, message                               string
	property, old, new                         string // of a noop event
	line                                       int
	changed, failed, restartFailed, skip, noop bool
}

// entry is a line of the log.
type entry struct{ level, source, message string }

// directive is one `# fake:` line.
type directive struct {
	verb string
	args string
	line int
}

func (r *run) apply() int {
	r.term = make(chan os.Signal, 1)
	signal.Notify(r.term, syscall.SIGTERM)
	if _, err := os.Stat(r.tree()); err != nil {
		return r.refuse(fmt.Sprintf("Could not run: Could not find a directory environment named '%s' anywhere in the path: %s", r.get("environment"), r.get("environmentpath")))
	}
	if c := r.get("config_version"); c != "" {
		out, err := exec.Command("/bin/sh", "-c", c).CombinedOutput()
		if err != nil {
			return r.refuse("Execution of config_version command `" + c + "` failed: " + err.Error() + " on node " + r.get("certname"))
		}
		r.version = strings.TrimSpace(string(out))
	}
	directives := r.read()
	r.leaveFacts(directives)
	for _, d := range directives {
		if problem := r.compile(d); problem != "" {
			return r.refuse(problem)
		}
	}
	r.classes(directives)
	fmt.Printf("Notice: Compiled catalog for %s in environment %s in 0.01 seconds\n", r.get("certname"), r.get("environment"))
	for _, d := range directives {
		if d.verb == "cycle" {
			r.say("err", "Puppet", "Found 1 dependency cycle:\n(Exec[a] => Exec[b] => Exec[a])\\nTry the '--graph' option and opening the resulting '.dot' file in OmniGraffle or GraphViz")
			return r.abort("Failed to apply catalog: One or more resource dependency cycles detected in graph")
		}
	}
	r.list(directives)
	for _, d := range directives {
		if stop := r.enact(d); stop {
			return r.abort("Could not run: SIGTERM")
		}
	}
	r.say("notice", "Puppet", "Applied catalog in 0.01 seconds")
	return r.finish()
}

// classes writes the classes of a "classes" directive, as write_catalog_summary does.
func (r *run) classes(directives []directive) {
	for _, d := range directives {
		if path := r.get("classfile"); d.verb == "classes" && r.get("write_catalog_summary") == "true" && path != "" {
			_ = os.WriteFile(path, []byte("settings\n"+strings.Join(strings.Fields(d.args), "\n")+"\n"), 0o600)
		}
	}
}

// list writes the resources that the directives name, as write_catalog_summary does.
func (r *run) list(directives []directive) {
	var b strings.Builder
	for _, d := range directives {
		first, rest, _ := strings.Cut(d.args, " ")
		switch d.verb {
		case "tagged":
			first, _, _ = strings.Cut(rest, " ")
			fallthrough
		case "file", "insist", "pending":
			fmt.Fprintf(&b, "file[%s]\n", strings.ToLower(first))
		case "fail", "skip", "refresh-fail":
			fmt.Fprintln(&b, strings.ToLower(first))
		}
	}
	if path := r.get("resourcefile"); path != "" && r.get("write_catalog_summary") == "true" {
		_ = os.WriteFile(path, []byte(b.String()), 0o600)
	}
}

// finish runs the postrun command, writes the report and returns the exit code, in Puppet's order.
func (r *run) finish() int {
	post := ""
	if c := r.get("postrun_command"); c != "" {
		if err := exec.Command("/bin/sh", "-c", c).Run(); err != nil {
			post = "Could not run command from postrun_command: Execution of '" + c + "' returned 1: "
			r.say("err", "Puppet", post)
		}
	}
	code := 0
	for _, res := range r.resources {
		if res.changed {
			code |= 2
		}
		if res.failed || res.restartFailed {
			code |= 4
		}
	}
	r.report(true)
	switch {
	case post != "":
		return 1
	case r.cli["detailed-exitcodes"] == "":
		return 0
	}
	return code
}

// abort ends a run in the middle: an incomplete report, exit 1.
func (r *run) abort(message string) int {
	r.failure = true
	r.report(false)
	fmt.Println("Error: " + message)
	return 1
}

// refuse ends a run before any change.
func (r *run) refuse(message string) int {
	fmt.Fprintln(os.Stderr, "Error: "+message)
	return 1
}

// read returns the directives of the environment's manifests, in order.
func (r *run) read() []directive {
	if code := r.cli["e"]; code != "" {
		return r.directives(code)
	}
	paths, _ := filepath.Glob(filepath.Join(r.tree(), "manifests", "*.pp"))
	slices.Sort(paths)
	var all []directive
	for _, path := range paths {
		text, _ := os.ReadFile(path)
		all = append(all, r.directives(string(text))...)
	}
	return all
}

// directives returns the directives in the comments of Puppet code.
func (r *run) directives(code string) (all []directive) {
	for i, line := range strings.Split(code, "\n") {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "# fake: "); ok {
			verb, args, _ := strings.Cut(rest, " ")
			all = append(all, directive{verb: verb, args: r.expand(args), line: i + 1})
		}
	}
	return all
}

// compile executes a directive during compilation. It returns the compilation error, if any.
func (r *run) compile(d directive) string {
	on := " on node " + r.get("certname")
	switch d.verb {
	case "node":
		if ok, err := regexp.MatchString(d.args, r.get("certname")); err != nil || !ok {
			return fmt.Sprintf("Could not find node statement with name 'default' or '%s'", r.get("certname")) + on
		}
	case "compile-error":
		return d.args + on
	case "compile-sleep":
		if r.sleep(d.args) {
			return "Could not run: SIGTERM"
		}
	case "print":
		first, rest, _ := strings.Cut(d.args, " ")
		n, _ := strconv.Atoi(first)
		for range n {
			fmt.Println("Notice: Scope(Class[main]): " + rest)
		}
	case "stray":
		fmt.Fprintln(os.Stderr, d.args)
	case "refuse-fact":
		name, message, _ := strings.Cut(d.args, " ")
		for _, dir := range []string{filepath.Join(r.get("libdir"), "facter"), filepath.Join(r.get("vardir"), "lib", "facter")} {
			if _, err := os.Stat(filepath.Join(dir, name+".rb")); err == nil {
				return "Evaluation Error: Error while evaluating a Function Call, " + message + on
			}
		}
		text, _ := os.ReadFile(filepath.Join(r.get("pluginfactdest"), name+".txt"))
		if len(text) > 0 || os.Getenv("FACTER_"+name) != "" {
			return "Evaluation Error: Error while evaluating a Function Call, " + message + on
		}
	case "integer":
		v, _, ok := r.find(d.args)
		if _, isInt := v.(int); ok && !isInt {
			class, parameter := d.args, ""
			if i := strings.LastIndex(d.args, "::"); i >= 0 {
				class, parameter = d.args[:i], d.args[i+2:]
			}
			return fmt.Sprintf("Evaluation Error: Error while evaluating a Function Call, Class[%s]: parameter '%s' expects an Integer value, got String (file: %s, line: %d, column: 1)",
				strings.ToUpper(class[:1])+class[1:], parameter, filepath.Join(r.tree(), "manifests", "site.pp"), d.line) + on
		}
	}
	return ""
}

// enact executes a directive. It returns true when a signal ended the run.
func (r *run) enact(d directive) (stop bool) {
	first, rest, _ := strings.Cut(d.args, " ")
	switch d.verb {
	case "file", "insist", "pending":
		r.file(first, rest, d)
	case "tagged":
		path, text, _ := strings.Cut(rest, " ")
		r.file(path, text, d)
	case "fail":
		r.add(resource{ref: first, line: d.line, failed: true, message: rest}, "err")
	case "skip":
		r.resources = append(r.resources, resource{ref: first, line: d.line, skip: true})
		r.say("warning", source(first), "Skipping because of failed dependencies")
	case "refresh-fail":
		r.add(resource{ref: first, line: d.line, failed: true, restartFailed: true, message: "Failed to call refresh: " + rest}, "err")
	case "refresh":
		r.resources = append(r.resources, resource{ref: first, line: d.line})
		if r.get("noop") == "true" {
			r.say("notice", source(first), "Would have triggered 'refresh' from 1 event")
		}
	case "sleep":
		return r.sleep(d.args)
	case "signal":
		if d.args == "KILL" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		} else {
			_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		}
		<-r.term
		return true
	case "no-report":
		r.noReport = true
	}
	return false
}

// file manages a file resource with content.
func (r *run) file(path, text string, d directive) {
	res := resource{ref: "File[" + path + "]", line: d.line}
	text = strings.ReplaceAll(text, `\n`, "\n")
	old, err := os.ReadFile(path)
	switch {
	case err == nil && string(old) == text:
		r.resources = append(r.resources, res)
		return
	case r.skips(d):
		res.skip = true
		r.resources = append(r.resources, res)
		return
	case d.verb == "pending" || r.get("noop") == "true" && (d.verb != "insist" || r.previews()):
		res.noop, res.property, res.old, res.new = true, "ensure", "absent", "file"
		if err == nil {
			res.property, res.old, res.new = "content", sum(string(old)), sum(text)
			r.diff(res, path, text)
		}
		res.message = fmt.Sprintf("current_value '%s', should be '%s' (noop)", res.old, res.new)
		r.add(res, "notice")
		return
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		res.failed, res.message = true, "change from 'absent' to 'file' failed: "+err.Error()
		r.add(res, "err")
		return
	}
	res.changed, res.message = true, "defined content"
	r.add(res, "notice")
}

// previews reports whether pulley-agent runs a preview.
func (r *run) previews() bool {
	var own struct{ Preview bool }
	text, _ := os.ReadFile(filepath.Join(r.get("confdir"), "pulley.json"))
	return json.Unmarshal(text, &own) == nil && own.Preview
}

// diff logs a diff as Puppet does in a noop run.
func (r *run) diff(res resource, path, text string) {
	cmd := exec.Command("diff", "-u", path, "-")
	cmd.Stdin = strings.NewReader(text)
	if r.get("show_diff") != "true" {
		return
	}
	if out, _ := cmd.Output(); len(out) > 0 {
		r.say("notice", source(res.ref)+"/content", "\n"+string(out))
	}
}

func sum(text string) string { return fmt.Sprintf("{sha256}%x", sha256.Sum256([]byte(text))) }

// skips reports whether the tags of the run leave out a resource.
func (r *run) skips(d directive) bool {
	own := ""
	if d.verb == "tagged" {
		own, _, _ = strings.Cut(d.args, " ")
	}
	named := func(setting string) bool {
		return own != "" && slices.Contains(strings.Split(r.get(setting), ","), own)
	}
	return r.get("tags") != "" && !named("tags") || named("skip_tags")
}

// sleep runs a command as Puppet does: in its own session, which a signal to Puppet does not reach.
func (r *run) sleep(seconds string) (stop bool) {
	cmd := exec.Command("sleep", seconds)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return false
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	select {
	case <-done:
		return false
	case <-r.term:
		return true
	}
}

func (r *run) add(res resource, level string) {
	r.resources = append(r.resources, res)
	r.say(level, source(res.ref), res.message)
}

// say logs a line and prints it in the format of Puppet's console.
func (r *run) say(level, source, message string) {
	r.log = append(r.log, entry{level, source, message})
	prefix := map[string]string{"err": "Error", "warning": "Warning", "notice": "Notice", "info": "Info"}[level]
	if source != "Puppet" {
		message = source + ": " + message
	}
	fmt.Println(prefix + ": " + message)
}

func source(ref string) string { return "/Stage[main]/Main/" + ref }

// stamp returns the time in the format of reports.
func stamp() string { return time.Now().Format("2006-01-02T15:04:05.000000000-07:00") }

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
	if path := r.get("lastrunfile"); path != "" {
		_ = os.WriteFile(path, []byte("---\nversion:\n  puppet: 7.23.0\ntime:\n  last_run: "+strconv.FormatInt(time.Now().Unix(), 10)+"\n"), 0o640)
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
	line("host: %s\ntime: '%s'\nconfiguration_version: %s\ntransaction_uuid: 00a5731f-cb92-4641-aa97-b0b52e31f128", r.get("certname"), stamp(), strconv.Quote(r.version))
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
	if len(r.resources) == 0 {
		line("resource_statuses: {}")
	} else {
		line("resource_statuses:")
	}
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
		line("    events:\n    - audited: false\n      property: %s\n      previous_value: %s\n      desired_value: %s", cmp.Or(res.property, "content"), strconv.Quote(res.old), strconv.Quote(res.new))
		line("      message: %s\n      name: content_changed\n      status: %s\n      corrective_change: false", strconv.Quote(res.message), status)
	}
	line("    corrective_change: false")
}
