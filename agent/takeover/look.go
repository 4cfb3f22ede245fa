package takeover

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"pulley/internal/bounded"
	"pulley/internal/pattern"
	"pulley/internal/puppet"
)

// Findings are the units, crontab lines, scripts and processes that run Puppet on this machine without Pulley.
type Findings struct {
	Units   []Unit    `json:"units,omitempty"`
	Lines   []Line    `json:"lines,omitempty"`
	Scripts []Script  `json:"scripts,omitempty"` // they stay; the lock stops their agents
	Daemons []Process `json:"daemons,omitempty"` // running now; the lock keeps them from applying catalogs
	Remotes []string  `json:"remotes,omitempty"` // units by which an orchestrator can start puppet agent
	Ran     bool      `json:"ran,omitempty"`     // Puppet has left its state on the machine
	Locked  bool      `json:"locked,omitempty"`  // puppet agent is disabled by its own lock
}

// Line is a line of a crontab.
type Line struct {
	Path string `json:"path"` // below the root
	Text string `json:"text"`
}

// Script is a script that starts Puppet.
type Script struct {
	Path   string `json:"path"`           // below the root
	Starts string `json:"starts"`         // subcommand of Puppet
	From   string `json:"from,omitempty"` // the crontab that calls it; "" if its folder starts it
}

// Process is a running process.
type Process struct {
	Pid     int    `json:"pid"`
	Command string `json:"command"`
}

// InCharge reports whether Puppet manages this machine. It does if a crontab or an administrator's unit starts it, or if an
// agent runs by itself. It also does if a package's unit or a script in cron's folders starts it and Puppet has run before.
// An installed package that has never run manages nothing.
func (f Findings) InCharge() bool {
	starts, runs, made := false, false, false
	for _, u := range f.Units {
		starts, runs = starts || u.starts(), runs || u.Active
		made = made || u.starts() && u.Own
	}
	for _, s := range f.Scripts {
		made = made || s.From != ""
	}
	byItself := len(f.Daemons) > 0 && !runs // otherwise the unit runs it
	return len(f.Lines) > 0 || made || byItself || f.Ran && (starts || len(f.Scripts) > 0)
}

// Empty reports whether nothing was found.
func (f Findings) Empty() bool {
	return len(f.Units)+len(f.Lines)+len(f.Scripts)+len(f.Daemons)+len(f.Remotes) == 0
}

// Rivals names what applies other catalogs beside Pulley: units, files, processes. A disabled agent, and a package's unit that never ran,
// do nothing.
func (f Findings) Rivals() (names []string) {
	add := func(name, subcommand string) {
		if (subcommand == puppet.ByApply || !f.Locked) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	runs := false
	for _, u := range f.Units {
		runs = runs || u.Active
		if u.Active || u.Own || f.Ran {
			add(u.Name, u.Starts)
		}
	}
	for _, l := range f.Lines {
		add("/"+l.Path, puppet.Starts(l.Text))
	}
	for _, s := range f.Scripts {
		add("/"+s.Path, s.Starts)
	}
	if len(f.Daemons) > 0 && !runs {
		add("a running puppet agent", puppet.ByAgent)
	}
	return names
}

// Sentences describes what was found, one finding each.
func (f Findings) Sentences() (all []string) {
	add := func(format string, a ...any) { all = append(all, fmt.Sprintf(format, a...)) }
	for _, u := range f.Units {
		now := ""
		if u.Active {
			now = ", and runs"
		}
		add("starts puppet %s: %s is %s%s", cmp.Or(u.Starts, puppet.ByAgent), u.Name, u.Was, now)
	}
	for _, l := range f.Lines {
		add("starts puppet %s: /%s: %s", puppet.Starts(l.Text), l.Path, l.Text)
	}
	for _, s := range f.Scripts {
		caller, advice := "", "Pulley does not change it: a disabled agent does nothing"
		if s.From != "" {
			caller = ", called by /" + s.From
		}
		if s.Starts == puppet.ByApply {
			advice = "Pulley does not change it: remove it by hand, because puppet agent's lock does not stop it"
		}
		add("starts puppet %s: /%s%s (%s)", s.Starts, s.Path, caller, advice)
	}
	for _, p := range f.Daemons {
		add("runs: %s (pid %d)", p.Command, p.Pid)
	}
	for _, name := range f.Remotes {
		add("can start puppet agent: %s (Pulley does not change it: a disabled agent does nothing)", name)
	}
	return all
}

// Look finds everything that starts Puppet on the machine without Pulley, and changes nothing.
func (m *Machine) Look(ctx context.Context) (Findings, error) {
	var f Findings
	listed := listing{}
	for _, may := range m.agentUnits(ctx, listed) {
		u, err := m.unit(ctx, may.Name)
		if err != nil {
			return Findings{}, err
		}
		if u == nil {
			continue
		}
		u.Own, u.Oneshot, u.Starts = may.Own, may.Oneshot, may.Starts
		u.Active = u.Active && !u.Oneshot
		if u.starts() {
			u.Links = m.unitLinks(u.Name)
			f.Units = append(f.Units, *u)
		}
	}
	for _, name := range remoteUnits {
		if u, err := m.unit(ctx, name); err != nil {
			return Findings{}, err
		} else if u != nil && u.starts() {
			f.Remotes = append(f.Remotes, name)
		}
	}
	tabs, err := m.crontabs()
	if err != nil {
		return Findings{}, err
	}
	f.Scripts = m.scripts(ctx, listed)
	for _, t := range tabs {
		for line := range strings.Lines(t.Before) {
			if starts(line, t.system()) {
				f.Lines = append(f.Lines, Line{t.read(), strings.TrimRight(line, "\r\n")})
			} else if script, sub := m.called(ctx, commandOf(line, t.system()), listed); sub != "" {
				f.Scripts = append(f.Scripts, Script{script, sub, t.read()})
			}
		}
	}
	if err := ctx.Err(); err != nil { // the searches ended early
		return Findings{}, fmt.Errorf("cannot look for what starts Puppet: %w", err)
	}
	f.Daemons, f.Ran = m.daemons(), m.ran()
	for _, dir := range m.StateDirs {
		lock, err := puppet.Disabled(dir)
		f.Locked = f.Locked || err == nil && lock != nil
	}
	return f, nil
}

// bootScripts are run at each boot, or name the commands of anacron and init.
var bootScripts = []string{"etc/rc.local", "etc/rc.d/rc.local", "etc/anacrontab", "etc/inittab", "etc/rc[2-5].d/S[0-9][0-9]*"}

// scripts returns the scripts in cron.hourly and similar folders, and those of the boot, that visibly start Puppet.
func (m *Machine) scripts(ctx context.Context, listed listing) (found []Script) {
	patterns := bootScripts
	if _, err := os.Lstat(m.path("run/systemd/system")); err == nil {
		patterns = patterns[:len(patterns)-1] // systemd has units for these
	}
	for _, folder := range []string{"hourly", "daily", "weekly", "monthly"} {
		patterns = append(slices.Clone(patterns), "etc/cron."+folder+"/*")
	}
	for _, pattern := range patterns {
		paths, _ := filepath.Glob(m.path(pattern)) // Glob fails only for an invalid pattern
		for _, path := range paths {
			under, _ := filepath.Rel(m.Root, path)
			table := strings.HasSuffix(under, "tab")
			info, err := os.Stat(path)
			if err != nil || !info.Mode().IsRegular() || !table && info.Mode()&0o111 == 0 || strings.HasPrefix(under, "etc/cron.") && !m.reads(filepath.Base(path)) {
				continue
			}
			b, err := readSome(path)
			if err != nil {
				continue
			}
			sub := puppet.Starts(string(b))
			if sub == "" {
				_, sub = m.called(ctx, string(b), listed)
			}
			if sub != "" {
				found = append(found, Script{Path: under, Starts: sub})
			}
		}
	}
	return found
}

// programFolders are the folders in which administrators keep scripts, and those of packages.
var programFolders = []string{"usr/local/sbin", "usr/local/bin", "opt/puppetlabs/bin", "root/bin", "usr/sbin", "usr/bin"}

// gitHooks run after git pull: a masterless Puppet often starts so.
var gitHooks = []string{".git/hooks/post-merge", ".git/hooks/post-checkout", ".git/hooks/post-rewrite"}

// The limits of a search: words of a command or script that may name another script, and files that one command leads to.
const (
	maxWords  = 500
	maxCalled = 50
)

// shells matches the words after which a shell reads a file, which then needs no #!.
var shells = pattern.Lazy(`^(?:\.|source|(?:\S*/)?(?:ba|da|a|k|mk|z)?sh)$`)

// calledFile is a file that a command names. read says that a shell reads it.
type calledFile struct {
	path string
	read bool
}

// called returns the first script that a command, or a script that it calls, names and that starts Puppet, with the subcommand.
func (m *Machine) called(ctx context.Context, command string, listed listing) (script, subcommand string) {
	return m.calledBy(ctx, command, map[string]bool{}, listed)
}

// listing has the names in each folder of a search: most words of a script name nothing in most folders. A folder with nil names may have
// anything.
type listing map[string]map[string]bool

// mostNames limits the names of a folder that are read.
const mostNames = 20_000

// mayHave reports whether a folder may have a file of this name.
func (m *Machine) mayHave(l listing, folder, name string) bool {
	names, known := l[folder]
	if !known {
		if f, err := os.Open(m.path(folder)); err == nil {
			all, err := f.Readdirnames(mostNames)
			_ = f.Close()
			if (err == nil || errors.Is(err, io.EOF)) && len(all) < mostNames {
				names = make(map[string]bool, len(all))
				for _, n := range all {
					names[n] = true
				}
			}
		} else if errors.Is(err, fs.ErrNotExist) {
			names = map[string]bool{}
		}
		l[folder] = names
	}
	return names == nil || names[name]
}

func (m *Machine) calledBy(ctx context.Context, command string, seen map[string]bool, listed listing) (script, subcommand string) {
	words := strings.FieldsFunc(command, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune("'\"`;&|()<>=,", r) })
	words = words[:min(len(words), maxWords)]
	folders := slices.Clone(programFolders)
	if len(seen) > 0 {
		folders = folders[:len(folders)-2] // a script's words are mostly programs of packages
	}
	var files, local []calledFile
	read := false // by the words before
	for _, w := range words {
		if ctx.Err() != nil {
			return "", ""
		}
		if filepath.IsLocal(w) {
			if f := (calledFile{w, read}); !slices.Contains(local, f) {
				local = append(local, f)
			}
		} else if info, err := os.Stat(m.path(w)); filepath.IsAbs(w) && err == nil {
			if info.IsDir() {
				folders = append(folders, w)
				for _, hook := range gitHooks {
					files = append(files, calledFile{filepath.Join(w, hook), false})
				}
			} else {
				files = append(files, calledFile{w, read})
			}
		}
		read = shells().MatchString(w) || read && strings.HasPrefix(w, "-")
	}
	for _, f := range local {
		first, _, _ := strings.Cut(filepath.Clean(f.path), "/")
		for _, folder := range folders {
			if m.mayHave(listed, folder, first) {
				files = append(files, calledFile{filepath.Join(folder, f.path), f.read})
			}
		}
	}
	for _, f := range files {
		if ctx.Err() != nil {
			return "", ""
		}
		under := strings.TrimPrefix(filepath.Clean(f.path), "/")
		info, err := os.Stat(m.path(under))
		key := under
		if f.read {
			key = ". " + under // a word before may only have named it
		}
		if seen[key] || len(seen) > maxCalled || err != nil || !info.Mode().IsRegular() || strings.HasPrefix(under, "var/lib/pulley/") || filepath.Base(under) == "puppet" {
			continue
		}
		seen[key] = true
		b, err := readSome(m.path(under))
		if err != nil || !bytes.HasPrefix(b, []byte("#!")) && (!f.read || info.Mode()&0o111 != 0 || bytes.ContainsRune(b, 0)) {
			continue // a binary, or a file that nothing runs, such as a log
		}
		if sub := puppet.Starts(string(b)); sub != "" {
			return under, sub
		}
		if script, sub := m.calledBy(ctx, string(b), seen, listed); sub != "" {
			return script, sub
		}
	}
	return "", ""
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
		if filepath.Base(program) == "puppet" && puppet.Starts(command) == puppet.ByAgent {
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
