package steps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"pulley/agent"
	"pulley/agent/node"
	"pulley/agent/nodeconfig"
	"pulley/agent/takeover"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/cli"
	"pulley/internal/failpoint"
	"pulley/internal/firstboot"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/puppet"
)

// Cleaned is what a removal of Pulley from this machine did, in the order of its work; of a dry run, what it would do.
type Cleaned struct {
	Left    model.Identity // the former node; zero if the machine left before, or was no node
	Listed  model.Identity // the node that an operator still has to remove from the fleet; zero for none
	Removed []string       // paths, and parts of files
	Stays   []string
}

// Clean takes this machine off its fleet, and then removes everything that Pulley put on it. It may be repeated at any point.
func Clean(ctx context.Context, flags nodeconfig.Flags, env cli.Env, dry bool) (Cleaned, error) {
	root, err := filepath.Abs(flags.Root)
	if err != nil {
		return Cleaned{}, fmt.Errorf("cannot use root %s: %w", flags.Root, err)
	}
	flags.Root = root
	b := &boot{Options: Options{Flags: flags, Env: env}}
	old, err := takeover.Load(b.stateDir())
	if err != nil {
		return Cleaned{}, err
	}
	if old.Stage != takeover.None && old.Stage != takeover.Found {
		return Cleaned{}, errors.New("cannot clean this machine: its old puppet agent is disabled, and only Pulley knows how it was\n" +
			"run `pulley-agent takeover undo`, which starts the old agent again, and repeat the command")
	}
	if _, err := os.Lstat(b.stateDir()); err == nil && !dry {
		release, err := b.standstill()
		if err != nil {
			return Cleaned{}, err
		}
		defer release()
	}
	k := &cleaning{boot: b, dry: dry}
	if k.config, err = b.settled(); err != nil {
		return Cleaned{}, err
	}
	if err := k.leave(ctx); err != nil {
		return Cleaned{}, err
	}
	// What starts the agent is first. The settings go before the state: a tick that sleeps before its start then makes no state again.
	k.starts(ctx)
	if len(k.problems) == 0 { // else the state keeps this machine from a second first boot
		k.blocks()
		k.keys()
		k.settings()
		k.state()
		k.stays()
	}
	if err := errors.Join(k.problems...); err != nil {
		return k.Cleaned, fmt.Errorf("%w\nrun the same command again: it removes what is left", err)
	}
	k.files(b.path(nodeconfig.AgentPath+".new"), b.path(nodeconfig.AgentPath)) // last: it repeats the work
	return k.Cleaned, errors.Join(k.problems...)
}

// standstill keeps ticks, upgrades and first boots away.
func (b *boot) standstill() (release func(), err error) {
	var held []*os.File
	release = func() {
		for _, f := range held {
			_ = f.Close() // a lock has no content
		}
	}
	take := func(f *os.File, err error) error {
		if errors.Is(err, fs.ErrPermission) {
			release()
			return fmt.Errorf("cannot clean this machine: %w\nrun the command as root", err)
		}
		if err != nil {
			release()
			return fmt.Errorf("cannot clean this machine: %w; try again after it", err)
		}
		held = append(held, f)
		return nil
	}
	err = b.withDisk(func(d *agent.Disk) error { return take(d.Lock()) })
	if err == nil {
		err = take(nodeconfig.Under(b.Root).UpgradeFolder().Lock())
	}
	if err == nil {
		f, locked := b.takeLock()
		if f == nil && locked == nil {
			locked = errors.New("a first boot is in progress")
		}
		err = take(f, locked)
	}
	return release, err
}

// settled returns the configuration of this machine; without settings, its paths only.
func (b *boot) settled() (nodeconfig.Config, error) {
	c := nodeconfig.Under(b.Root)
	if c.Path = b.Path; c.Path == "" {
		c.Path = b.path(settingsDir + "/agent.yaml")
	}
	if _, err := os.Lstat(c.Path); errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	return b.Load(b.Env)
}

// cleaning is one removal of Pulley from a machine. After an error it continues with the rest.
type cleaning struct {
	*boot
	Cleaned
	config   nodeconfig.Config
	dry      bool
	problems []error
}

// leave takes the machine off its fleet, if it still is a node.
func (k *cleaning) leave(ctx context.Context) error {
	c := k.config
	if len(c.Servers) == 0 {
		k.Listed = c.Identity
		if identity, err := pki.LoadIdentity(c.IdentityFile()); err == nil && c.Identity.Node == "" { // the settings are lost
			name, err := identity.Name()
			k.Listed.Node, k.Listed.Environment = name.Subject, name.Environment
			return err
		}
		return nil
	}
	if _, err := os.Lstat(c.IdentityFile()); errors.Is(err, fs.ErrNotExist) {
		return nil // it left before, or never joined
	}
	unknown := false
	client, err := c.ServeClient(c.Servers)
	if err == nil && !k.dry {
		unknown, err = leaveFleet(ctx, client)
	}
	if err != nil {
		return fmt.Errorf("cannot leave: %w\nif pulley serve is gone for good, remove %s, and repeat the command: it then only cleans", err, filepath.Dir(c.IdentityFile()))
	}
	failpoint.Here(firstboot.Left)
	if k.Left = c.Identity; unknown {
		k.Left, k.Listed = k.Listed, c.Identity
	}
	if k.dry {
		return nil
	}
	return forgetKeys(k.Root) // a repetition does not ask serve again
}

// remove does one piece of work.
func (k *cleaning) remove(what string, do func() error) {
	if !k.dry {
		switch err := do(); {
		case errors.Is(err, syscall.EBUSY):
			k.Stays = append(k.Stays, what+", which is a mount point")
			return
		case err != nil:
			k.problems = append(k.problems, fmt.Errorf("cannot remove %s: %w", what, err))
			return
		}
		failpoint.Here(firstboot.Cleaned + strings.TrimPrefix(what, k.Root))
	}
	k.Removed = append(k.Removed, what)
}

func (k *cleaning) files(paths ...string) {
	for _, path := range paths {
		if _, err := os.Lstat(path); err == nil {
			k.remove(path, func() error { return os.Remove(path) })
		}
	}
}

// starts removes what starts the agent and its first boot.
func (k *cleaning) starts(ctx context.Context) {
	mark := k.path(firstboot.CloudMark)
	if _, err := os.Stat(filepath.Dir(filepath.Dir(mark))); err == nil { // the folder of cloud-init's instance
		if !k.dry {
			if err := errors.Join(os.MkdirAll(filepath.Dir(mark), 0o755), atomicfile.Write(mark, nil, 0o644)); err != nil {
				k.problems = append(k.problems, err)
			}
		}
		k.Stays = append(k.Stays, mark+", which keeps cloud-init from making this instance a node again")
	}
	k.files(k.config.Crontab(), k.path(resumeCron))
	live := k.Root == "/" && k.systemd()
	for _, unit := range []struct{ link, file string }{{leaveWanted, leaveUnit}, {resumeWanted, resumeUnit}} {
		if _, err := os.Lstat(k.path(unit.file)); err != nil {
			k.files(k.path(unit.link))
			continue
		}
		k.remove(k.path(unit.file), func() error {
			if live { // systemd would keep an active unit without its file
				if _, err := systemctl(ctx, "stop", filepath.Base(unit.file)); err != nil {
					return err
				}
			}
			err := k.removeFiles(unit.link, unit.file)
			if err == nil && live {
				_, err = systemctl(ctx, "daemon-reload")
			}
			return err
		})
	}
	first, err := k.memory().Load()
	if err != nil {
		k.problems = append(k.problems, err)
	}
	if s := first.Steps[firstboot.Daemon]; live && s.State == firstboot.Done && s.Replaced == "" {
		if _, disabled := systemctl(ctx, "--quiet", "is-enabled", puppetService); disabled == nil {
			k.Stays = append(k.Stays, puppetService+", which is enabled: `systemctl disable --now "+puppetService+"` ends it")
		}
	}
}

// blocks removes the lines of a first boot in files of the machine.
func (k *cleaning) blocks() {
	without := map[string]func(string) string{k.path("etc/hosts"): func(text string) string { return withoutBlock(text, hostsBegin, hostsEnd) }}
	paths := []string{k.path("etc/hosts")}
	for _, dir := range puppet.ConfDirs(k.Root) {
		path := filepath.Join(dir, "puppet.conf")
		paths, without[path] = append(paths, path), withoutAgentSettings
	}
	for _, path := range paths {
		old, err := bounded.ReadFile(path, nodeconfig.MaxFileBytes)
		if err != nil {
			continue
		}
		if text := without[path](string(old)); text != string(old) {
			k.remove("the lines of Pulley in "+path, func() error {
				if info, err := os.Lstat(path); text == "" && err == nil && info.Mode().IsRegular() {
					return os.Remove(path)
				}
				return atomicfile.Replace(path, []byte(text), 0o644)
			})
		}
	}
	if text, err := os.ReadFile(k.path(preservePath)); err == nil && string(text) == preserve {
		k.files(k.path(preservePath))
	}
}

// keys removes the certificate for Puppet servers that a first boot got, and the CA, where no other certificate needs it.
func (k *cleaning) keys() {
	files, err := certnameFiles(k.config)
	if err != nil {
		k.problems = append(k.problems, err)
	}
	for _, path := range files {
		dir := filepath.Dir(filepath.Dir(path))
		others, _ := filepath.Glob(filepath.Join(dir, "private_keys", "*.pem"))
		if !slices.ContainsFunc(others, func(other string) bool { return !slices.Contains(files, other) }) {
			k.files(filepath.Join(dir, "certs/ca.pem"), filepath.Join(dir, "crl.pem"))
		}
	}
	k.files(files...) // the key last: a repetition finds the rest by it
}

const settingsDir = "etc/pulley"

// settings removes the files of the settings. An operator may have added others.
func (k *cleaning) settings() {
	names := []string{"agent.yaml", "first-boot.yaml", "allowed_signers", "revoked_signers", "ca.pem"} // as in package userdata and class pulley
	var own []string
	for _, dir := range []string{preDir, postDir} {
		scripts, _ := filepath.Glob(k.path(dir + "/[0-9][0-9][0-9]"))
		own = append(own, scripts...)
	}
	for _, name := range names {
		own = append(own, k.path(filepath.Join(settingsDir, name)))
	}
	if !slices.Contains(own, k.config.Path) {
		own = append(own, k.config.Path)
	}
	k.files(own...)
	var others []string
	_ = filepath.WalkDir(k.path(settingsDir)+"/", func(path string, e fs.DirEntry, err error) error { // behind a link, too
		if path = filepath.Clean(path); err == nil && !e.IsDir() && !(k.dry && slices.Contains(own, path)) {
			others = append(others, path)
		}
		return nil
	})
	if len(others) > 0 {
		k.Stays = append(k.Stays, strings.Join(others, ", ")+", which Pulley did not write")
	}
	if !k.dry { // a folder that is not empty stays
		for _, dir := range []string{preDir, postDir, filepath.Dir(preDir), settingsDir} {
			if info, err := os.Lstat(k.path(dir)); err == nil && info.IsDir() {
				_ = os.Remove(k.path(dir))
			}
		}
	}
}

// state removes the state of the agent, its releases, its keys, and the secrets that a killed run decrypted.
func (k *cleaning) state() {
	dir := k.stateDir()
	if info, err := os.Lstat(dir); err == nil {
		to := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			to, _ = filepath.EvalSymlinks(dir)
		}
		if to != "" && filepath.Base(to) != filepath.Base(dir) {
			k.Stays, to = append(k.Stays, to+", to which "+dir+" was a link: it may contain other files"), ""
		}
		k.remove(dir, func() error {
			err := forgetKeys(k.Root)
			if err == nil && to != "" {
				err = os.RemoveAll(to)
			}
			if err == nil && info.IsDir() {
				return os.RemoveAll(dir)
			} else if err == nil {
				err = os.Remove(dir)
			}
			return err
		})
	} else if !k.dry {
		_ = node.ForgetSecrets(k.config)
	}
	k.files(k.path("run/pulley-first-boot.lock"))
}

// stays names what is left on purpose.
func (k *cleaning) stays() {
	// Updates of Puppet come from the repository that the first boot set up.
	for _, path := range []string{"etc/apt/sources.list.d/pulley-puppet.list", "etc/yum.repos.d/pulley-puppet.repo"} {
		if _, err := os.Lstat(k.path(path)); err == nil {
			k.Stays = append(k.Stays, k.path(path)+", the repository of Puppet")
		}
	}
	k.Stays = append(k.Stays, "Puppet and other packages, the hostname, and the changes that Puppet made")
}
