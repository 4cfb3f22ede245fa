package takeover

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"pulley/internal/bounded"
)

// Findings are the units, crontab lines, scripts and processes that run a puppet agent on this machine.
type Findings struct {
	Units   []Unit    `json:"units,omitempty"`
	Lines   []Line    `json:"lines,omitempty"`
	Scripts []string  `json:"scripts,omitempty"` // in cron's folders; they stay, and the lock stops their agents
	Daemons []Process `json:"daemons,omitempty"` // running now; the lock keeps them from applying catalogs
	Ran     bool      `json:"ran,omitempty"`     // Puppet has left its state on the machine
}

// Line is a line of a crontab.
type Line struct {
	Path string `json:"path"` // below the root
	Text string `json:"text"`
}

// Process is a running process.
type Process struct {
	Pid     int    `json:"pid"`
	Command string `json:"command"`
}

// InCharge reports whether puppet agent manages this machine. It does if a crontab or an administrator's unit starts
// it, or if it runs by itself. It also does if a package's unit or a script in cron's folders starts it and Puppet has
// run before. An installed package that has never run manages nothing.
func (f Findings) InCharge() bool {
	starts, runs, made := false, false, false
	for _, u := range f.Units {
		starts, runs = starts || u.starts(), runs || u.Active
		made = made || u.starts() && u.Own
	}
	byItself := len(f.Daemons) > 0 && !runs // otherwise the unit runs it
	return len(f.Lines) > 0 || made || byItself || f.Ran && (starts || len(f.Scripts) > 0)
}

// Empty reports whether nothing was found.
func (f Findings) Empty() bool {
	return len(f.Units)+len(f.Lines)+len(f.Scripts)+len(f.Daemons) == 0
}

// Look finds everything that starts puppet agent on the machine, and changes nothing.
func (m *Machine) Look(ctx context.Context) (Findings, error) {
	var f Findings
	for _, may := range m.agentUnits() {
		u, err := m.unit(ctx, may.Name)
		if err != nil {
			return Findings{}, err
		}
		if u == nil {
			continue
		}
		u.Own, u.Oneshot = may.Own, may.Oneshot
		u.Active = u.Active && !u.Oneshot
		if u.starts() {
			u.Links = m.unitLinks(u.Name)
			f.Units = append(f.Units, *u)
		}
	}
	tabs, err := m.crontabs()
	if err != nil {
		return Findings{}, err
	}
	for _, t := range tabs {
		for _, text := range agentLines(t.Before, t.system()) {
			f.Lines = append(f.Lines, Line{t.read(), text})
		}
	}
	f.Scripts, f.Daemons, f.Ran = m.scripts(), m.daemons(), m.ran()
	return f, nil
}

// scripts returns the scripts in cron.hourly and similar folders that visibly start puppet agent.
func (m *Machine) scripts() (found []string) {
	for _, folder := range []string{"hourly", "daily", "weekly", "monthly"} {
		paths, _ := filepath.Glob(m.path("etc/cron." + folder + "/*")) // Glob fails only for an invalid pattern
		for _, path := range paths {
			info, err := os.Stat(path)
			if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 || !m.reads(filepath.Base(path)) {
				continue
			}
			if b, err := readSome(path); err == nil && startsAgent(string(b)) {
				under, _ := filepath.Rel(m.Root, path)
				found = append(found, under)
			}
		}
	}
	return found
}

// daemons returns the running agents, only for this machine's own root.
func (m *Machine) daemons() (found []Process) {
	if m.Root != "/" {
		return nil
	}
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		b, err := readSome(path)
		if err != nil {
			continue
		}
		command := strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " "))
		// Puppet changes its process title. As a script, it is an argument of ruby.
		program, rest, _ := strings.Cut(command, " ")
		if strings.HasPrefix(filepath.Base(program), "ruby") {
			program, _, _ = strings.Cut(rest, " ")
		}
		if filepath.Base(program) == "puppet" && startsAgent(command) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			found = append(found, Process{pid, command})
		}
	}
	return found
}

// ran reports whether Puppet has run on the machine.
func (m *Machine) ran() bool {
	for _, dir := range m.StateDirs {
		for _, name := range []string{"last_run_report.yaml", "last_run_summary.yaml", "state.yaml", "transactionstore.yaml"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				return true
			}
		}
	}
	return false
}

// maxLinks is the number of links that Linux follows, see path_resolution(7).
const maxLinks = 40

// follow resolves a path below the root until its last part is not a link. In another root, links stay below that root.
// It returns false for a cycle of links.
func (m *Machine) follow(under string) (target string, ok bool) {
	for range maxLinks {
		to, err := os.Readlink(m.path(under))
		if err != nil { // not a link, or missing: the reader handles it
			return under, true
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join("/", filepath.Dir(under), to)
		}
		under = strings.TrimPrefix(filepath.Clean(to), "/")
	}
	return "", false
}

// readSome reads the beginning of a file.
func readSome(path string) ([]byte, error) {
	f, err := bounded.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 64<<10))
}
