package puppet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	neturl "net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/child"
	"pulley/internal/clip"
	"pulley/internal/shellquote"

	"pulley/internal/pattern"
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
	Program string // path of the only Puppet that runs use (puppet.program); "" searches for one
	Root    string // of the machine; "" means "/"; commands for another root run in a chroot
	Package string // "" takes the first of puppet-agent, openvox-agent and puppet in the machine's repositories
	Version string // of the package, in the package manager's spelling; "" takes the newest
	Proxy   string // URL of the HTTP proxy for downloads and the package manager; "" for none
	Secure  string // URL of the HTTP proxy for https; "" means Proxy
	// NoProxy lists hosts and domains that are reached without it, as the variable no_proxy does; this machine always is.
	NoProxy []string
	// Repository is an additional source. It is an https URL or an absolute path of a .deb or .rpm that sets up a
	// repository, or a `deb …` line, or the text of a .repo file. "" means none.
	Repository string

	Logger *slog.Logger // nil: silent

	// Exec runs one command with its complete environment and returns its output. nil means the real implementation.
	Exec func(ctx context.Context, env []string, name string, args ...string) (string, error)
	// Sleep waits between attempts. nil means the real implementation.
	Sleep func(ctx context.Context, d time.Duration) error

	why string // the last Puppet did not start
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

// Ensure installs Puppet if it is missing. It may be repeated at any point. The first run of a release installs the core
// types that it uses and the distribution splits from Puppet.
func (i *Installer) Ensure(ctx context.Context) error {
	works, err := i.works(ctx)
	var old *tooOldError
	other := i.own() && i.Package+i.Repository == "" // what would be installed is not what runs use
	// Without a package of the operator's choice, the machine's repositories are those that the old one came from.
	switch {
	case works, errors.As(err, &old) && (other || i.Package+i.Version+i.Repository == ""):
		return err
	case other:
		return i.broken()
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
		if errors.As(err, &old) {
			return err
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
	if works, err := i.works(ctx); err != nil {
		return err
	} else if !works && i.Program != "" {
		return i.broken()
	} else if !works {
		return fmt.Errorf("package %s is installed, and none of %s contains a working puppet", name, strings.Join(searchPath(), ", "))
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

// oldest is the major version of the oldest Puppet that runs work with.
const oldest = 7

// tooOldError means that the machine's Puppet is older than runs need.
type tooOldError struct{ path, version string }

func (e *tooOldError) Error() string {
	return fmt.Sprintf("cannot use Puppet %s (%s): Pulley needs Puppet %d or newer, or OpenVox\n"+
		"upgrade Puppet by hand and start again, or set `package_repo` to a repository of OpenVox for this distribution (https://apt.voxpupuli.org, https://yum.voxpupuli.org), and start the first boot again", e.version, e.path, oldest)
}

// versionLine matches the output of puppet --version; warnings of Ruby may be before it.
var versionLine = pattern.Lazy(`(?m)^(\d+)\.\d+\.\S+$`)

// own reports whether the configured Puppet is in none of the packages that are installed by default: they do not make it work.
func (i *Installer) own() bool {
	return i.Program != "" && i.Program != "puppet" && !slices.Contains([]string{aioBin, "/opt/puppetlabs/puppet/bin", "/usr/bin"}, filepath.Dir(i.Program))
}

// broken is the error of a configured Puppet that does not start: another one would be of no use.
func (i *Installer) broken() error {
	problem := cmp.Or(i.why, "it does not exist")
	return fmt.Errorf("cannot use Puppet %s, which `puppet.program` in agent.yaml names: %s\ncorrect `puppet.program`, or remove it: Pulley then finds, or installs, Puppet itself", i.Program, problem)
}

// works reports whether Puppet starts on this machine; one that is too old is an error. An interrupted installation leaves the program
// without its dependencies.
func (i *Installer) works(ctx context.Context) (bool, error) {
	paths := []string{i.Program}
	if name := cmp.Or(i.Program, "puppet"); !strings.Contains(name, "/") {
		paths = nil
		for _, dir := range append([]string{aioBin}, searchPath()...) {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	i.why = ""
	for _, path := range paths {
		// In another root, the program may be a link that is valid only inside that root.
		at := *i
		if path == i.Program { // the path in the settings is valid on this system, outside of the root
			at.Root = ""
		}
		if info, err := os.Lstat(at.path(path)); err != nil || info.IsDir() {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		out, err := at.run(ctx, path, "--version")
		if err != nil {
			i.log().Warn("the installed puppet does not start", "path", path, "error", err)
			i.why = err.Error()
			return false, nil
		}
		version, err := usable(path, out)
		if err == nil {
			i.log().Info("puppet is installed", "path", path, "version", version)
		}
		return err == nil, err
	}
	return false, nil
}

// usable reads the output of `puppet --version`; a version that is too old is an error.
func usable(path, out string) (version string, err error) {
	version = strings.TrimSpace(out)
	if m := versionLine().FindStringSubmatch(version); m != nil {
		version = m[0]
		if major, err := strconv.Atoi(m[1]); err == nil && major < oldest {
			return version, &tooOldError{path, version}
		}
	}
	return version, nil
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
	env = append(env, i.Proxies()...)
	i.log().Info("running a command", "command", shellquote.Join(append([]string{name}, args...)))
	execute := i.Exec
	if execute == nil {
		execute = execCommand
	}
	out, err := execute(ctx, env, name, args...)
	if err != nil {
		return out, fmt.Errorf("cannot run `%s`: %w%s", shellquote.Join(append([]string{name}, args...)), err, lastWords(out))
	}
	return out, nil
}

// Proxies returns the variables by which programs use the proxy; none without one.
func (i *Installer) Proxies() []string {
	if i.Proxy == "" {
		return nil
	}
	direct, secure := strings.Join(append([]string{"localhost", "127.0.0.1", "::1"}, i.NoProxy...), ","), cmp.Or(i.Secure, i.Proxy)
	return []string{
		"http_proxy=" + i.Proxy, "https_proxy=" + secure, "no_proxy=" + direct,
		"HTTP_PROXY=" + i.Proxy, "HTTPS_PROXY=" + secure, "NO_PROXY=" + direct,
	}
}

// execCommand runs a command. A package may start services.
func execCommand(ctx context.Context, env []string, name string, args ...string) (string, error) {
	out := &clip.Tail{Limit: 64 << 10}
	err := child.Command{Path: name, Args: args, Env: env, Dir: "/", Stdout: out, Stderr: out, Grace: 30 * time.Second, Left: child.KeepAll}.Run(ctx)
	return out.String(), err
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

// apt manages packages on Debian, Ubuntu and their derivatives.
type apt struct{}

// aptGet returns the arguments of an apt-get call: no prompts, a wait for another apt, and no change to the machine's
// own settings.
func aptGet(args ...string) []string {
	return append([]string{"-y", "-q", "-o", "DPkg::Lock::Timeout=" + lockTimeout, "-o", "Acquire::Retries=3",
		"-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"}, args...)
}

func (apt) repository(ctx context.Context, i *Installer) error {
	if strings.HasPrefix(i.Repository, "deb ") {
		return i.place("/etc/apt/sources.list.d/pulley-puppet.list", i.Repository)
	}
	file, err := i.download(ctx, ".deb")
	if err != nil {
		return err
	}
	_, err = i.run(ctx, "dpkg", "--force-confold", "-i", file)
	i.discard(file)
	return err
}

// refresh also repairs an interrupted installation, because the package manager refuses other work until then. An
// unpacked package whose dependencies are missing needs apt, which installs them; dpkg alone cannot. A package that was
// interrupted between unpacking and the record of its success must be reinstalled: apt would only configure it, which
// dpkg refuses.
func (a apt) refresh(ctx context.Context, i *Installer) error {
	_, configured := i.run(ctx, "dpkg", "--force-confdef", "--force-confold", "--configure", "-a")
	if _, err := i.run(ctx, "apt-get", aptGet("update")...); err != nil || configured == nil {
		return errors.Join(configured, err)
	}
	fix := aptGet("--no-install-recommends", "--no-remove", "--fix-broken", "install")
	_, fixed := i.run(ctx, "apt-get", fix...)
	if fixed == nil {
		return nil
	}
	halves, err := a.halves(ctx, i)
	if err == nil && len(halves) > 0 {
		_, err = i.run(ctx, "apt-get", aptGet(append([]string{"--no-install-recommends", "--reinstall", "install"}, halves...)...)...)
		if err == nil {
			_, fixed = i.run(ctx, "apt-get", fix...)
		}
	}
	return errors.Join(fixed, err)
}

// halves returns the packages that dpkg marks for reinstallation.
func (apt) halves(ctx context.Context, i *Installer) ([]string, error) {
	out, err := i.run(ctx, "dpkg-query", "-W", "-f", `${db:Status-Eflag} ${binary:Package}\n`)
	var names []string
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "reinstreq "); ok {
			names = append(names, name)
		}
	}
	return names, err
}

func (a apt) has(ctx context.Context, i *Installer, name string) bool {
	return len(a.available(ctx, i, name)) == 1
}

// available returns the packages that the machine's repositories have. It is one call, because each costs half a second.
func (apt) available(ctx context.Context, i *Installer, names ...string) []string {
	out, err := i.run(ctx, "apt-cache", append([]string{"policy"}, names...)...)
	if err != nil {
		return nil
	}
	var found []string
	name := ""
	for line := range strings.Lines(out) {
		if header, ok := strings.CutSuffix(strings.TrimRight(line, "\n"), ":"); ok && !strings.HasPrefix(line, " ") {
			name = header
		}
		if candidate, ok := strings.CutPrefix(strings.TrimSpace(line), "Candidate: "); ok && candidate != "(none)" && slices.Contains(names, name) {
			found = append(found, name)
		}
	}
	return found
}

func (apt) install(ctx context.Context, i *Installer, name string) error {
	if i.Version != "" {
		name += "=" + i.Version
	}
	_, err := i.run(ctx, "apt-get", aptGet("--no-install-recommends", "install", name)...)
	return err
}

// dnf manages packages on Fedora, RHEL and their derivatives. yum takes the same arguments.
type dnf struct{ program string }

func (d dnf) repository(ctx context.Context, i *Installer) error {
	if strings.HasPrefix(i.Repository, "[") {
		return i.place("/etc/yum.repos.d/pulley-puppet.repo", i.Repository)
	}
	file, err := i.download(ctx, ".rpm")
	if err != nil {
		return err
	}
	_, err = i.run(ctx, d.program, "-y", "install", file)
	i.discard(file)
	return err
}

func (d dnf) refresh(ctx context.Context, i *Installer) error {
	_, err := i.run(ctx, d.program, "-y", "makecache")
	return err
}

func (d dnf) has(ctx context.Context, i *Installer, name string) bool {
	_, err := i.run(ctx, d.program, "-q", "info", name)
	return err == nil
}

func (d dnf) install(ctx context.Context, i *Installer, name string) error {
	if i.Version != "" {
		name += "-" + i.Version
	}
	_, err := i.run(ctx, d.program, "-y", "install", name)
	return err
}

// place writes a file of the machine atomically.
func (i *Installer) place(name, text string) error {
	target := i.path(name)
	err := os.MkdirAll(filepath.Dir(target), 0o755)
	if err == nil {
		err = atomicfile.Write(target, []byte(strings.TrimRight(text, "\n")+"\n"), 0o644)
	}
	if err != nil {
		return fmt.Errorf("cannot set up the package repository: %w", err)
	}
	return nil
}

// download fetches the package that sets up a repository onto the machine, and returns its path there.
func (i *Installer) download(ctx context.Context, suffix string) (string, error) {
	if filepath.IsAbs(i.Repository) {
		return i.Repository, nil
	}
	if !strings.HasPrefix(i.Repository, "https://") || !strings.HasSuffix(i.Repository, suffix) {
		return "", fmt.Errorf("cannot use package repository %q: it is neither an https URL of a %s nor an absolute path nor a repository's own text", i.Repository, suffix)
	}
	file := filepath.Join("/var/tmp", "pulley-"+path.Base(i.Repository))
	if err := os.MkdirAll(i.path("/var/tmp"), 0o777); err != nil {
		return "", fmt.Errorf("cannot keep %s: %w", i.Repository, err)
	}
	i.log().Info("fetching the package repository", "url", i.Repository)
	if err := i.fetch(ctx, i.Repository, i.path(file)); err != nil {
		return "", fmt.Errorf("cannot fetch %s: %w", i.Repository, err)
	}
	return file, nil
}

// discard removes what download fetched.
func (i *Installer) discard(file string) {
	if file != i.Repository {
		_ = os.Remove(i.path(file)) // in a folder that the machine empties
	}
}

// maxRepository limits the package that sets up a repository, in bytes.
const maxRepository = 64 << 20

// fetch downloads a file.
func (i *Installer) fetch(ctx context.Context, url, path string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	through := (&httpproxy.Config{HTTPProxy: i.Proxy, HTTPSProxy: cmp.Or(i.Secure, i.Proxy), NoProxy: strings.Join(i.NoProxy, ",")}).ProxyFunc()
	client := &http.Client{
		Transport: &http.Transport{Proxy: func(r *http.Request) (*neturl.URL, error) { return through(r.URL) }, DisableKeepAlives: true},
		CheckRedirect: func(to *http.Request, via []*http.Request) error { // archives redirect to their mirrors
			if len(via) > 5 || to.URL.Scheme != "https" && via[0].URL.Scheme == "https" {
				return fmt.Errorf("it redirects to %s", to.URL.Host)
			}
			return nil
		},
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	b, err := bounded.Read(answer.Body, maxRepository)
	if err != nil {
		return err
	}
	// The folder is writable for all users. A new file replaces one that another user placed under this name.
	return atomicfile.WriteShared(path, b, 0o600)
}
