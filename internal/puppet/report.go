package puppet

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"pulley/internal/bounded"
	"pulley/internal/clip"
	"pulley/internal/model"
)

// The limits of a report, and of the stored part of it.
const (
	maxResources = 200
	maxRunDiff   = 4 << 10 // bytes of the diff of one resource
	maxLogLines  = 500
	maxMessage   = 2 << 10 // bytes
	maxMessages  = 20      // of one resource
	maxMetrics   = 200
	maxPreviewed = 1000 // resources of a preview
)

// runReport is the part of Puppet's last_run_report.yaml that Pulley uses. Its format is documented at
// https://www.puppet.com/docs/puppet/8/format_report.html. Formats 10 to 12 do not differ in this part.
type runReport struct {
	Status    string // failed, changed or unchanged
	Completed bool   `yaml:"transaction_completed"` // Puppet processed the complete catalog
	Noop      bool
	Tags      []string // of the run; Puppet processes only resources with these tags

	Environment string // of the catalog
	Version     string `yaml:"configuration_version"`
	CodeID      string `yaml:"code_id"`
	Cached      string `yaml:"cached_catalog_status"` // not_used, explicitly_requested or on_failure

	Counts    model.Counts             `yaml:"-"`
	Durations map[string]time.Duration `yaml:"-"`
	Resources []model.ResourceEvent    `yaml:"-"` // failed first, then skipped, changed and noop; limited
	Log       []model.LogLine          `yaml:"-"`

	declares bool              // a node declaration has resources of its own, besides messages
	left     int               // resources beyond the limit
	cut      int               // lines of the log beyond the limit
	preview  bool              // Resources have properties and diffs, and no containers
	diffs    map[string]string // by the source of the line
}

// reportFile is the complete file.
type reportFile struct {
	runReport `yaml:",inline"`
	Metrics   map[string]struct {
		Values [][]string // name, label, value
	}
	Logs     []struct{ Level, Source, Message, Time string }
	Statuses yaml.Node `yaml:"resource_statuses"` // a mapping from resource reference to its resourceStatus, in order
}

// resourceStatus is the status of one resource.
type resourceStatus struct {
	File            string
	Line            int
	Failed          bool
	FailedToRestart bool `yaml:"failed_to_restart"`
	Changed         bool
	Skipped         bool
	Path            []string `yaml:"containment_path"`
	Events          []resourceEvent
}

// resourceEvent is one change of a property.
type resourceEvent struct {
	Status, Message, Property string

	Old yaml.Node `yaml:"previous_value"`
	New yaml.Node `yaml:"desired_value"`
}

// readReport reads the report at path. The error wraps os.ErrNotExist if the file is missing.
func readReport(path string, preview bool) (*runReport, error) {
	f, err := bounded.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read Puppet's report: %w", err)
	}
	defer f.Close()
	return parseReport(f, preview)
}

// parseReport reads a report. It skips unknown keys and values of a wrong type. A truncated report, or one without a status, is
// an error.
func parseReport(r io.Reader, preview bool) (report *runReport, err error) {
	in, err := reduceReport(r)
	if err != nil {
		return nil, fmt.Errorf("cannot read Puppet's report: %w", err)
	}
	defer func() { // the YAML parser is third-party, and a report must not crash the agent
		if r := recover(); r != nil {
			report, err = nil, fmt.Errorf("cannot parse Puppet's report: %v", r)
		}
	}()
	file := reportFile{runReport: runReport{preview: preview, diffs: map[string]string{}}}
	var wrongType *yaml.TypeError
	documents := yaml.NewDecoder(bytes.NewReader(in.text))
	if err := documents.Decode(&file); err != nil && !errors.As(err, &wrongType) {
		return nil, fmt.Errorf("cannot parse Puppet's report: %w", err)
	}
	switch {
	case file.Status == "":
		return nil, errors.New("cannot parse Puppet's report: it has no status")
	case file.Cached == "" || !in.ended: // the last line
		return nil, errors.New("cannot parse Puppet's report: it is cut off")
	case file.Statuses.Kind != yaml.MappingNode:
		return nil, errors.New("cannot parse Puppet's report: it has no resource_statuses")
	case !errors.Is(documents.Decode(&yaml.Node{}), io.EOF):
		return nil, errors.New("cannot parse Puppet's report: it has more than one document")
	}
	file.metrics()
	file.resources(file.logs())
	file.left, file.cut, file.Counts.Pending = file.left+in.resources, in.lines, file.Counts.Pending+in.noop
	return &file.runReport, nil
}

func (r *reportFile) metrics() {
	counts := map[string]*int{
		"total": &r.Counts.Total, "changed": &r.Counts.Changed, "failed": &r.Counts.Failed,
		"skipped": &r.Counts.Skipped, "out_of_sync": &r.Counts.OutOfSync, "failed_to_restart": &r.Counts.FailedToRestart,
	}
	for _, v := range r.Metrics["resources"].Values {
		if len(v) == 3 && counts[v[0]] != nil {
			n, _ := strconv.ParseUint(v[2], 10, 31)
			*counts[v[0]] = int(n)
		}
	}
	r.Durations = map[string]time.Duration{}
	for _, v := range r.Metrics["time"].Values {
		if len(v) != 3 || len(r.Durations) >= maxMetrics {
			continue
		}
		seconds, err := strconv.ParseFloat(v[2], 64)
		if err == nil && seconds >= 0 && seconds < 1e9 {
			r.Durations[clip.Text(v[0], maxMessage)] = time.Duration(seconds * float64(time.Second))
		}
	}
}

// logs reads the log, and returns the lines of each source. Some failures appear only there.
func (r *reportFile) logs() map[string][]model.LogLine {
	sources := map[string][]model.LogLine{}
	for _, l := range r.Logs {
		line := model.LogLine{Level: clip.Text(l.Level, 16), Source: clip.Text(l.Source, maxMessage), Message: clip.Text(l.Message, maxMessage)}
		line.Time, _ = time.Parse(time.RFC3339Nano, l.Time)
		if strings.HasPrefix(strings.TrimLeft(l.Message, "\n"), "--- ") && strings.Contains(l.Message, "\n+++ ") {
			r.diffs[l.Source] = plainDiff(l.Message)
			continue // the resource has it
		}
		r.Log = append(r.Log, line)
		if lines := sources[line.Source]; len(lines) < maxMessages {
			sources[line.Source] = append(lines, line)
		}
	}
	return sources
}

func (r *reportFile) resources(sources map[string][]model.LogLine) {
	if r.Statuses.Kind != yaml.MappingNode {
		return
	}
	containers := r.containers()
	for i := 0; i+1 < len(r.Statuses.Content); i += 2 {
		var s resourceStatus
		_ = r.Statuses.Content[i+1].Decode(&s)                               // what is not readable stays empty
		message := strings.HasPrefix(r.Statuses.Content[i].Value, "Notify[") // of a branch without classes, for example
		r.declares = r.declares || !message && slices.ContainsFunc(s.Path, func(part string) bool { return strings.HasPrefix(part, "Node[") })
		lines := sources[clip.Text("/"+strings.Join(s.Path, "/"), maxMessage)]
		status := s.status(lines)
		if status == "" && r.preview && slices.ContainsFunc(lines, wouldRefresh) {
			status = "noop"
		}
		if status == "" {
			continue
		}
		if status == "noop" {
			r.Counts.Pending++
		}
		e := model.ResourceEvent{
			Resource: clip.Text(r.Statuses.Content[i].Value, maxMessage), Status: status,
			File: clip.Text(s.File, maxMessage), Line: max(s.Line, 0), Messages: s.messages(status, lines),
		}
		r.detail(&e, s)
		if r.preview {
			if status == "noop" && containers[e.Resource] {
				continue
			}
			r.properties(&e, s, lines)
		} else if e.Diff, e.Cut = clip.Text(e.Diff, maxRunDiff), len(e.Diff) > maxRunDiff; e.Diff != "" && slices.ContainsFunc(s.Events, func(event resourceEvent) bool { return event.Property == "mode" }) {
			e.Diff, e.Hidden = "", true // perhaps nobody might read the former content
		}
		r.Resources = append(r.Resources, e)
	}
	rank := []string{"failed", "skipped", "changed", "noop"}
	slices.SortStableFunc(r.Resources, func(a, b model.ResourceEvent) int {
		return cmp.Compare(slices.Index(rank, a.Status), slices.Index(rank, b.Status))
	})
	limit := maxResources
	if r.preview {
		limit = maxPreviewed
	}
	r.left = max(len(r.Resources)-limit, 0)
	r.Resources = r.Resources[:min(len(r.Resources), limit)]
}

// status returns "" for a resource that needs no mention. Puppet skips for several reasons (tags, schedules). Only a
// failed dependency counts, and only the log identifies it.
func (s *resourceStatus) status(lines []model.LogLine) string {
	dependency := func(l model.LogLine) bool { return strings.Contains(l.Message, "failed dependencies") }
	switch {
	case s.Failed || s.FailedToRestart:
		return "failed"
	case s.Skipped && slices.ContainsFunc(lines, dependency):
		return "skipped"
	case s.Changed && !s.Skipped:
		return "changed"
	}
	for _, e := range s.Events {
		if e.Status == "noop" {
			return "noop"
		}
	}
	return ""
}

// messages returns the messages of the resource's events, failures first, or else the log lines of the resource.
func (s *resourceStatus) messages(status string, lines []model.LogLine) []string {
	var first, rest []string
	for _, e := range s.Events {
		switch text := clip.Text(e.Message, maxMessage); {
		case text == "" || len(first)+len(rest) >= maxMessages:
		case e.Status == "failure":
			first = append(first, text)
		default:
			rest = append(rest, text)
		}
	}
	if all := append(first, rest...); len(first) > 0 || (status != "failed" && len(all) > 0) {
		return all
	}
	for _, line := range lines {
		if status != "failed" || line.Level == "err" {
			first = append(first, line.Message)
		}
	}
	return append(first, rest...)
}

// relative removes folders from all file names.
func (r *runReport) relative(rel *strings.Replacer) {
	for i := range r.Resources {
		e := &r.Resources[i]
		e.File = rel.Replace(e.File)
		for j := range e.Messages {
			e.Messages[j] = rel.Replace(e.Messages[j])
		}
		for j, c := range e.Properties {
			e.Properties[j].Old, e.Properties[j].New = rel.Replace(c.Old), rel.Replace(c.New)
		}
	}
	for i := range r.Log {
		r.Log[i].Message = rel.Replace(r.Log[i].Message)
	}
}

// cutLines returns the number of lines of the log that were not read; 0 without a report.
func (r *runReport) cutLines() int {
	if r == nil {
		return 0
	}
	return r.cut
}
