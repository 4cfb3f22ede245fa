package puppet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"pulley/internal/clip"
)

// The limits of an installation.
const (
	installDeadline = 20 * time.Minute // for all attempts together
	installAttempts = 5
	installGap      = 5 * time.Second // after the first attempt; each gap doubles
	lockTimeout     = "300"           // seconds that apt waits for another apt, common at first boot
)

// Installer installs a missing Puppet with the machine's own package manager: apt-get, dnf or yum.
type Installer struct {
	Root    string // of the machine; "" means "/"; commands for another root run in a chroot
	Package string // "" takes the first of puppet-agent, openvox-agent and puppet in the machine's repositories
	Version string // of the package, in the package manager's spelling; "" takes the newest
	Proxy   string // URL of the HTTP proxy for downloads and the package manager; "" for none
	// Repository is an additional source. It is an https URL or an absolute path of a .deb or .rpm that sets up a
	// repository, or a `deb …` line, or the text of a .repo file. "" means none.
	Repository string

	Logger *slog.Logger // nil: silent

	// Exec runs one command with its complete environment and returns its output. nil means the real implementation.
	Exec func(ctx context.Context, env []string, name string, args ...string) (string, error)
	// Sleep waits between attempts. nil means the real implementation.
	Sleep func(ctx context.Context, d time.Duration) error
	// Fetch downloads an https URL to a file. nil means the real implementation.
	Fetch func(ctx context.Context, url, path string) error
}

// manager is the difference between the families of package managers.
type manager interface {
	// repository sets up the additional repository.
	repository(ctx context.Context, i *Installer) error
	// refresh updates the lists, and repairs an interrupted installation.
	refresh(ctx context.Context, i *Installer) error
	// has reports whether a package of this name can be installed.
	has(ctx context.Context, i *Installer, name string) bool
	install(ctx context.Context, i *Installer, name string) error
}

// Ensure installs Puppet if it is missing. It may be repeated at any point.
func (i *Installer) Ensure(ctx context.Context) error {
	if i.works(ctx) {
		return nil
	}
	m, err := i.manager()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, installDeadline)
	defer cancel()
	gap := installGap
	for attempt := 1; ; attempt++ {
		if err = i.attempt(ctx, m); err == nil {
			return nil
		}
		if attempt == installAttempts || ctx.Err() != nil {
			return fmt.Errorf("cannot install Puppet in %d attempts: %w\ncheck that the machine reaches its package repositories, or install Puppet 7 or newer by hand and start again", attempt, err)
		}
		i.log().Warn("installing puppet failed", "attempt", attempt, "again_in", gap, "error", err)
		if err := i.sleep(ctx, gap); err != nil {
			return fmt.Errorf("cannot install Puppet: %w", err)
		}
		gap *= 2
	}
}

func (i *Installer) attempt(ctx context.Context, m manager) error {
	if i.Repository != "" {
		if err := m.repository(ctx, i); err != nil {
			return err
		}
	}
	if err := m.refresh(ctx, i); err != nil {
		return err
	}
	name, err := i.choose(ctx, m)
	if err != nil {
		return err
	}
	if err := m.install(ctx, i, name); err != nil {
		return err
	}
	if !i.works(ctx) {
		return fmt.Errorf("package %s was installed, and yet no puppet that works is in any of %s", name, strings.Join(searchPath(), ", "))
	}
	// The package's own service would contact a missing Puppet server, or apply the catalogs of another one.
	if _, err := os.Stat(i.path("/run/systemd/system")); err == nil {
		if _, err := i.run(ctx, "systemctl", "disable", "--now", "puppet.service"); err != nil {
			i.log().Warn("the puppet service could not be disabled", "error", err)
		}
	}
	return nil
}

// choose returns the name of the package to install. An additional repository takes precedence. OpenVox is never in a
// distribution's own repositories.
func (i *Installer) choose(ctx context.Context, m manager) (string, error) {
	names := []string{"puppet-agent", "openvox-agent", "puppet"}
	switch {
	case i.Package != "":
		names = []string{i.Package}
	case i.Repository != "":
		names = []string{"openvox-agent", "puppet-agent", "puppet"}
	}
	for _, name := range names {
		if m.has(ctx, i, name) {
			return name, nil
		}
	}
	return "", fmt.Errorf("no repository of this machine has %s\ngive the one of OpenVox or Puppet for this distribution", strings.Join(names, ", "))
}

// works reports whether Puppet starts on this machine. An interrupted installation leaves the program without its
// dependencies.
func (i *Installer) works(ctx context.Context) bool {
	for _, dir := range append([]string{aioBin}, searchPath()...) {
		path := filepath.Join(dir, "puppet")
		// In another root, the program may be a link that is valid only inside that root.
		if info, err := os.Lstat(i.path(path)); err != nil || info.IsDir() {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		version, err := i.run(ctx, path, "--version")
		if err != nil {
			i.log().Warn("the puppet that is here does not start", "path", path, "error", err)
			return false
		}
		i.log().Info("puppet is installed", "path", path, "version", strings.TrimSpace(version))
		return true
	}
	return false
}

func (i *Installer) manager() (manager, error) {
	for _, dir := range searchPath() {
		for _, known := range []struct {
			program string
			manager manager
		}{{"apt-get", apt{}}, {"dnf", dnf{"dnf"}}, {"yum", dnf{"yum"}}} {
			if _, err := os.Lstat(i.path(filepath.Join(dir, known.program))); err == nil {
				return known.manager, nil
			}
		}
	}
	return nil, errors.New("cannot install Puppet: this machine has neither apt-get nor dnf nor yum\ninstall Puppet 7 or newer by hand and start again")
}

func (i *Installer) path(name string) string { return filepath.Join("/", i.Root, name) }

// run runs a command on the machine with Puppet's environment, and logs the command line.
func (i *Installer) run(ctx context.Context, name string, args ...string) (string, error) {
	if i.path("/") != "/" {
		name, args = "chroot", append([]string{i.path("/"), name}, args...)
	}
	env := append(environ(), "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_MODE=l")
	if i.Proxy != "" {
		env = append(env, "http_proxy="+i.Proxy, "https_proxy="+i.Proxy)
	}
	i.log().Info("running a command", "command", quoted(append([]string{name}, args...)))
	execute := i.Exec
	if execute == nil {
		execute = execCommand
	}
	out, err := execute(ctx, env, name, args...)
	if err != nil {
		return out, fmt.Errorf("cannot run `%s`: %w%s", quoted(append([]string{name}, args...)), err, lastWords(out))
	}
	return out, nil
}

// execCommand runs a command in its own process group. When ctx ends, the group receives SIGTERM, and later SIGKILL.
func execCommand(ctx context.Context, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env, cmd.Dir = env, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	var out tail
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if ctx.Err() != nil && cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	return string(out), err
}

// tail keeps the last 64 KiB written to it.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	const most = 64 << 10
	*t = append(*t, p...)
	if len(*t) > most {
		*t = append(tail{}, (*t)[len(*t)-most:]...)
	}
	return len(p), nil
}

// lastWords returns the last lines of a failed command, which contain the reason.
func lastWords(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	text := strings.TrimSpace(strings.Join(lines[max(len(lines)-3, 0):], "; "))
	if text == "" {
		return ""
	}
	return ": " + clip.Text(text, 500)
}

func (i *Installer) sleep(ctx context.Context, d time.Duration) error {
	if i.Sleep != nil {
		return i.Sleep(ctx, d)
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (i *Installer) log() *slog.Logger {
	if i.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return i.Logger
}
