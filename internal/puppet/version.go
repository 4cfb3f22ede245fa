package puppet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"pulley/environments/settings"
	"pulley/internal/bounded"
	"pulley/internal/clip"
	"pulley/internal/model"
	"pulley/internal/pattern"
)

// DeployFile is the file in the root of a release that names its commit, in r10k's format. Scripts of config_version
// read it.
const DeployFile = ".r10k-deploy.json"

// VersionDeadline limits the time of a config_version command.
const VersionDeadline = 10 * time.Second

// The limits of what a release says about itself, in bytes.
const (
	maxEnvironmentConf = 64 << 10
	maxDeployFile      = 4 << 20 // it lists the modules too
	maxVersion         = 200
)

// ScriptVersion is the output of a config_version command.
type ScriptVersion struct {
	Text       string // one line of at most maxVersion bytes, without control characters; "" without a command
	Output     string // all that it printed, without white space at the ends
	Unconfined bool   // the command ran, and the machine did not permit to confine it
}

// Odd returns why runs show another version than the command printed, or "".
func (v ScriptVersion) Odd() string {
	switch lines := strings.Count(v.Output, "\n") + 1; {
	case v.Text == v.Output:
		return ""
	case lines > 1:
		return fmt.Sprintf("%d lines", lines)
	case len(v.Output) > maxVersion:
		return fmt.Sprintf("more than %d bytes", maxVersion)
	}
	return "control characters, several spaces or bytes that are not UTF-8"
}

// ConfigVersion runs the config_version command of the release in tree, as Puppet would in an environment at dir (its
// name is the last part), and returns its output. The command sees the tree read-only and leaves no process behind, as
// far as the machine permits that. The error has one line.
func ConfigVersion(ctx context.Context, tree, dir string) (v ScriptVersion, err error) {
	written, err := writtenVersion(tree)
	if err != nil || written == "" {
		return v, err
	}
	line, err := expandVersion(written, dir)
	if err != nil {
		return v, err
	}
	out, confined, err := runScript(ctx, line, tree, VersionDeadline)
	v.Unconfined = !confined
	if err != nil {
		cause := relativeTo(dir, tree).Replace(err.Error())
		return v, fmt.Errorf("cannot run config_version %q: %s", clip.Text(written, maxVersion), cause)
	}
	v.Output = strings.TrimSpace(out)
	v.Text = strings.Join(strings.Fields(clip.Line(out, len(out))), " ")
	if v.Text = clip.Text(v.Text, maxVersion); v.Text == "" {
		return v, fmt.Errorf("cannot use config_version %q: it prints nothing", clip.Text(written, maxVersion))
	}
	return v, nil
}

// HasConfigVersion reports whether the release in tree has a config_version command.
func HasConfigVersion(tree string) (bool, error) {
	written, err := writtenVersion(tree)
	return written != "", err
}

// The lines of environment.conf, as in puppet/settings/ini_file.rb, config_file.rb and value_translator.rb of Puppet 7.23.
var (
	confSection = pattern.Lazy(`^\s*\[([^\s\[\]]+)\]\s*$`)
	confSetting = pattern.Lazy(`^\s*([^\s=]+)\s*=\s*(.*?)\s*$`)
	confBlank   = pattern.Lazy(`^\s*(?:#|$)`)
	confQuotes  = pattern.Lazy(`^["']|["']$`)
	confFile    = pattern.Lazy(`\{\s*([^}]+)\s*\}`)
	confOption  = pattern.Lazy(`^\s*(?:(?:owner|group)\s*=\s*\w+|mode\s*=\s*\d+)\s*$`)
	confTimeout = pattern.Lazy(`^(?:\d+[ydhms]?|unlimited)$`)
	confName    = pattern.Lazy(`\$\w+`)
	confValue   = pattern.Lazy(`\$(\w+)|\$\{(\w+)\}`) // as Puppet::Settings::ChainedValues replaces it
)

// environmentSettings are those that Puppet reads in environment.conf.
var environmentSettings = []string{"modulepath", "manifest", "config_version", "environment_timeout", "environment_data_provider", "static_catalogs", "rich_data"}

// ConfLine is a line of environment.conf.
type ConfLine struct {
	Number      int
	Name, Value string // of a setting that Puppet takes
	Refused     string // why Puppet cannot read the file
	Ignored     string // what Puppet ignores in the line, or reads otherwise than it looks
}

// ParseEnvironmentConf returns the lines of an environment.conf with a setting or a fault. Puppet takes the first of equal settings, and
// those of the section main only. It has no comments behind a value.
func ParseEnvironmentConf(text string) (lines []ConfLine) {
	section, number := "main", 0
	for line := range strings.Lines(text) {
		number++
		c := ConfLine{Number: number}
		line = strings.TrimRight(line, "\r\n")
		m, setting := confSection().FindStringSubmatch(line), confSetting().FindStringSubmatch(line)
		if m != nil && !isWord(m[1]) {
			m = nil
		}
		if setting != nil && !isWord(setting[1]) {
			setting = nil
		}
		switch {
		case !utf8.ValidString(line):
			c.Refused = "the line is not UTF-8"
		case m != nil:
			if section = m[1]; section != "main" {
				c.Ignored = "Puppet ignores the section [" + section + "]"
			}
		case setting == nil && !confBlank().MatchString(line):
			c.Refused = "the line is no setting: " + clip.Text(line, maxVersion)
		case setting == nil:
		default:
			c.value(setting[2])
			if c.Refused == "" && section == "main" {
				c.take(setting[1], lines)
			}
		}
		if c != (ConfLine{Number: number}) {
			lines = append(lines, c)
		}
	}
	return lines
}

// isWord reports whether a name has only letters, digits and _, also of other alphabets, as [[:word:]] in Ruby.
func isWord(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool { return r != '_' && !unicode.In(r, unicode.L, unicode.M, unicode.N) })
}

// value reads a value as Puppet does: without quotes, and without the options of a file in braces.
func (c *ConfLine) value(written string) {
	c.Value = strings.TrimRight(confQuotes().ReplaceAllString(written, ""), " \t\r\f\v")
	if options := confFile().FindStringSubmatchIndex(c.Value); options != nil {
		for option := range strings.SplitSeq(c.Value[options[2]:options[3]], ",") {
			if !confOption().MatchString(option) {
				c.Refused = "braces hold the owner, group and mode of a file: " + clip.Text(written, maxVersion)
			}
		}
		c.Value = strings.TrimRight(c.Value[:options[0]]+c.Value[options[1]:], " \t\r\f\v")
	}
}

// take names the setting of a line, if Puppet takes it.
func (c *ConfLine) take(name string, before []ConfLine) {
	switch {
	case !slices.Contains(environmentSettings, name):
		c.Ignored = "Puppet ignores the setting " + clip.Text(name, maxVersion) + ", which is none of environment.conf"
	case slices.ContainsFunc(before, func(b ConfLine) bool { return b.Name == name }):
		c.Ignored = name + " is set twice, and Puppet takes the first"
	default:
		c.Name = name
		if lower := strings.ToLower(c.Value); lower == "true" || lower == "false" {
			if c.Value = lower; name == "modulepath" {
				c.Refused = name + " is a boolean"
			}
		}
		if slices.Contains([]string{"modulepath", "manifest", "config_version"}, name) {
			if strings.Contains(c.Value, "\x00") {
				c.Refused = name + " contains a NUL byte"
			}
			for _, variable := range confValue().FindAllStringSubmatch(c.Value, -1) {
				if v := cmp.Or(variable[1], variable[2]); !settings.Known(v) {
					c.Refused = name + " contains " + variable[0] + ", and Puppet has no setting " + clip.Text(v, maxVersion)
				}
			}
		}
		if name == "environment_timeout" && !confTimeout().MatchString(c.Value) {
			c.Refused = name + " is no number of seconds, as 5m, and not unlimited"
		}
		if strings.Contains(c.Value, "#") {
			c.Ignored = name + " contains a #: Puppet has no comments behind a value, and takes the text for a part of it"
		}
	}
}

// writtenVersion returns the setting config_version of the release's environment.conf.
func writtenVersion(tree string) (string, error) { return environmentSetting(tree, "config_version") }

// environmentSetting returns a setting of the release's environment.conf; "" without one.
func environmentSetting(tree, name string) (string, error) {
	text, err := readIn(tree, "environment.conf", maxEnvironmentConf)
	if err != nil {
		return "", fmt.Errorf("cannot read environment.conf: %w", err)
	}
	for _, line := range ParseEnvironmentConf(text) {
		if line.Name == name {
			return line.Value, nil
		}
	}
	return "", nil
}

// expandVersion makes a command line of the setting. Puppet takes a value that begins with no variable for a path from
// the environment's folder.
func expandVersion(written, dir string) (string, error) {
	line := written
	if !strings.HasPrefix(line, "$") && !filepath.IsAbs(line) {
		line = filepath.Join(dir, line)
	}
	values := map[string]string{
		"environmentpath": filepath.Dir(dir), "environment": filepath.Base(dir), "codedir": filepath.Dir(filepath.Dir(dir)),
	}
	unknown := ""
	line = confName().ReplaceAllStringFunc(line, func(name string) string {
		value, ok := values[name[1:]]
		if !ok {
			unknown = cmp.Or(unknown, name)
		}
		return value
	})
	if unknown != "" {
		return "", fmt.Errorf("cannot use config_version %q: a run has no value for %s", clip.Text(written, maxVersion), unknown)
	}
	return line, nil
}

// Deployed returns the commit that the release in tree names in its DeployFile, or "".
func Deployed(tree string) string {
	text, err := readIn(tree, DeployFile, maxDeployFile)
	var deploy struct{ Signature string }
	if err != nil || json.Unmarshal([]byte(text), &deploy) != nil {
		return ""
	}
	return clip.Text(deploy.Signature, maxCommit)
}

// maxCommit is the length of a SHA-256 in hexadecimal, and of "-dirty".
const maxCommit = 70

// readIn reads a file of a release. A missing file is empty.
func readIn(tree, name string, limit int64) (string, error) {
	root, err := os.OpenRoot(tree)
	if err != nil {
		return "", err
	}
	defer root.Close()
	f, err := bounded.OpenIn(root, name)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := bounded.Read(f, limit)
	return string(data), err
}

// ownVersion is the version of a release without a working command: its version and commit, as in 1.4.0+0123456789ab.
func ownVersion(version, commit string) string {
	commit, dirty := strings.CutSuffix(commit, "-dirty")
	parts := []string{cmp.Or(version, "unversioned")}
	if commit != "" {
		parts = append(parts, commit[:min(12, len(commit))])
	}
	own := strings.Join(parts, "+")
	if dirty {
		own += "-dirty"
	}
	return own
}

// versionFile holds the version that Puppet reads for one run. `puppet apply` takes the setting as a command, and the
// command line wins over environment.conf.
func versionFile(dir string) string { return filepath.Join(dir, "config_version") }

// setVersion runs the release's own command before Puppet starts, and gives Puppet the result. A command that fails
// inside Puppet would end the run.
func (p *Puppet) setVersion(ctx context.Context, job model.Job) (version string, err error) {
	v, err := ConfigVersion(ctx, job.Tree, p.environmentDir(job))
	if v.Unconfined { // the release runs as root anyway; a command that misbehaves is a mistake, not an attack
		p.log().Warn("config_version could change the release or leave processes: this machine permits no namespaces")
	}
	if err != nil { // publish has shown it
		p.log().Info("using the release's version and commit as config_version", "cause", err)
	}
	if v.Text == "" {
		return ownVersion(job.Target.Release, Deployed(job.Tree)), nil
	}
	return v.Text, os.WriteFile(versionFile(p.RunDir(job.ID)), []byte(v.Text+"\n"), 0o600)
}
