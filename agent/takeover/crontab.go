package takeover

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"pulley/internal/puppet"

	"pulley/internal/pattern"
)

// mark is the prefix of a line that cron must not run.
const mark = "# pulley-takeover: "

var (
	times      = `^\s*(?:@[a-z]+|[-0-9*/,~A-Za-z]+(?:\s+[-0-9*/,~A-Za-z]+){4})\s+`
	ownLine    = pattern.Lazy(times + `(\S.*)$`)
	systemLine = pattern.Lazy(times + `[^\s=]+\s+(\S.*)$`) // with the user field, as in /etc/crontab
)

// commandOf returns the command of a line of a crontab (crontab(5)); "" for a comment or a variable.
func commandOf(line string, system bool) string {
	shape := ownLine
	if system {
		shape = systemLine
	}
	m := shape().FindStringSubmatch(strings.TrimRight(line, "\r\n"))
	if m == nil {
		return ""
	}
	return m[1]
}

// starts reports whether a line of a crontab starts Puppet itself. The whole line then stands for Puppet.
func starts(line string, system bool) bool { return puppet.Starts(commandOf(line, system)) != "" }

// each rewrites a text line by line.
func each(text string, write func(line string) string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(write(line))
	}
	return b.String()
}

// commented adds the mark to each line that starts Puppet.
func commented(text string, system bool) string {
	return each(text, func(line string) string {
		if starts(line, system) {
			return mark + line
		}
		return line
	})
}

// uncommented removes the marks.
func uncommented(text string) string {
	return each(text, func(line string) string { return strings.TrimPrefix(line, mark) })
}

// dropped removes the lines with a mark.
func dropped(text string) string {
	return each(text, func(line string) string {
		if strings.HasPrefix(line, mark) {
			return ""
		}
		return line
	})
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
var cronName = pattern.Lazy(`^[A-Za-z0-9_-]+$`)

// leavings matches backup files of editors and packages. cronie skips them (cron(8)), and so does Debian's cron for the
// files of its package manager.
var leavings = pattern.Lazy(`^\.|~$|,v$|\.(?:rpmsave|rpmorig|rpmnew|cfsaved|swp|dpkg-[a-z]+|ucf-[a-z]+)$`)

// reads reports whether cron reads a file of this name in its folders.
func (m *Machine) reads(name string) bool {
	if _, err := os.Stat(m.path("etc/debian_version")); err == nil {
		return cronName().MatchString(name)
	}
	return !leavings().MatchString(name)
}

// crontabs returns the crontabs that cron reads.
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
			again := func(o File) bool { return o.Path == t.Path } // two links to one file
			if t != nil && !slices.ContainsFunc(found, again) {
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

// restored returns the content of a restored crontab, given its present content: the original, or if an administrator
// edited it since, the edited text with the original lines. A deleted crontab is restored as found.
func (f File) restored(now string) string {
	switch {
	case now == "" || now == f.Before || now == f.Disabled || f.Removed != nil && now == *f.Removed:
		return f.Before
	case strings.Contains(now, mark):
		return uncommented(now)
	}
	have := map[string]bool{}
	for line := range strings.Lines(now) {
		have[strings.TrimRight(line, "\r\n")] = true
	}
	for line := range strings.Lines(f.Disabled) {
		gone, marked := strings.CutPrefix(strings.TrimRight(line, "\r\n"), mark)
		if marked && !have[gone] {
			if now != "" && !strings.HasSuffix(now, "\n") {
				now += "\n"
			}
			now += gone + "\n"
		}
	}
	return now
}
