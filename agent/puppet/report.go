package puppet

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"pulley/agent"
	"pulley/internal/clip"
)

// The limits of a report, and of the stored part of it.
const (
	maxReport    = 64 << 20 // bytes
	maxResources = 200
	maxLogLines  = 500
	maxMessage   = 2 << 10 // bytes
	maxMessages  = 20      // of one resource
	maxMetrics   = 200
)

// Report is the part of Puppet's last_run_report.yaml that Pulley uses. Its format is documented at
// https://www.puppet.com/docs/puppet/8/format_report.html. Formats 10 to 12 do not differ in this part.
type Report struct {
	Status        string // failed, changed or unchanged
	Completed     bool   // transaction_completed: Puppet processed the complete catalog
	Noop          bool
	NoopPending   bool
	Host          string
	Environment   string
	Configuration string   // configuration_version
	PuppetVersion string   // version of the Puppet that wrote it
	Tags          []string // of the run; Puppet processes only resources with these tags
	Counts        agent.Counts
	Durations     map[string]time.Duration
	Resources     []agent.ResourceEvent // failed first, then skipped, changed and noop; limited
	Log           []agent.LogLine
}

// readReport reads the report at path. The error wraps os.ErrNotExist if the file is missing.
func readReport(path string) (*Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read Puppet's report: %w", err)
	}
	defer f.Close()
	return ParseReport(f)
}

// ParseReport reads a report of at most 64 MiB. It skips unknown keys. A truncated report, or one without a status, is
// an error.
func ParseReport(r io.Reader) (report *Report, err error) {
	data, err := io.ReadAll(io.LimitReader(r, maxReport+1))
	if err == nil && len(data) > maxReport {
		err = fmt.Errorf("larger than %d bytes", maxReport)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read Puppet's report: %w", err)
	}
	defer func() { // the YAML parser is third-party, and a report must not crash the agent
		if r := recover(); r != nil {
			report, err = nil, fmt.Errorf("cannot parse Puppet's report: %v", r)
		}
	}()
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("cannot parse Puppet's report: %w", err)
	}
	if len(doc.Content) == 0 {
		return nil, errors.New("cannot parse Puppet's report: it is empty")
	}
	top := fields(doc.Content[0])
	rep := &Report{
		Status:        scalar(top["status"]),
		Completed:     scalar(top["transaction_completed"]) == "true",
		Noop:          scalar(top["noop"]) == "true",
		NoopPending:   scalar(top["noop_pending"]) == "true",
		Host:          scalar(top["host"]),
		Environment:   scalar(top["environment"]),
		Configuration: scalar(top["configuration_version"]),
		PuppetVersion: scalar(top["puppet_version"]),
		Tags:          scalars(top["tags"]),
		Durations:     map[string]time.Duration{},
	}
	if rep.Status == "" {
		return nil, errors.New("cannot parse Puppet's report: it has no status")
	}
	rep.metrics(top["metrics"])
	sources := rep.logs(top["logs"])
	rep.resources(top["resource_statuses"], sources)
	return rep, nil
}

// metrics reads `metrics: {resources|time|…: {values: [[name, label, value], …]}}`.
func (r *Report) metrics(n *yaml.Node) {
	metrics := fields(n)
	counts := map[string]*int{
		"total": &r.Counts.Total, "changed": &r.Counts.Changed, "failed": &r.Counts.Failed,
		"skipped": &r.Counts.Skipped, "out_of_sync": &r.Counts.OutOfSync, "failed_to_restart": &r.Counts.FailedToRestart,
	}
	for _, v := range items(fields(metrics["resources"])["values"]) {
		if triple := items(v); len(triple) == 3 && counts[scalar(triple[0])] != nil {
			*counts[scalar(triple[0])] = number(triple[2])
		}
	}
	for _, v := range items(fields(metrics["time"])["values"]) {
		triple := items(v)
		if len(triple) != 3 || len(r.Durations) >= maxMetrics {
			continue
		}
		seconds, err := strconv.ParseFloat(scalar(triple[2]), 64)
		if err == nil && seconds >= 0 && seconds < 1e9 {
			r.Durations[clip.Text(scalar(triple[0]), maxMessage)] = time.Duration(seconds * float64(time.Second))
		}
	}
}

// logs reads the log, and returns the lines of each source. Some failures appear only there.
func (r *Report) logs(n *yaml.Node) map[string][]agent.LogLine {
	sources := map[string][]agent.LogLine{}
	for _, item := range items(n) {
		f := fields(item)
		line := agent.LogLine{
			Level:   clip.Text(scalar(f["level"]), 16),
			Source:  clip.Text(scalar(f["source"]), maxMessage),
			Message: clip.Text(scalar(f["message"]), maxMessage),
		}
		line.Time, _ = time.Parse(time.RFC3339Nano, scalar(f["time"]))
		r.Log = append(r.Log, line)
		if said := sources[line.Source]; len(said) < maxMessages {
			sources[line.Source] = append(said, line)
		}
	}
	return sources
}

// resources reads `resource_statuses`, a mapping from resource reference to its status.
func (r *Report) resources(n *yaml.Node, sources map[string][]agent.LogLine) {
	n = deref(n)
	if n == nil || n.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		f := fields(n.Content[i+1])
		said := sources[clip.Text("/"+strings.Join(scalars(f["containment_path"]), "/"), maxMessage)]
		e := agent.ResourceEvent{
			Resource: clip.Text(scalar(n.Content[i]), maxMessage),
			Status:   resourceStatus(f, said),
			File:     clip.Text(scalar(f["file"]), maxMessage),
			Line:     number(f["line"]),
		}
		if e.Status == "" {
			continue
		}
		e.Messages = messages(e.Status, f, said)
		r.Resources = append(r.Resources, e)
	}
	rank := []string{"failed", "skipped", "changed", "noop"}
	slices.SortStableFunc(r.Resources, func(a, b agent.ResourceEvent) int {
		return cmp.Compare(slices.Index(rank, a.Status), slices.Index(rank, b.Status))
	})
	r.Resources = r.Resources[:min(len(r.Resources), maxResources)]
}

// resourceStatus returns "" for a resource that needs no mention. Puppet skips for several reasons (tags, schedules).
// Only a failed dependency counts, and only the log identifies it.
func resourceStatus(f map[string]*yaml.Node, said []agent.LogLine) string {
	is := func(name string) bool { return scalar(f[name]) == "true" }
	switch {
	case is("failed"), is("failed_to_restart"):
		return "failed"
	case is("skipped"):
		for _, line := range said {
			if strings.Contains(line.Message, "failed dependencies") {
				return "skipped"
			}
		}
	case is("changed"):
		return "changed"
	}
	for _, e := range items(f["events"]) {
		if scalar(fields(e)["status"]) == "noop" {
			return "noop"
		}
	}
	return ""
}

// messages returns the messages of the resource's events, failures first, or else the log lines of the resource.
func messages(status string, f map[string]*yaml.Node, said []agent.LogLine) []string {
	var first, rest []string
	for _, e := range items(f["events"]) {
		event := fields(e)
		switch text := clip.Text(scalar(event["message"]), maxMessage); {
		case text == "" || len(first)+len(rest) >= maxMessages:
		case scalar(event["status"]) == "failure":
			first = append(first, text)
		default:
			rest = append(rest, text)
		}
	}
	if all := append(first, rest...); len(first) > 0 || (status != "failed" && len(all) > 0) {
		return all
	}
	for _, line := range said {
		if status != "failed" || line.Level == "err" {
			first = append(first, line.Message)
		}
	}
	return append(first, rest...)
}

// relative removes folders from all file names.
func (r *Report) relative(rel *strings.Replacer) {
	for i := range r.Resources {
		e := &r.Resources[i]
		e.File = rel.Replace(e.File)
		for j := range e.Messages {
			e.Messages[j] = rel.Replace(e.Messages[j])
		}
	}
	for i := range r.Log {
		r.Log[i].Message = rel.Replace(r.Log[i].Message)
	}
}
