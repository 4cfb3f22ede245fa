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

// Findings are what starts a puppet agent on this machine.
type Findings struct {
	Units   []Unit    `json:"units,omitempty"`
	Lines   []Line    `json:"lines,omitempty"`
	Scripts []string  `json:"scripts,omitempty"` // that cron runs by their folder; they stay, and the lock stops what they start
	Daemons []Process `json:"daemons,omitempty"` // that run now; the lock keeps them from doing anything
	Ran     bool      `json:"ran,omitempty"`     // a Puppet has left its state here
}

// Line is a line of a crontab.
type Line struct {
	Path string `json:"path"` // below the root
	Text string `json:"text"`
}

// Process is one that runs.
type Process struct {
	Pid     int    `json:"pid"`
	Command string `json:"command"`
}

// InCharge says whether puppet agent manages this machine: a crontab or a unit that somebody made starts it, or it runs by itself;
// or a package's unit or a script of cron's folders starts it, and it has been at work. What a package brought along, and nobody
// has told of a server, manages nothing.
func (f Findings) InCharge() bool {
	starts, runs, made := false, false, false
	for _, u := range f.Units {
		starts, runs = starts || u.starts(), runs || u.Active
		made = made || u.starts() && u.Own
	}
	byItself := len(f.Daemons) > 0 && !runs // else it is the unit's
	return len(f.Lines) > 0 || made || byItself || f.Ran && (starts || len(f.Scripts) > 0)
}

// Empty says whether nothing was found.
func (f Findings) Empty() bool {
	return len(f.Units)+len(f.Lines)+len(f.Scripts)+len(f.Daemons) == 0
}

// Look finds out what starts puppet agent here, and changes nothing.
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

// crontabGlobs are where cron's tables are, of the packagings of cron that there are.
var crontabGlobs = []string{"etc/crontab", cronFolder + "/*", "var/spool/cron/*", "var/spool/cron/crontabs/*", "var/spool/cron/tabs/*"}

const cronFolder = "etc/cron.d"

// system says whether the lines of a crontab name their user.
func (f File) system() bool { return strings.HasPrefix(f.read(), "etc/") }

// read is where cron reads it.
func (f File) read() string {
	if f.Link != "" {
		return f.Link
	}
	return f.Path
}

// cronName is the names of files in its folders that Debian's cron reads (cron(8), run-parts(8)).
var cronName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// leavings are what editors and packages leave behind: cronie (cron(8)) leaves out these, and what Debian's package manager
// keeps beside a file it leaves out too.
var leavings = regexp.MustCompile(`^\.|~$|,v$|\.(?:rpmsave|rpmorig|rpmnew|cfsaved|swp|dpkg-[a-z]+|ucf-[a-z]+)$`)

// reads says whether cron reads a file of this name in its folders.
func (m *Machine) reads(name string) bool {
	if _, err := os.Stat(m.path("etc/debian_version")); err == nil {
		return cronName.MatchString(name)
	}
	return !leavings.MatchString(name)
}

// crontabs are those that start puppet agent.
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

// crontab reads one; nil for what cron does not read, and for one that is not there. A link is followed: its target is edited.
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

// maxLinks is as many as Linux follows, path_resolution(7).
const maxLinks = 40

// follow is what a path below the root stands for, once its last part is no link any more; of another root links stay below
// that, as they would for that machine. It is false for a link that goes in circles.
func (m *Machine) follow(under string) (target string, ok bool) {
	for range maxLinks {
		to, err := os.Readlink(m.path(under))
		if err != nil { // no link, or nothing there: whoever reads it sees
			return under, true
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join("/", filepath.Dir(under), to)
		}
		under = strings.TrimPrefix(filepath.Clean(to), "/")
	}
	return "", false
}

// scripts are those of cron.hourly and its like that start puppet agent, as far as can be seen.
func (m *Machine) scripts() (found []string) {
	for _, folder := range []string{"hourly", "daily", "weekly", "monthly"} {
		paths, _ := filepath.Glob(m.path("etc/cron." + folder + "/*")) // only a pattern can be wrong
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

// daemons are the agents that run now; only of this very machine.
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
		// Puppet names its process anew; as a script it is ruby's argument.
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

// ran says whether Puppet has been at work here.
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
