package puppet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"gopkg.in/yaml.v3"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/model"
	"pulley/internal/pattern"
)

// LastRun is where the machine's monitoring reads the result of Puppet's last run. The zero value means nowhere.
type LastRun struct {
	Summary string // path of last_run_summary.yaml
	Report  string // path of last_run_report.yaml
}

// Conf is the machine's own puppet.conf. No run uses it.
type Conf struct {
	Path   string            // "" without a file
	Values map[string]string // of puppet agent: section agent over section main
	Apply  map[string]string // of puppet apply: section user over section main
}

// ConfDirs returns the folders of the machine's own puppet.conf below root: that of the packages of Puppet and OpenVox,
// and that of Debian's.
func ConfDirs(root string) []string {
	return []string{filepath.Join("/", root, "etc/puppetlabs/puppet"), filepath.Join("/", root, "etc/puppet")}
}

// ConfDir returns the one of ConfDirs that belongs to an ssldir.
func ConfDir(root, sslDir string) string {
	dirs := ConfDirs(root)
	if strings.HasPrefix(sslDir, dirs[0]+"/") {
		return dirs[0]
	}
	return dirs[1]
}

// ReadConf reads the machine's own puppet.conf, the first of those in ConfDirs.
func ReadConf(root string) (Conf, error) {
	for _, dir := range ConfDirs(root) {
		path := filepath.Join(dir, "puppet.conf")
		text, err := bounded.ReadFile(path, maxConf)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return Conf{}, fmt.Errorf("cannot read Puppet's own settings: %w", err)
		}
		c := ParseConf(string(text))
		c.Path = path
		return c, nil
	}
	return ParseConf(""), nil
}

// maxConf limits puppet.conf, in bytes.
const maxConf = 1 << 20

// The lines of puppet.conf, see puppet/settings/ini_file.rb.
var (
	confHead = pattern.Lazy(`^\s*\[(\w+)\]\s*$`)
	confLine = pattern.Lazy(`^\s*(\w+)\s*=\s*(.*?)\s*$`)
	confVar  = pattern.Lazy(`\$(\w+|\{\w+\})`)
)

// ParseConf parses the text of a puppet.conf.
func ParseConf(text string) Conf {
	sections := map[string]map[string]string{"main": {}, "agent": {}, "user": {}}
	in := "main"
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if m := confHead().FindStringSubmatch(line); m != nil {
			in = m[1]
		} else if m := confLine().FindStringSubmatch(line); m != nil && sections[in] != nil {
			sections[in][m[1]] = strings.Trim(m[2], `"'`)
		}
	}
	c := Conf{Values: maps.Clone(sections["main"]), Apply: sections["main"]}
	maps.Copy(c.Values, sections["agent"])
	maps.Copy(c.Apply, sections["user"])
	return c
}

// LastRun returns the files of puppet agent's last run below root, by its settings.
func (c Conf) LastRun(root string) LastRun {
	values := map[string]string{"vardir": "/var/cache/puppet", "publicdir": "/var/cache/puppet/public"} // of Debian
	if _, err := os.Stat(filepath.Join("/", root, "opt/puppetlabs/puppet")); err == nil {
		values = map[string]string{"vardir": "/opt/puppetlabs/puppet/cache", "publicdir": "/opt/puppetlabs/puppet/public"}
	}
	values["statedir"] = "$vardir/state"
	values["lastrunfile"], values["lastrunreport"] = "$publicdir/last_run_summary.yaml", "$statedir/last_run_report.yaml"
	for name := range values {
		if own, has := c.Values[name]; has {
			values[name] = own
		}
	}
	path := func(name string) string {
		text := values[name]
		for range len(values) { // a setting that names itself has no value
			text = confVar().ReplaceAllStringFunc(text, func(v string) string { return values[strings.Trim(v, "${}")] })
		}
		if !filepath.IsAbs(text) || strings.Contains(text, "$") {
			return ""
		}
		return filepath.Join("/", root, text)
	}
	return LastRun{Summary: path("lastrunfile"), Report: path("lastrunreport")}
}

// showLastRun copies the summary and the report of an ended run to where monitoring reads them. Of a run without a
// report it writes a summary with one failure and no resources: monitoring looks for either.
func (p *Puppet) showLastRun(job model.Job, r model.Result) {
	if p.LastRun == (LastRun{}) || job.Noop || job.Partial() {
		return
	}
	dir := p.RunDir(job.ID)
	summary, err := bounded.ReadFile(filepath.Join(dir, "summary.yaml"), maxWhole)
	if errors.Is(err, os.ErrNotExist) {
		summary, err = failedSummary(r, time.Now())
	}
	if err == nil {
		err = replace(p.LastRun.Summary, bytes.NewReader(summary))
	}
	if r.Report != "" {
		err = errors.Join(err, copyTo(p.LastRun.Report, r.Report))
	}
	if err != nil {
		p.log().Warn("cannot write the files of the last run for monitoring", "error", err)
	}
}

// failedSummary is the summary of a run whose catalog did not compile.
func failedSummary(r model.Result, now time.Time) ([]byte, error) {
	return yaml.Marshal(map[string]any{
		"version":   map[string]string{"config": r.ConfigVersion},
		"resources": map[string]int{"changed": 0, "failed": 1, "failed_to_restart": 0, "out_of_sync": 0, "restarted": 0, "scheduled": 0, "skipped": 0, "total": 0},
		"changes":   map[string]int{"total": 0},
		"events":    map[string]int{"failure": 1, "success": 0, "total": 1},
		"time":      map[string]int64{"last_run": now.Unix()},
	})
}

// copyTo replaces a file by a copy of another one, which may be large.
func copyTo(path, from string) error {
	f, err := bounded.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	return replace(path, f)
}

// replace writes a file with the mode and the owner of the one that it replaces, else those of Puppet.
func replace(path string, text io.Reader) error {
	if path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	mode := os.FileMode(0o640)
	old, err := os.Lstat(path)
	regular := err == nil && old.Mode().IsRegular()
	if regular {
		mode = old.Mode().Perm()
	}
	// The folder may belong to Puppet's user.
	err = atomicfile.WriteSharedFunc(path, mode, func(f *os.File) error {
		_, err := io.Copy(f, text)
		return err
	})
	if err != nil || !regular {
		return err
	}
	if owner, ok := old.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		return os.Lchown(path, int(owner.Uid), int(owner.Gid))
	}
	return nil
}
