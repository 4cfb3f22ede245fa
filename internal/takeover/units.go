package takeover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
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
	cmd := exec.CommandContext(ctx, "systemctl", args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "SYSTEMD_COLORS=0")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	text := strings.TrimSpace(string(out))
	if err != nil {
		err = fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
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
