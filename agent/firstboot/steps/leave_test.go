package steps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/agent"
	"pulley/agent/nodeconfig"
	"pulley/internal/firstboot"
	"pulley/internal/model"
	"pulley/internal/stablehash"
)

// A machine that leaves the fleet at a reboot comes back without an identity. One that stays after a poweroff is missed
// in the host list forever.
func TestLeaveOnlyAtPoweroff(t *testing.T) {
	const others = "  71 cron.service stop waiting\n2 umount.target start waiting\n"
	for jobs, want := range map[string]bool{
		"1 poweroff.target start waiting\n" + others:        true,
		others + "1 halt.target            start waiting\n": true,
		"1 reboot.target start waiting\n" + others:          false,
		"1 kexec.target start waiting\n" + others:           false,
		"1 soft-reboot.target start waiting\n" + others:     false,
		"1 poweroff.target stop waiting\n" + others:         false,
		"9 poweroff.target.d start waiting\n" + others:      false,
		others:             false, // `systemctl stop pulley-leave`
		"":                 false,
		"No jobs running.": false,
		"1 poweroff.target start waiting\n2 reboot.target start waiting\n": false, // it is unknown which one wins
	} {
		if got := endsForGood(jobs); got != want {
			t.Errorf("with these jobs it leaves: %t\n%s", got, jobs)
		}
	}
}

// A machine that left must keep no key of its node and no decrypted secret of a killed run. A key that Pulley did not make may be for another
// Puppet server.
func TestLeavingMachineKeepsNoKey(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		got     firstboot.StepState
		started time.Duration // of the first boot, before the key was made
		made    bool
	}{
		{},
		{got: firstboot.StepState{State: firstboot.Done, Replaced: firstboot.Off}, started: time.Hour},
		{got: firstboot.StepState{State: firstboot.Done}, started: -time.Hour, made: true},
		{got: firstboot.StepState{State: firstboot.Started}, started: time.Hour, made: true},
		{got: firstboot.StepState{State: firstboot.Failed}, started: time.Hour, made: true},
		{got: firstboot.StepState{State: firstboot.Failed}, started: -time.Hour},
		{got: firstboot.StepState{State: firstboot.Failed, Replaced: "/opt/get-certificate"}, started: time.Hour},
	} {
		got := test.got
		c := nodeconfig.Under(t.TempDir())
		c.Identity = model.Identity{Node: "web1", Environment: "dev"}
		c.Puppet.SSLDir = filepath.Join(c.Root, "former")
		if err := (firstboot.Disk{Dir: c.StateDir()}).Save(firstboot.State{Started: time.Now().Add(-test.started), Steps: map[firstboot.Name]firstboot.StepState{firstboot.Certificate: got}}); err != nil {
			t.Fatal(err)
		}
		shared := filepath.Join("/dev/shm", fmt.Sprintf("pulley-agent-%016x", stablehash.Sum(c.StateDir())))
		t.Cleanup(func() { _ = os.RemoveAll(shared) })
		gone := map[string]bool{filepath.Join(shared, "role.yaml"): true, c.IdentityFile(): true, filepath.Join(c.StateDir(), "puppet/ssl/private_keys/web1.pem"): true}
		for _, dir := range []string{c.Puppet.SSLDir, filepath.Join(c.Root, "etc/puppetlabs/puppet/ssl"), filepath.Join(c.Root, "var/lib/puppet/ssl")} {
			gone[filepath.Join(dir, "private_keys/web1.pem")], gone[filepath.Join(dir, "certs/web1.pem")] = test.made, test.made
			gone[filepath.Join(dir, "private_keys/another.pem")] = false
		}
		for file := range gone {
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte("x"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(forgetCertname(c), forgetKeys(c.Root)); err != nil {
			t.Error(err)
		}
		for file, want := range gone {
			if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) != want {
				t.Errorf("certificate %+v: %s: %v, want gone: %t", got, file, err, want)
			}
		}
	}
}

// A removal below a run would end it half way, and the run would write a state again.
func TestCleanWaitsForRuns(t *testing.T) {
	t.Parallel()
	for what, hold := range map[string]func(b *boot) (*os.File, error){
		"another run is in progress": func(b *boot) (f *os.File, err error) {
			err = b.withDisk(func(d *agent.Disk) (err error) { f, err = d.Lock(); return err })
			return f, err
		},
		"a first boot is in progress": (*boot).takeLock,
		"an upgrade":                  func(b *boot) (*os.File, error) { return nodeconfig.Under(b.Root).UpgradeFolder().Lock() },
	} {
		b := &boot{Options: Options{Flags: nodeconfig.Flags{Root: t.TempDir()}}}
		held, err := hold(b)
		if err != nil {
			t.Fatal(err)
		}
		done, err := Clean(t.Context(), b.Flags, b.Env, false)
		if err == nil || !strings.HasPrefix(err.Error(), "cannot clean this machine: ") || !strings.HasSuffix(err.Error(), "; try again after it") || len(done.Removed) > 0 {
			t.Errorf("during %s: %+v, %v", what, done, err)
		}
		if err := held.Close(); err != nil {
			t.Error(err)
		}
		if done, err = Clean(t.Context(), b.Flags, b.Env, false); err != nil || len(done.Removed) != 1 {
			t.Errorf("after %s: %+v, %v", what, done, err)
		}
		if left, err := os.ReadDir(filepath.Join(b.Root, "var/lib")); err != nil || len(left) > 0 {
			t.Errorf("after %s are left %v, %v", what, left, err)
		}
	}
}

// A link in the place of the state may lead to a volume with files of its owner, and /var may be a link itself.
func TestCleanFollowsNoLinkToOtherFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		link, to string
		kept     bool
	}{"the folder": {"var/lib/pulley", "data", true}, "its folder on a volume": {"var/lib/pulley", "volume/pulley", false}, "its parent": {"var", "volume", false}} {
		root := t.TempDir()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(os.MkdirAll(filepath.Join(root, c.to), 0o755))
		must(os.MkdirAll(filepath.Join(root, filepath.Dir(c.link)), 0o755))
		must(os.Symlink(filepath.Join(root, c.to), filepath.Join(root, c.link)))
		state := filepath.Join(root, "var/lib/pulley")
		must(os.MkdirAll(filepath.Join(state, "identity"), 0o700))
		must(os.WriteFile(filepath.Join(state, "identity/node.pem"), nil, 0o600))
		must(os.WriteFile(filepath.Join(state, "mine"), nil, 0o600))
		k := &cleaning{boot: &boot{Options: Options{Flags: nodeconfig.Flags{Root: root}}}}
		k.state()
		if _, err := os.Lstat(state); err == nil || len(k.problems) > 0 {
			t.Errorf("%s: %v, %q", name, err, k.problems)
		}
		_, err := os.Lstat(filepath.Join(root, c.to, "mine"))
		_, identity := os.Lstat(filepath.Join(root, c.to, "identity"))
		if (err == nil) != c.kept || identity == nil || (len(k.Stays) > 0) != c.kept {
			t.Errorf("%s: the file of the owner: %v, the identity: %v, %q", name, err, identity, k.Stays)
		}
	}
}
