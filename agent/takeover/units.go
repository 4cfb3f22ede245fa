package takeover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pulley/internal/atomicfile"
	"pulley/internal/child"
	"pulley/internal/clip"
	"pulley/internal/puppet"
)

// systemctlTimeout exceeds every call of systemctl, except the stop of a service that hangs.
const systemctlTimeout = 2 * time.Minute

// systemctl runs systemctl on the machine, or on the files of another root.
func (m *Machine) systemctl(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, systemctlTimeout)
	defer cancel()
	if m.Root != "/" {
		args = append([]string{"--root=" + m.Root}, args...)
	}
	errs := &clip.Tail{Limit: 4 << 10}
	out, err := child.Command{
		Path: "systemctl", Args: args, Stderr: errs, Env: append(child.Filtered(os.Environ()), "LC_ALL=C", "SYSTEMD_COLORS=0"), Grace: 5 * time.Second, Left: child.KeepAll,
	}.Output(ctx, 1<<20)
	text := strings.TrimSpace(string(out))
	if err != nil {
		err = fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, errs)
	}
	return text, err
}

// live reports whether systemd is running, which is needed to start and stop units.
func (m *Machine) live() bool {
	_, err := os.Lstat("/run/systemd/system")
	return m.Root == "/" && err == nil
}

// unit returns the state of a unit, or nil if the unit or systemctl is missing.
func (m *Machine) unit(ctx context.Context, name string) (*Unit, error) {
	was, err := m.systemctl(ctx, "is-enabled", name)
	var exit *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, nil
	case err != nil && !errors.As(err, &exit):
		return nil, fmt.Errorf("cannot look at %s: %w", name, err)
	case was == "" || was == "not-found":
		return nil, nil
	}
	u := &Unit{Name: name, Was: was}
	if m.live() {
		active, _ := m.systemctl(ctx, "is-active", name) // the exit code contains nothing more
		u.Active = active == "active" || active == "activating" || active == "reloading"
	}
	return u, nil
}

// enabled is systemctl's word for a unit that starts at every boot.
const enabled = "enabled"

// starts reports whether the unit runs an agent now or later.
func (u Unit) starts() bool { return u.Active || u.Was == enabled }

func (m *Machine) disableUnit(ctx context.Context, u Unit) error {
	if u.Was == enabled {
		if _, err := m.systemctl(ctx, "disable", u.Name); err != nil {
			return err
		}
	}
	if !m.live() || u.Oneshot { // let a started run finish
		return nil
	}
	_, err := m.systemctl(ctx, "stop", u.Name)
	return err
}

// maskable reports whether the unit can be masked. A unit file in the machine's own folder cannot be.
func (m *Machine) maskable(name string) bool {
	path := m.path(filepath.Join(unitFolder, name))
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return true
	}
	to, err := os.Readlink(path)
	return err == nil && to == "/dev/null"
}

// relink restores the links that start a unit, and returns the unit's state then, or nil if the unit is gone.
func (m *Machine) relink(ctx context.Context, u Unit) (*Unit, error) {
	var made []string
	for _, l := range u.Links {
		did, err := m.link(l)
		if err != nil {
			return nil, err
		}
		if did {
			made = append(made, m.path(l.Path))
		}
	}
	if len(made) > 0 && m.live() {
		if _, err := m.systemctl(ctx, "daemon-reload"); err != nil {
			return nil, err
		}
	}
	now, err := m.unit(ctx, u.Name)
	if err == nil && now != nil && u.Was == enabled && now.Was != enabled {
		if _, err = m.systemctl(ctx, "enable", u.Name); err == nil {
			now, err = m.unit(ctx, u.Name)
		}
		if err == nil && now != nil && now.Was != enabled {
			err = fmt.Errorf("%s is %s, and was enabled\nenable it by hand, and try again", u.Name, now.Was)
		}
	}
	if err == nil && now == nil {
		for _, path := range made {
			err = errors.Join(err, os.Remove(path))
		}
	}
	return now, err
}

// restoreUnit does nothing for a missing unit: its package was removed.
func (m *Machine) restoreUnit(ctx context.Context, u Unit) error {
	if u.Masked {
		if _, err := m.systemctl(ctx, "unmask", u.Name); err != nil {
			return err
		}
	}
	if now, err := m.relink(ctx, u); err != nil || now == nil {
		return err
	}
	if !u.Active || !m.live() {
		return nil
	}
	_, err := m.systemctl(ctx, "start", u.Name)
	return err
}

// packageUnits are the units of the Puppet packages.
var packageUnits = []string{"puppet.service", "pe-puppet.service"}

// remoteUnits are the units by which an orchestrator (MCollective, Choria, PE) can start puppet agent.
var remoteUnits = []string{"mcollective.service", "choria-server.service", "pxp-agent.service"}

// unitFolder is the folder of the machine's own units.
const unitFolder = "etc/systemd/system"

// unitFolders are the folders of persistent units, in order of precedence, see systemd.unit(5).
var unitFolders = []string{unitFolder, "usr/local/lib/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"}

// unitFile is a unit as systemd reads it.
type unitFile struct {
	text  string // including drop-ins; "" if masked
	own   bool   // an administrator created it, or a drop-in that sets its command
	alias string // the unit of which this is an alias
}

// ours reports whether an administrator, not a package, created the file.
func ours(under string) bool {
	return strings.HasPrefix(under, "etc/") || strings.HasPrefix(under, "usr/local/")
}

// agentUnits returns the units that may start Puppet, enabled or not: the packages' units, each service whose ExecStart
// starts it, in an administrator's unit also by a script, and the timers of these.
func (m *Machine) agentUnits(ctx context.Context, listed listing) []Unit {
	services, found := m.unitFiles(".service"), map[string]Unit{}
	for _, name := range packageUnits {
		found[name] = Unit{Name: name, Own: services[name].own}
	}
	for name, f := range services {
		for _, command := range unitSettings(f.text, "Service", "ExecStart") {
			sub := puppet.Starts(command)
			if sub == "" && f.own {
				_, sub = m.called(ctx, command, listed)
			}
			if sub == "" {
				continue
			}
			kinds := unitSettings(f.text, "Service", "Type")
			found[name] = Unit{Name: name, Own: f.own, Starts: sub, Oneshot: len(kinds) > 0 && kinds[len(kinds)-1] == "oneshot"}
		}
	}
	for name, f := range m.unitFiles(".timer") {
		of := strings.TrimSuffix(name, ".timer") + ".service"
		if said := unitSettings(f.text, "Timer", "Unit"); len(said) > 0 {
			of = said[0]
		}
		if to := services[of].alias; to != "" {
			of = to
		}
		if service, starts := found[of]; starts && f.text != "" {
			found[name] = Unit{Name: name, Own: f.own, Starts: service.Starts}
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b Unit) int { return strings.Compare(a.Name, b.Name) })
}

// unitFiles returns the units of a kind, without templates.
func (m *Machine) unitFiles(kind string) map[string]unitFile {
	files := map[string]unitFile{}
	m.eachUnitPath("*"+kind, func(under, target string) {
		name := filepath.Base(under)
		if _, covered := files[name]; covered || strings.Contains(name, "@") {
			return
		}
		f := unitFile{own: ours(under)}
		if to := filepath.Base(target); to != name && strings.HasSuffix(to, kind) {
			f.alias = to
		} else if b, err := readSome(m.path(target)); err == nil && to == name {
			f.text = string(b)
		}
		files[name] = f
	})
	type dropIn struct{ unit, name string }
	dropIns := map[dropIn]unitFile{}
	m.eachUnitPath("*"+kind+".d/*.conf", func(under, target string) {
		d := dropIn{strings.TrimSuffix(filepath.Base(filepath.Dir(under)), ".d"), filepath.Base(under)}
		if _, covered := dropIns[d]; !covered {
			b, _ := readSome(m.path(target)) // empty if masked
			dropIns[d] = unitFile{text: string(b), own: ours(under)}
		}
	})
	inOrder := slices.SortedFunc(maps.Keys(dropIns), func(a, b dropIn) int { return strings.Compare(a.name, b.name) })
	for _, d := range inOrder {
		if f, more := files[d.unit], dropIns[d]; f.text != "" {
			f.text += "\n" + more.text
			f.own = f.own || more.own && len(unitSettings(more.text, "Service", "ExecStart")) > 0
			files[d.unit] = f
		}
	}
	return files
}

// eachUnitPath visits the paths that match a pattern in the folders of units, in order, with the resolved path.
func (m *Machine) eachUnitPath(pattern string, visit func(under, target string)) {
	for _, folder := range unitFolders {
		paths, _ := filepath.Glob(m.path(filepath.Join(folder, pattern))) // Glob fails only for an invalid pattern
		for _, path := range paths {
			under, err := filepath.Rel(m.Root, path)
			if target, ok := m.follow(under); ok && err == nil {
				visit(under, target)
			}
		}
	}
}

// unitSettings returns the values of a setting in the text of a unit, see systemd.syntax(7). An empty value resets the
// values before it.
func unitSettings(text, section, name string) (values []string) {
	in, whole := "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") { // also inside a continued line
			continue
		}
		if before, more := strings.CutSuffix(line, `\`); more {
			whole += before + " "
			continue
		}
		line, whole = strings.TrimSpace(whole+line), ""
		key, value, isSetting := strings.Cut(line, "=")
		switch {
		case strings.HasPrefix(line, "["):
			in = strings.Trim(line, "[]")
		case !isSetting || in != section || strings.TrimSpace(key) != name:
		case strings.TrimSpace(value) == "":
			values = nil
		default:
			values = append(values, strings.TrimSpace(value))
		}
	}
	return values
}

// unitLinks returns the links that start a unit or alias it. `systemctl disable` removes them, and `enable` does not
// always restore them.
func (m *Machine) unitLinks(name string) (links []UnitLink) {
	for _, pattern := range []string{"*", "*/*"} {
		paths, _ := filepath.Glob(m.path(filepath.Join(unitFolder, pattern))) // Glob fails only for an invalid pattern
		for _, path := range paths {
			to, err := os.Readlink(path)
			if err != nil || filepath.Base(path) != name && filepath.Base(to) != name {
				continue
			}
			if under, err := filepath.Rel(m.Root, path); err == nil {
				links = append(links, UnitLink{Path: under, To: to})
			}
		}
	}
	return links
}

// link creates a link unless its name exists, and reports whether it did.
func (m *Machine) link(l UnitLink) (made bool, err error) {
	path := m.path(l.Path)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, err
	}
	if err := os.Symlink(l.To, path); err != nil {
		return false, err
	}
	return true, atomicfile.SyncFolder(filepath.Dir(path))
}
