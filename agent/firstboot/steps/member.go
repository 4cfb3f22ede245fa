package steps

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"pulley/agent"
	"pulley/agent/nodeconfig"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/failpoint"
	"pulley/internal/firstboot"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/pki"
)

// member makes the machine a member of its fleet: the join, the settings, the registration.
type member struct {
	*boot
	finished   bool  // the machine is a node; reports to serve contain this
	unreported error // error of serve's last answer
}

func (b *member) joinLeft(context.Context) (string, error) {
	if !b.joins() {
		return b.settingsLeft()
	}
	where := strings.Join(b.plan.Servers, ", ")
	_, err := pki.LoadIdentity(nodeconfig.Under(b.Root).IdentityFile())
	switch {
	case nodeconfig.MachineID(b.Root) == "":
		return "", errors.New("this machine has no id in /etc/machine-id\n`systemd-machine-id-setup` gives it one")
	case b.plan.Token != "":
		return "join at " + where + ", and write the settings", nil
	case err == nil:
		b.named = true
		return b.settingsLeft()
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("there is no token, and this machine has no identity\n`pulley token create -e %s` creates a token; give it with --token, or as `token:` in %s", cmp.Or(b.plan.Environment, "ENVIRONMENT"), b.PlanPath)
	}
	return "", err
}

// join gets the certificate of this machine, and stores the answer. The key is on the disk before the first request.
func (b *member) join(ctx context.Context) error {
	if !b.joins() || b.plan.Token == "" {
		return b.writeSettings()
	}
	if err := os.MkdirAll(filepath.Dir(nodeconfig.Under(b.Root).IdentityFile()), 0o700); err != nil {
		return fmt.Errorf("cannot keep an identity: %w", err)
	}
	key, node, err := b.joinKey()
	if err != nil {
		return err
	}
	client, err := b.pinned()
	if err != nil {
		return err
	}
	answer, err := client.Join(ctx, key, join.Request{
		Token: b.plan.Token, Environment: b.plan.Environment, Role: b.plan.Role, Node: cmp.Or(b.plan.Node, node), Machine: b.machine(),
	})
	if err != nil {
		return passingJoin(err)
	}
	failpoint.Here(firstboot.JoinAnswered)
	identity, err := pki.NewIdentity(key, []byte(answer.Certificate))
	if err != nil {
		return err
	}
	if err := atomicfile.Write(nodeconfig.Under(b.Root).BundleFile(), []byte(answer.CA), 0o644); err != nil {
		return fmt.Errorf("cannot keep the CA certificates: %w", err)
	}
	if err := nodeconfig.Under(b.Root).SaveSecrets(answer.Identities); err != nil {
		return err
	}
	if err := identity.Save(nodeconfig.Under(b.Root).IdentityFile()); err != nil {
		return err
	}
	// A node that joins again may find an etcd that was restored, and knows nothing of its reports.
	if err := agent.ForgetReported(b.stateDir()); err != nil {
		return err
	}
	failpoint.Here(firstboot.JoinKept)
	if err := b.writeAnswer(answer); err != nil {
		return err
	}
	failpoint.Here(firstboot.JoinWritten)
	if err := b.removeKeys(); err != nil {
		return fmt.Errorf("cannot remove the key of the request: %w", err)
	}
	b.Log.Info("joined", "node", answer.Node, "role", answer.Role, "env", answer.Environment, "until", utcTime(identity.Leaf().NotAfter))
	return nil
}

// removeKeys removes the key of the request, and incomplete files after a power cut.
func (b *member) removeKeys() error {
	left, err := filepath.Glob(b.state("identity/.*.pem*-*"))
	if err != nil {
		return err
	}
	for _, path := range append(left, nodeconfig.Under(b.Root).JoinKeyFile()) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// passingJoin marks an error as temporary if the server does not answer. A refusal is permanent, and so is the server
// of another fleet.
func passingJoin(err error) error {
	var unreachable *join.UnreachableError
	if !errors.As(err, &unreachable) || errors.Is(err, pki.ErrPin) {
		return err
	}
	return &firstboot.PassingError{Err: err, After: unreachable.After}
}

// joinKey returns the key of an earlier request, else that of the identity, else a new one. With `--from join` it
// returns a new one. node is the node of the identity, or "".
func (b *member) joinKey() (key crypto.Signer, node string, err error) {
	if key, err = pki.LoadKey(nodeconfig.Under(b.Root).JoinKeyFile()); err == nil {
		return key, "", nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("%w\nremove the file to join with a new key", err)
	}
	if identity, err := pki.LoadIdentity(nodeconfig.Under(b.Root).IdentityFile()); err == nil && !b.repeats(firstboot.Join) && b.Env.Now().Before(identity.Leaf().NotAfter) {
		if name, err := identity.Name(); err == nil && (b.plan.Environment == "" || b.plan.Environment == name.Environment) {
			node = name.Subject
		}
		return identity.Key, node, nil
	}
	if key, err = pki.NewKey(); err != nil {
		return nil, "", fmt.Errorf("cannot make a key: %w", err)
	}
	// Otherwise a crash after the request would leave a certificate without its key.
	if err := pki.SaveKey(nodeconfig.Under(b.Root).JoinKeyFile(), key); err != nil {
		return nil, "", err
	}
	return key, "", nil
}

func (b *boot) state(name string) string { return filepath.Join(b.stateDir(), name) }

// machine describes this machine for serve.
func (b *boot) machine() join.Machine {
	name, _ := os.Hostname()                             // shown to people only
	state, _ := firstboot.Disk{Dir: b.stateDir()}.Load() // the engine has read it, and reports an error
	return join.Machine{
		ID: nodeconfig.MachineID(b.Root), Boot: nodeconfig.BootID(), FirstBoot: state.ID, Hostname: name, Addresses: addresses(),
	}
}

// pinned returns a client that only has a token.
func (b *member) pinned() (*join.Client, error) {
	trust, err := pki.Pinned(b.plan.CA)
	if err != nil {
		return nil, err
	}
	return join.NewClient(b.plan.Servers, trust, 0)
}

// Report reports a step to serve: with the token until there is a certificate.
func (b *member) Report(ctx context.Context, step firstboot.Name, state firstboot.Progress, problem string) error {
	b.unreported = b.report(ctx, join.Progress{Step: string(step), State: string(state), Error: model.Prose(problem), Finished: b.finished})
	return b.unreported
}

func (b *member) report(ctx context.Context, p join.Progress) error {
	m := b.machine()
	p.Machine, p.FirstBoot, p.Hostname = m.ID, m.FirstBoot, m.Hostname
	p.Environment, p.Node, p.Role = b.plan.Environment, b.plan.Node, b.plan.Role
	if b.self != nil {
		id := b.self.Identity
		p.Environment, p.Node, p.Role = id.Environment, id.Node, id.Role
		client, err := b.self.ServeClient(b.plan.Servers)
		if err == nil {
			return client.Progress(ctx, "", p)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if b.plan.Token == "" || p.Machine == "" {
		return nil
	}
	client, err := b.pinned()
	if err != nil {
		return err
	}
	return client.Progress(ctx, b.plan.Token, p)
}

// settingsLeft compares the settings in the file with those of this start. With flags only, an existing file belongs to
// the operator: it stays unchanged if cron's runs would use the same values.
func (b *member) settingsLeft() (string, error) {
	c, err := b.known()
	if err != nil {
		return "", err
	}
	there, err := bounded.ReadFile(c.Path, nodeconfig.MaxFileBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "write the settings into " + c.Path, nil
	case err != nil:
		return "", err
	case !b.planned && !b.Overwrite && !b.joins():
		return "", b.agrees(c)
	}
	wanted, err := b.settings(c)
	if err != nil || bytes.Equal(there, wanted) {
		return "", err
	}
	return "write the settings into " + c.Path, nil
}

// settings returns the settings of the file, overridden by those of this start.
func (b *member) settings(c nodeconfig.Config) ([]byte, error) {
	f := c.File
	f.Node, f.Role, f.Environment = c.Identity.Node, c.Identity.Role, c.Identity.Environment
	f.Endpoints, f.Prefix = c.Store.Endpoints, c.Store.Prefix
	f.CACert, f.Cert, f.Key = c.Store.CACert, c.Store.Cert, c.Store.Key
	if c.Joined() { // the default: the files can be moved with the state folder
		f.CACert, f.Cert, f.Key = "", "", ""
	}
	if len(b.plan.Servers) > 0 {
		f.Servers = b.plan.Servers
	}
	f.Proxy = cmp.Or(b.plan.Proxy, f.Proxy)
	if len(b.plan.NoProxy) > 0 {
		f.NoProxy = b.plan.NoProxy
	}
	return f.Encode()
}

// writeSettings stores the settings of this start for the runs of cron.
func (b *member) writeSettings() error {
	c, err := b.known()
	if err != nil {
		return err
	}
	text, err := b.settings(c)
	if err != nil {
		return err
	}
	return b.writeConfig(c.Path, text)
}

func (b *member) writeConfig(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := atomicfile.Write(path, text, 0o600); err != nil {
		return err
	}
	b.self, b.named = nil, true // the file may contain more now
	_, err := b.known()
	return err
}

// writeAnswer writes the settings of the node that this machine has become. It replaces the settings of an older
// connection to etcd.
func (b *member) writeAnswer(a join.Answer) error {
	path := cmp.Or(b.Path, b.path("etc/pulley/agent.yaml"))
	var f nodeconfig.File
	text, err := bounded.ReadFile(path, nodeconfig.MaxFileBytes)
	if err == nil {
		f, err = nodeconfig.ParseFile(path, text)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot read the settings: %w", err)
	}
	f.Node, f.Role, f.Environment, f.Servers = a.Node, a.Role, a.Environment, b.plan.Servers
	f.Endpoints, f.Prefix = a.Endpoints, cmp.Or(b.plan.Prefix, a.Prefix)
	if len(b.plan.Endpoints) > 0 {
		f.Endpoints = b.plan.Endpoints
	}
	f.CACert, f.Cert, f.Key = "", "", ""
	f.AllowedSigners = cmp.Or(b.plan.AllowedSigners, f.AllowedSigners)
	if len(b.plan.Mirrors) > 0 {
		f.Mirrors = b.plan.Mirrors
	}
	f.Proxy = cmp.Or(b.plan.Proxy, f.Proxy)
	if len(b.plan.NoProxy) > 0 {
		f.NoProxy = b.plan.NoProxy
	}
	if text, err = f.Encode(); err != nil {
		return err
	}
	o := &b.Options
	// overrides flags and variables
	o.Node, o.Role, o.Environment.Name, o.Connection.Endpoints = a.Node, a.Role, a.Environment, f.Endpoints
	return b.writeConfig(path, text)
}

// agrees returns an error if the runs of cron, which only read the file, would use other values than this start.
func (b *member) agrees(given nodeconfig.Config) error {
	env := b.Env
	env.Getenv = func(string) string { return "" }
	alone, err := nodeconfig.Flags{Root: b.Root, Path: given.Path}.Load(env)
	if err != nil {
		return fmt.Errorf("%w\nthe value came from the command line; `--overwrite` writes it into %s", err, given.Path)
	}
	var differ []string
	for _, s := range []struct{ key, file, given string }{
		{"node", alone.Identity.Node, given.Identity.Node},
		{"role", alone.Identity.Role, given.Identity.Role},
		{"environment", alone.Identity.Environment, given.Identity.Environment},
		{"endpoints", strings.Join(alone.Store.Endpoints, ","), strings.Join(given.Store.Endpoints, ",")},
		{"prefix", alone.Store.Prefix, given.Store.Prefix},
		{"cacert", alone.Store.CACert, given.Store.CACert},
		{"cert", alone.Store.Cert, given.Store.Cert},
		{"key", alone.Store.Key, given.Store.Key},
		{"allowed_signers", alone.AllowedSigners, given.AllowedSigners},
		{"revoked_signers", alone.RevokedSigners, given.RevokedSigners},
		{"mirrors", strings.Join(alone.Mirrors, ","), strings.Join(given.Mirrors, ",")},
	} {
		if s.file != s.given {
			differ = append(differ, fmt.Sprintf("%s is %q there and %q here", s.key, s.file, s.given))
		}
	}
	if differ == nil {
		return nil
	}
	return fmt.Errorf("%s differs from the command line: %s\nomit the flags, or overwrite the file with `--overwrite`",
		given.Path, strings.Join(differ, "; "))
}
