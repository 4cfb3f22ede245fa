package puppet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	neturl "net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"pulley/internal/atomicfile"
)

// apt is Debian, Ubuntu and what descends from them.
type apt struct{}

// aptGet is every call of apt-get: no questions, patience with another apt, and the machine's own settings are kept.
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
	return err
}

// refresh also mends what a package manager left that was cut off: it refuses everything else until then. Where a package
// was unpacked and what it needs was not, dpkg alone can't, and apt brings what is missing. One that was cut off between
// being unpacked and being said to be whole, apt only configures, which dpkg refuses: that one has to be installed again.
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

// halves are the packages that dpkg says have to be installed again.
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

func (apt) has(ctx context.Context, i *Installer, name string) bool {
	out, err := i.run(ctx, "apt-cache", "policy", name)
	for line := range strings.Lines(out) {
		if candidate, ok := strings.CutPrefix(strings.TrimSpace(line), "Candidate: "); ok && err == nil {
			return candidate != "(none)"
		}
	}
	return false
}

func (apt) install(ctx context.Context, i *Installer, name string) error {
	if i.Version != "" {
		name += "=" + i.Version
	}
	_, err := i.run(ctx, "apt-get", aptGet("--no-install-recommends", "install", name)...)
	return err
}

// dnf is Fedora, RHEL and what descends from them; yum takes the same arguments.
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

// place writes a file of the machine whole.
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

// download makes the package that sets up a repository a file of the machine, and returns its path there.
func (i *Installer) download(ctx context.Context, suffix string) (string, error) {
	if filepath.IsAbs(i.Repository) {
		return i.Repository, nil
	}
	if !strings.HasPrefix(i.Repository, "https://") || !strings.HasSuffix(i.Repository, suffix) {
		return "", fmt.Errorf("cannot use package repository %q: it is neither an https URL of a %s nor an absolute path nor a repository's own text", i.Repository, suffix)
	}
	file := filepath.Join("/var/tmp", "pulley-"+path.Base(i.Repository))
	fetch := i.Fetch
	if fetch == nil {
		fetch = func(ctx context.Context, url, path string) error { return fetchURL(ctx, i.Proxy, url, path) }
	}
	if err := os.MkdirAll(i.path("/var/tmp"), 0o777); err != nil {
		return "", fmt.Errorf("cannot keep %s: %w", i.Repository, err)
	}
	i.log().Info("fetching the package repository", "url", i.Repository)
	if err := fetch(ctx, i.Repository, i.path(file)); err != nil {
		return "", fmt.Errorf("cannot fetch %s: %w", i.Repository, err)
	}
	return file, nil
}

// fetchURL downloads at most 64 MiB.
func fetchURL(ctx context.Context, proxy, url, path string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := http.DefaultClient
	if proxy != "" {
		way, err := neturl.Parse(proxy)
		if err != nil {
			return fmt.Errorf("cannot use proxy %q: %w", proxy, err)
		}
		client = &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(way)}}
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	// The folder is everybody's: what somebody else put there under this name must not be written through.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	const most = 64 << 20
	n, err := io.Copy(f, io.LimitReader(answer.Body, most+1))
	if err == nil && n > most {
		err = fmt.Errorf("larger than %d bytes", most)
	}
	return errors.Join(err, f.Close())
}
