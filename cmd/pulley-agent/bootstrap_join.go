package main

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"pulley/agent"
	"pulley/internal/atomicfile"
	"pulley/internal/failpoint"
	"pulley/internal/firstboot"
	"pulley/internal/join"
	"pulley/internal/nodeconfig"
	"pulley/internal/pki"
)

func (b *bootstrap) joinLeft(context.Context) (string, error) {
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
		return "", fmt.Errorf("there is no token, and this machine has no identity\n`pulley token create` makes one; give it with --token, or as `token:` in %s", b.planPath)
	}
	return "", err
}

// join gets this machine its certificate, and writes down what it learns. The key is on the disk before anybody is asked.
func (b *bootstrap) join(ctx context.Context) error {
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
		Token: b.plan.Token, Environment: b.plan.Environment, Role: b.plan.Role, Node: first(b.plan.Node, node), Machine: b.machine(),
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
	if err := identity.Save(nodeconfig.Under(b.Root).IdentityFile()); err != nil {
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
	b.log.Info("joined", "node", answer.Node, "role", answer.Role, "env", answer.Environment, "until", utcTime(identity.Leaf().NotAfter))
	return nil
}

// removeKeys removes the key of the request, and what a power cut left of files that were half written.
func (b *bootstrap) removeKeys() error {
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

// passingJoin tells apart what passes by itself: that nobody answers. A refusal does not, nor does another fleet's server.
func passingJoin(err error) error {
	var nobody *join.UnreachableError
	if !errors.As(err, &nobody) || errors.Is(err, pki.ErrPin) {
		return err
	}
	return &firstboot.PassingError{Err: err, After: nobody.After}
}

// joinKey is the key that was asked with before, else the one of the identity that is there, else a new one. Who says
// `--from join` wants a new one. The node is the one that the identity is of, "" without.
func (b *bootstrap) joinKey() (key crypto.Signer, node string, err error) {
	if key, err = pki.LoadKey(nodeconfig.Under(b.Root).JoinKeyFile()); err == nil {
		return key, "", nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("%w\nremove the file to join with a new key", err)
	}
	if identity, err := pki.LoadIdentity(nodeconfig.Under(b.Root).IdentityFile()); err == nil && !b.asks(firstboot.Join) && b.env.Now().Before(identity.Leaf().NotAfter) {
		if name, err := identity.Name(); err == nil && (b.plan.Environment == "" || b.plan.Environment == name.Environment) {
			node = name.Subject
		}
		return identity.Key, node, nil
	}
	if key, err = pki.NewKey(); err != nil {
		return nil, "", fmt.Errorf("cannot make a key: %w", err)
	}
	// Else a crash after the request would leave a certificate whose key nobody has.
	if err := pki.SaveKey(nodeconfig.Under(b.Root).JoinKeyFile(), key); err != nil {
		return nil, "", err
	}
	return key, "", nil
}

func (b *bootstrap) state(name string) string { return filepath.Join(b.stateDir(), name) }

// machine is what this one says of itself.
func (b *bootstrap) machine() join.Machine {
	name, _ := os.Hostname() // shown to people only
	return join.Machine{
		ID: nodeconfig.MachineID(b.Root), Boot: nodeconfig.BootID(), Hostname: name, Addresses: addresses(), Agent: b.env.Version, Arch: runtime.GOARCH,
	}
}

// pinned asks as somebody who has only a token.
func (b *bootstrap) pinned() (*join.Client, error) {
	trust, err := pki.Pinned(b.plan.CA)
	if err != nil {
		return nil, err
	}
	return join.NewClient(b.plan.Servers, trust, 0)
}

// Tell tells serve of a step: with the token until there is a certificate.
func (b *bootstrap) Tell(ctx context.Context, step firstboot.Name, state firstboot.Progress, problem string) error {
	b.untold = b.tell(ctx, join.Progress{Step: string(step), State: string(state), Error: agent.Prose(problem), Finished: b.finished})
	return b.untold
}

func (b *bootstrap) tell(ctx context.Context, p join.Progress) error {
	p.Machine, p.Hostname = nodeconfig.MachineID(b.Root), b.machine().Hostname
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
