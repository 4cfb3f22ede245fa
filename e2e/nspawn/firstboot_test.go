//go:build e2e

package nspawn

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"pulley/internal/firstboot"
)

const stateFile = "/var/lib/pulley/first-boot.json"

// firstBoot returns the progress of the machine's first boot: the zero value before the agent has started it.
func (m *Machine) firstBoot() firstboot.State {
	var s firstboot.State
	if text, err := m.read(stateFile); err == nil {
		_ = json.Unmarshal([]byte(text), &s) // like the agent, treats a damaged file as missing
	}
	return s
}

// Finished is a condition for Wait: the first boot is over.
func (m *Machine) Finished() string {
	s := m.firstBoot()
	if !s.Finished.IsZero() {
		return ""
	}
	if s.Steps == nil {
		return "pulley-agent bootstrap has not started"
	}
	var is []string
	for _, name := range firstboot.Names() {
		if step, ok := s.Steps[name]; ok {
			is = append(is, strings.TrimSpace(fmt.Sprintf("%s %s %s", name, step.State, step.Error)))
		}
	}
	return strings.Join(is, ", ")
}

// timeline returns a table of the durations from power on until the node was seen converged.
func (m *Machine) timeline(booted, converged time.Time) string {
	m.t.Helper()
	s := m.firstBoot()
	var b strings.Builder
	row := func(what string, d time.Duration) { fmt.Fprintf(&b, "| %s | %.2f |\n", what, d.Seconds()) }
	b.WriteString("| | seconds |\n|---|---|\n")
	row("systemd, cloud-init, and the script, which fetches the agent", s.Started.Sub(booted))
	var steps time.Duration
	for _, name := range firstboot.Names() {
		step := s.Steps[name]
		steps += step.Took
		row("`"+string(name)+"`", step.Took)
	}
	row("between steps: saving the progress, and reporting it to `pulley serve`", s.Finished.Sub(s.Started)-steps)
	row("**power on until the first boot is finished**", s.Finished.Sub(booted))
	for _, run := range m.List("/var/lib/pulley/runs") { // its name begins with its time
		stamp, _, _ := strings.Cut(run, "-")
		if began, err := time.Parse("20060102T150405Z", stamp); err == nil {
			row("waiting for cron's next minute", began.Sub(s.Finished))
			row("the first run of the release, until it is seen", converged.Sub(began))
			break
		}
	}
	row("**power on until converged**", converged.Sub(booted))
	return b.String()
}

// fromSeed returns the files of a seed folder.
func (f *Fleet) fromSeed(dir string) map[string]string {
	f.t.Helper()
	files := map[string]string{}
	for _, name := range strings.Fields(f.run("ls", dir)) {
		files[name] = f.run("cat", filepath.Join(dir, name))
	}
	return files
}

// Path returns the path of an operator's file.
func (f *Fleet) Path(name string) string { return filepath.Join(f.dir, name) }
