package steps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"pulley/internal/atomicfile"
	"pulley/internal/firstboot"
)

// machine runs scripts, installs Puppet and sets the machine's name.
type machine struct{ *boot }

// The folders of the operator's scripts, which userdata fills.
const (
	preDir  = "etc/pulley/first-boot/pre.d"
	postDir = "etc/pulley/first-boot/post.d"
)

// scriptsLeft lists the scripts of a folder. With flags only there are none: another first boot wrote them.
func (b *machine) scriptsLeft(dir string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		if !b.planned {
			return "", nil
		}
		found, err := firstboot.Executables(b.path(dir))
		if err != nil || len(found) == 0 {
			return "", err
		}
		return "run " + strings.Join(found, ", "), nil
	}
}

func (b *machine) runScripts(step firstboot.Name, dir string) func(context.Context) error {
	return func(ctx context.Context) error {
		found, err := firstboot.Executables(b.path(dir))
		if err != nil {
			return err
		}
		for _, script := range found {
			if err := b.replacement(ctx, step, script); err != nil {
				return err
			}
		}
		return nil
	}
}

// replacement runs an operator's program, which is a script or replaces a step, with the known settings in its environment.
func (b *boot) replacement(ctx context.Context, step firstboot.Name, program string) error {
	env := []string{"PULLEY_STEP=" + string(step), "PULLEY_ROOT=" + b.Root}
	node, role, environment := b.plan.Node, b.plan.Role, b.plan.Environment
	if b.self != nil {
		id := b.self.Identity
		node, role, environment = id.Node, id.Role, id.Environment
	}
	env = append(env, "PULLEY_NODE="+node, "PULLEY_ROLE="+role, "PULLEY_ENVIRONMENT="+environment)
	env = append(env, b.installer.Proxies()...)
	run := firstboot.Programs{Env: env, Output: b.Env.Stderr, Log: b.Log}
	return run.Run(ctx, program)
}

func (b *machine) puppetLeft(context.Context) (string, error) {
	return "make sure that Puppet is installed", nil // installPuppet looks
}

func (b *machine) installPuppet(ctx context.Context) error {
	b.installer.Logger = b.Log
	if c, err := b.known(); err == nil { // before a join, the node is not known
		b.installer.Program = c.Puppet.Program
	}
	if b.Root != "/" {
		b.installer.Root = b.Root
	}
	return b.installer.Ensure(ctx)
}

// hostname returns the machine's future hostname; "" keeps its name.
func (b *machine) hostname() (string, error) {
	if b.plan.Hostname != firstboot.NodeHostname {
		return b.plan.Hostname, nil
	}
	c, err := b.known()
	return c.Identity.Certname, err
}

func (b *machine) hostnameLeft(context.Context) (string, error) {
	name, err := b.hostname()
	if err != nil || name == "" {
		return "", err
	}
	written, _ := os.ReadFile(b.path("etc/hostname"))
	if strings.TrimSpace(string(written)) == name && (b.Root != "/" || kernelName() == name) && b.cloudKeepsName() {
		return "", nil
	}
	return "name the machine " + name, nil
}

// The file at preservePath keeps cloud-init from restoring the machine's old name at the next boot (cloud-init, module "Update
// Hostname").
const (
	cloudPath    = "etc/cloud/cloud.cfg.d"
	preservePath = cloudPath + "/99-pulley-hostname.cfg"
	preserve     = "# Written by pulley-agent: the machine has its node's name.\npreserve_hostname: true\n"
)

// cloudKeepsName reports whether cloud-init needs no setting.
func (b *machine) cloudKeepsName() bool {
	if _, err := os.Stat(b.path(cloudPath)); err != nil {
		return true
	}
	text, err := os.ReadFile(b.path(preservePath))
	return err == nil && string(text) == preserve
}

func (b *machine) setHostname(ctx context.Context) error {
	name, err := b.hostname()
	if err != nil {
		return err
	}
	if !b.cloudKeepsName() {
		if err := atomicfile.Write(b.path(preservePath), []byte(preserve), 0o644); err != nil {
			return err
		}
	}
	if b.Root == "/" && b.systemd() {
		_, err := systemd(ctx, "hostnamectl", "set-hostname", name)
		if err == nil {
			return nil
		}
		b.Log.Warn("the hostname is written without hostnamectl", "err", err)
	}
	if err := os.MkdirAll(b.path("etc"), 0o755); err != nil {
		return err
	}
	if err := atomicfile.Write(b.path("etc/hostname"), []byte(name+"\n"), 0o644); err != nil {
		return err
	}
	if b.Root != "/" {
		return nil // the running kernel belongs to another machine
	}
	if err := syscall.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("cannot name the machine %s: %w", name, err)
	}
	return nil
}

func kernelName() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// systemd reports whether systemd runs this machine (sd_booted(3)).
func (b *boot) systemd() bool {
	_, err := os.Lstat(b.path("run/systemd/system"))
	return err == nil
}

// removeFiles removes files of this machine; a missing file is no error.
func (b *boot) removeFiles(names ...string) error {
	var all []error
	for _, name := range names {
		if err := os.Remove(b.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}
