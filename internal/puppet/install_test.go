package puppet

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// bare is a machine without Puppet. A function fakes its package manager.
type bare struct {
	Installer
	t        *testing.T
	commands []string
	waits    []time.Duration
	log      bytes.Buffer
	fail     map[string]int    // substring of a command → number of failures
	out      map[string]string // substring of a command → its output
}

func newBare(t *testing.T, programs ...string) *bare {
	b := &bare{t: t, fail: map[string]int{}, out: map[string]string{}}
	b.Root = t.TempDir()
	for _, name := range programs {
		b.place(name)
	}
	b.Logger = slog.New(slog.NewTextHandler(&b.log, nil))
	b.Exec = b.exec
	b.Sleep = func(_ context.Context, d time.Duration) error { b.waits = append(b.waits, d); return nil }
	return b
}

func (b *bare) place(name string) {
	path := filepath.Join(b.Root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o755)); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bare) exec(_ context.Context, env []string, name string, args ...string) (string, error) {
	if name != "chroot" || args[0] != b.Root || !slices.Contains(env, "DEBIAN_FRONTEND=noninteractive") {
		b.t.Errorf("command %s %q with %q is not run in the machine's root, or may ask questions", name, args, env)
	}
	line := strings.Join(args[1:], " ")
	line = strings.Replace(line, strings.Join(aptGet(), " ")+" ", "", 1)
	b.commands = append(b.commands, line)
	for part, n := range b.fail {
		if strings.Contains(line, part) && n > 0 {
			b.fail[part]--
			return "E: something\nE: it broke", errors.New("exit status 100")
		}
	}
	if strings.Contains(line, " install ") && !strings.HasPrefix(line, "dnf -y install /") {
		b.place("usr/bin/puppet")
	}
	for part, out := range b.out {
		if strings.Contains(line, part) {
			return out, nil
		}
	}
	return "", nil
}

func (b *bare) want(err error, commands ...string) {
	b.t.Helper()
	if err != nil {
		b.t.Errorf("error %v", err)
	}
	if !slices.Equal(b.commands, commands) {
		b.t.Errorf("commands\n\t%s\nwant\n\t%s", strings.Join(b.commands, "\n\t"), strings.Join(commands, "\n\t"))
	}
}

const (
	candidate = "puppet-agent:\n  Installed: (none)\n  Candidate: 7.23.0-1\n"
	configure = "dpkg --force-confdef --force-confold --configure -a"
)

// A wrong command makes the first boot of a machine without Puppet fail.
func TestInstallWithApt(t *testing.T) {
	b := newBare(t, "usr/bin/apt-get", "run/systemd/system/x")
	b.out["policy puppet-agent"] = candidate
	b.want(b.Ensure(t.Context()), configure, "apt-get update", "apt-cache policy puppet-agent",
		"apt-get --no-install-recommends install puppet-agent", "/usr/bin/puppet --version", "systemctl disable --now puppet.service")
	if !strings.Contains(b.log.String(), "chroot "+b.Root+" apt-get -y -q -o DPkg::Lock::Timeout=300 ") {
		t.Errorf("the command as it was run is not in the log:\n%s", &b.log)
	}
	// The second time has no work.
	b.commands = nil
	b.want(b.Ensure(t.Context()), "/usr/bin/puppet --version")
}

// Releases use cron and host, which Debian splits from Puppet: without their packages, such a release does not compile.
func TestInstallSplitCoreTypes(t *testing.T) {
	b := newBare(t, "usr/bin/apt-get", "usr/bin/puppet", "usr/share/puppet/modules/mount_core")
	b.out["policy puppet-module-puppetlabs-cron-core puppet"] = "puppet-module-puppetlabs-cron-core:\n  Installed: (none)\n  Candidate: 1.1.0-2\n  Version table:\n     1.1.0-2 500\n" +
		"puppet-module-puppetlabs-host-core:\n  Installed: (none)\n  Candidate: 1.0.3-2\npuppet-module-puppetlabs-zone-core:\n  Installed: (none)\n  Candidate: (none)\n"
	names := []string{"cron", "host", "mount", "zone"}
	b.want(b.InstallTypes(t.Context(), names), "apt-cache policy puppet-module-puppetlabs-cron-core puppet-module-puppetlabs-host-core puppet-module-puppetlabs-zone-core",
		"apt-get --no-install-recommends install puppet-module-puppetlabs-cron-core puppet-module-puppetlabs-host-core")
	// A first boot installs none of them: no release is known.
	b.commands = nil
	b.want(b.Ensure(t.Context()), "/usr/bin/puppet --version")
	// The lists of packages are empty at first.
	b.commands = nil
	if err := b.InstallTypes(t.Context(), []string{"zone"}); err == nil || !slices.Contains(b.commands, "apt-get update") {
		t.Errorf("error %v, commands %q", err, b.commands)
	}
	// Puppet's own package has the types.
	b.place("opt/puppetlabs/puppet/vendor_modules/x")
	if err := b.InstallTypes(t.Context(), names); err == nil {
		t.Error("packages of another Puppet are installed")
	}
}

// A type too few makes the release fail again, and all types would be installed on every node.
func TestUsedCoreTypes(t *testing.T) {
	tree := t.TempDir()
	for name, text := range map[string]string{
		"manifests/site.pp":             "cron { 'a': }\n$host = 1\nfile { '/etc/mount': }\n",
		"modules/a/manifests/b/c.pp":    "create_resources('ssh_authorized_key', {})\n  @@nagios_host{ x: }",
		"modules/a/files/x.txt":         "mount { x: }",
		"modules/a/manifests/init.pp.x": "zone { x: }",
	} {
		path := filepath.Join(tree, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if got := usedCoreTypes(tree); !slices.Equal(got, []string{"cron", "nagios", "sshkeys"}) {
		t.Errorf("got %q", got)
	}
}

// A power cut while dpkg unpacks must not prevent the installation forever. The states are from real interruptions.
func TestInstallRepairsInterruptedInstallation(t *testing.T) {
	const (
		fix       = "apt-get --no-install-recommends --no-remove --fix-broken install"
		query     = `dpkg-query -W -f ${db:Status-Eflag} ${binary:Package}\n`
		reinstall = "apt-get --no-install-recommends --reinstall install libruby3.1:amd64"
	)
	then := []string{"apt-cache policy puppet-agent", "apt-get --no-install-recommends install puppet-agent", "/usr/bin/puppet --version"}
	for _, mended := range [][]string{{fix}, {fix, query, reinstall, fix}} {
		b := newBare(t, "usr/bin/apt-get")
		b.out["policy puppet-agent"] = candidate
		b.out["dpkg-query"] = "ok rake\nreinstreq libruby3.1:amd64\nok tzdata\n"
		b.fail["--configure"], b.fail["--fix-broken"] = 1, len(mended)/4
		b.want(b.Ensure(t.Context()), slices.Concat([]string{configure, "apt-get update"}, mended, then)...)
	}
}

// At first boot, the network is late and another apt holds the lock: a few retries are normal, endless ones are not.
func TestInstallRetries(t *testing.T) {
	b := newBare(t, "usr/bin/apt-get")
	b.out["policy puppet-agent"] = candidate
	b.fail["update"] = 2
	if err := b.Ensure(t.Context()); err != nil || !slices.Equal(b.waits, []time.Duration{5 * time.Second, 10 * time.Second}) {
		t.Errorf("waits %v, error %v", b.waits, err)
	}
	b = newBare(t, "usr/bin/apt-get")
	b.fail["update"] = 100
	err := b.Ensure(t.Context())
	if err == nil || len(b.waits) != 4 || !strings.Contains(err.Error(), "in 5 attempts") || !strings.Contains(err.Error(), "it broke\ncheck that") {
		t.Errorf("waits %v, error %v", b.waits, err)
	}
}

// If Puppet cannot be installed, the error must contain the remedy.
func TestInstallErrors(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(b *bare)
		want    string
	}{
		"no package manager":  {func(b *bare) { _ = os.Remove(filepath.Join(b.Root, "usr/bin/apt-get")) }, "neither apt-get nor dnf nor yum\ninstall Puppet 7 or newer by hand"},
		"no package":          {func(b *bare) {}, "no repository of this machine has puppet-agent, openvox-agent, puppet\ngive the one of OpenVox or Puppet"},
		"plain http":          {func(b *bare) { b.Repository = "http://apt.example/x.deb" }, "neither an https URL of a .deb"},
		"puppet doesn't work": {func(b *bare) { b.out["policy"] = candidate; b.fail["--version"] = 9 }, "contains a working puppet"},
	} {
		b := newBare(t, "usr/bin/apt-get")
		c.prepare(b)
		if err := b.Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

// A package manager that hangs must not block the first boot.
func TestInstallCommandsEnd(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := execCommand(ctx, environ(), "/bin/sh", "-c", "sleep 300 & wait"); err == nil || time.Since(began) > 10*time.Second {
		t.Errorf("error %v after %s", err, time.Since(began))
	}
	out, err := execCommand(t.Context(), environ(), "/bin/sh", "-c", "head -c 200000 /dev/zero; echo end; exit 3")
	if err == nil || len(out) != 64<<10-1 || !strings.HasSuffix(out, "end") {
		t.Errorf("%d bytes, error %v", len(out), err)
	}
}

// Behind a proxy, packages must be downloaded through it. Puppet's own runs must not receive the proxy.
func TestPackagesComeThroughTheProxy(t *testing.T) {
	b := newBare(t, "usr/bin/apt-get")
	b.Proxy, b.Secure, b.NoProxy = "http://proxy.example:3128", "http://secure.example:3129", []string{".example.net"}
	b.out["policy puppet-agent"] = candidate
	through := 0
	b.Exec = func(ctx context.Context, env []string, name string, args ...string) (string, error) {
		if slices.Contains(env, "http_proxy=http://proxy.example:3128") && slices.Contains(env, "https_proxy=http://secure.example:3129") &&
			slices.Contains(env, "no_proxy=localhost,127.0.0.1,::1,.example.net") {
			through++
		}
		return b.exec(ctx, env, name, args...)
	}
	if err := b.Ensure(t.Context()); err != nil || through != len(b.commands) {
		t.Errorf("%d of %d commands go through the proxy: %v", through, len(b.commands), err)
	}
	if slices.ContainsFunc(environ(), func(v string) bool { return strings.Contains(strings.ToLower(v), "proxy") }) {
		t.Error("Puppet's runs go through the proxy")
	}
}

// A Puppet that runs do not work with must stop the first boot, not each run; a repository of the operator's choice replaces it.
func TestInstallRefusesOldPuppet(t *testing.T) {
	for version, refused := range map[string]bool{"5.5.22": true, "6.28.0": true, "warning: of Ruby 2.3.1\n4.8.2": true, "7.0.0": false, "8.10.0": false, "10.0.0": false, "": false} {
		b := newBare(t, "usr/bin/apt-get")
		b.place("usr/bin/puppet")
		b.out["--version"] = version + "\n"
		err := b.Ensure(t.Context())
		if (err != nil) != refused || len(b.commands) != 1 {
			t.Errorf("%q: %v after %q", version, err, b.commands)
		}
		if refused && !strings.Contains(err.Error(), version[strings.LastIndex(version, "\n")+1:]+" (/usr/bin/puppet)") {
			t.Errorf("%q: %v", version, err)
		}
	}
	b := newBare(t, "usr/bin/apt-get")
	b.place("usr/bin/puppet")
	b.out["--version"], b.out["policy puppet-agent"], b.Package = "5.5.22\n", candidate, "puppet-agent"
	if err := b.Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), "5.5.22") || len(b.commands) != 6 {
		t.Errorf("%v after %q", err, b.commands)
	}
	b.ownPuppet("8.1.0", nil)
	if err := b.Ensure(t.Context()); err != nil {
		t.Errorf("another Puppet than the one of the runs counts: %v", err)
	}
}

// ownPuppet makes a Puppet that the settings name, outside of the root, and its answer.
func (b *bare) ownPuppet(out string, err error) {
	b.place("opt/own/puppet")
	b.Program = filepath.Join(b.Root, "opt/own/puppet")
	b.Exec = func(ctx context.Context, env []string, name string, args ...string) (string, error) {
		if name == b.Program {
			return out, err
		}
		return b.exec(ctx, env, name, args...)
	}
}

// An installation of another Puppet would cost minutes, change the machine, and help no run: runs use the configured one.
func TestConfiguredPuppetMustStart(t *testing.T) {
	for want, spoil := range map[string]func(*bare){
		"it does not exist":          func(b *bare) { b.Program = "/opt/absent/puppet" },
		"cannot run `":               func(b *bare) { b.ownPuppet("cannot load such file -- puppet", errors.New("exit status 1")) },
		"cannot use Puppet 5.5.22 (": func(b *bare) { b.ownPuppet("5.5.22", nil) },
	} {
		b := newBare(t, "usr/bin/apt-get")
		b.Version, b.out["policy puppet-agent"] = "8.10.0-1", candidate
		b.place("usr/bin/puppet")
		spoil(b)
		if err := b.Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), b.Program) || len(b.commands) > 0 {
			t.Errorf("%s: %v after %q", want, err, b.commands)
		}
	}
	for program, name := range map[string]string{"/opt/puppetlabs/bin/puppet": "", "/opt/puppetlabs/puppet/bin/puppet": "", "/opt/corp/bin/puppet": "corp-puppet"} {
		b := newBare(t, "usr/bin/apt-get") // the package may bring it
		b.Program, b.Package, b.out["policy puppet-agent"], b.out["policy corp-puppet"] = program, name, candidate, strings.Replace(candidate, "puppet-agent", "corp-puppet", 1)
		if err := b.Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), program) || len(b.commands) < 4 {
			t.Errorf("%v after %q", err, b.commands)
		}
	}
}

// A release with encrypted data would fail on nodes that only have Puppet.
func TestEnsureEyaml(t *testing.T) {
	const apt = "apt-get --no-install-recommends install hiera-eyaml"
	b := newBare(t, "usr/bin/apt-get")
	b.out["apt-cache policy"] = "hiera-eyaml:\n  Candidate: 3.3.0-1\n"
	b.Version = "7.23.0"
	b.want(b.EnsureEyaml(t.Context()), "apt-cache policy hiera-eyaml", apt)

	b = newBare(t, "usr/bin/apt-get") // a machine whose lists are empty
	b.fail["apt-cache"] = 1
	b.want(b.EnsureEyaml(t.Context()), "apt-cache policy hiera-eyaml", "dpkg --force-confdef --force-confold --configure -a", "apt-get update", apt)

	b = newBare(t, "usr/bin/apt-get", "usr/share/rubygems-integration/all/gems/hiera-eyaml-3.3.0/lib/x")
	b.want(b.EnsureEyaml(t.Context()))

	b = newBare(t, "usr/bin/apt-get", "opt/puppetlabs/puppet/bin/gem", "usr/share/rubygems-integration/all/gems/hiera-eyaml-3.3.0/lib/x")
	b.want(b.EnsureEyaml(t.Context()), "/opt/puppetlabs/puppet/bin/gem install --no-document hiera-eyaml")

	b = newBare(t, "usr/bin/dnf")
	b.want(b.EnsureEyaml(t.Context()), "dnf -q info rubygem-hiera-eyaml", "dnf -y install rubygem-hiera-eyaml")

	b = newBare(t)
	if err := b.EnsureEyaml(t.Context()); err == nil || len(b.commands) > 0 {
		t.Errorf("%v, %q", err, b.commands)
	}
}
