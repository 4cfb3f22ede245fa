package takeover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
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

// crontabGlobs are the paths of crontabs in all packagings of cron.
var crontabGlobs = []string{"etc/crontab", cronFolder + "/*", "var/spool/cron/*", "var/spool/cron/crontabs/*", "var/spool/cron/tabs/*"}

const cronFolder = "etc/cron.d"

// system reports whether the crontab's lines contain a user field.
func (f File) system() bool { return strings.HasPrefix(f.read(), "etc/") }

// read returns the path from which cron reads the crontab.
func (f File) read() string {
	if f.Link != "" {
		return f.Link
	}
	return f.Path
}

// cronName matches the file names that Debian's cron reads in its folders (cron(8), run-parts(8)).
var cronName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// leavings matches backup files of editors and packages. cronie skips them (cron(8)), and so does Debian's cron for the
// files of its package manager.
var leavings = regexp.MustCompile(`^\.|~$|,v$|\.(?:rpmsave|rpmorig|rpmnew|cfsaved|swp|dpkg-[a-z]+|ucf-[a-z]+)$`)

// reads reports whether cron reads a file of this name in its folders.
func (m *Machine) reads(name string) bool {
	if _, err := os.Stat(m.path("etc/debian_version")); err == nil {
		return cronName.MatchString(name)
	}
	return !leavings.MatchString(name)
}

// crontabs returns the crontabs that start puppet agent.
func (m *Machine) crontabs() ([]File, error) {
	var found []File
	for _, glob := range crontabGlobs {
		paths, err := filepath.Glob(m.path(glob))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			under, err := filepath.Rel(m.Root, path)
			if err != nil {
				return nil, err
			}
			if filepath.Dir(under) == cronFolder && !m.reads(filepath.Base(under)) {
				continue
			}
			t, err := m.crontab(under)
			if err != nil {
				return nil, err
			}
			again := func(o File) bool { return t != nil && o.Path == t.Path } // two links to one file
			if t != nil && !slices.ContainsFunc(found, again) && len(agentLines(t.Before, t.system())) > 0 {
				found = append(found, *t)
			}
		}
	}
	return found, nil
}

// crontab reads one crontab. It returns nil if the file is missing or cron does not read it. It follows a link, because
// the target is edited.
func (m *Machine) crontab(under string) (*File, error) {
	target, ok := m.follow(under)
	if !ok {
		return nil, nil
	}
	path := m.path(target)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (!info.Mode().IsRegular() || info.Size() > maxCrontab) {
		return nil, nil
	}
	var b []byte
	if err == nil {
		b, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the crontab: %w", err)
	}
	f := &File{Path: target, Mode: info.Mode().Perm(), Before: string(b)}
	if target != under {
		f.Link = under
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		f.UID, f.GID = int(s.Uid), int(s.Gid)
	}
	return f, nil
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

// readSome reads the beginning of a file.
func readSome(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 64<<10))
}
