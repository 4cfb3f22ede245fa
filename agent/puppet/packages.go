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
	// The folder is writable for all users. The agent must not write through a file that another user placed under this
	// name.
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
