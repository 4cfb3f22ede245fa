package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/join"
	"pulley/internal/nodeconfig"
)

// settingsLeft compares what the settings say with what was said here. By flags alone, a file that is there stays as it is, as
// long as cron's runs do what was said: it is the operator's.
func (b *bootstrap) settingsLeft() (string, error) {
	c, err := b.known()
	if err != nil {
		return "", err
	}
	there, err := os.ReadFile(c.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "write the settings into " + c.Path, nil
	case err != nil:
		return "", err
	case !b.planned && !b.overwrite && !b.joins():
		return "", b.agrees(c)
	}
	wanted, err := b.settings(c)
	if err != nil || bytes.Equal(there, wanted) {
		return "", err
	}
	return "write the settings into " + c.Path, nil
}

// settings are those of the file, with what was said here in their places.
func (b *bootstrap) settings(c config) ([]byte, error) {
	f := c.File
	f.Node, f.Role, f.Environment = c.Identity.Node, c.Identity.Role, c.Identity.Environment
	f.Endpoints, f.Prefix = c.Store.Endpoints, c.Store.Prefix
	f.CACert, f.Cert, f.Key = c.Store.CACert, c.Store.Cert, c.Store.Key
	if c.Joined() { // the default, so that the files may be moved with the state folder
		f.CACert, f.Cert, f.Key = "", "", ""
	}
	if len(b.plan.Servers) > 0 {
		f.Servers = b.plan.Servers
	}
	return f.Encode()
}

// writeSettings keeps what was said here for the runs that cron starts.
func (b *bootstrap) writeSettings() error {
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

func (b *bootstrap) writeConfig(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := atomicfile.Write(path, text, 0o600); err != nil {
		return err
	}
	b.self, b.named = nil, true // the file may say more now
	_, err := b.known()
	return err
}

// writeAnswer writes the settings of the node that this machine has become. What an older way to etcd said is replaced.
func (b *bootstrap) writeAnswer(a join.Answer) error {
	path := first(b.Flags.Path, b.path("etc/pulley/agent.yaml"))
	var f nodeconfig.File
	text, err := bounded.ReadFile(path, nodeconfig.MaxFileBytes)
	if err == nil {
		f, err = nodeconfig.ParseFile(path, text)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot read the settings: %w", err)
	}
	f.Node, f.Role, f.Environment, f.Servers = a.Node, a.Role, a.Environment, b.plan.Servers
	f.Endpoints, f.Prefix = a.Endpoints, first(b.plan.Prefix, a.Prefix)
	if len(b.plan.Endpoints) > 0 {
		f.Endpoints = b.plan.Endpoints
	}
	f.CACert, f.Cert, f.Key = "", "", ""
	f.AllowedSigners = first(b.plan.AllowedSigners, f.AllowedSigners)
	if len(b.plan.Mirrors) > 0 {
		f.Mirrors = b.plan.Mirrors
	}
	if text, err = f.Encode(); err != nil {
		return err
	}
	o := b.options
	o.Node, o.Role, o.Environment.Name, o.Connection.Endpoints = a.Node, a.Role, a.Environment, f.Endpoints // louder than the surroundings
	return b.writeConfig(path, text)
}

// agrees compares what was said here with what the file says alone, as to the runs that cron starts.
func (b *bootstrap) agrees(said config) error {
	env := b.env
	env.Getenv = func(string) string { return "" }
	alone, err := (&options{env: env, Flags: nodeconfig.Flags{Root: b.Root, Path: said.Path}}).load()
	if err != nil {
		return fmt.Errorf("%w\nthis time the command line said it; `--overwrite` writes it into %s", err, said.Path)
	}
	var differ []string
	for _, s := range []struct{ key, file, said string }{
		{"node", alone.Identity.Node, said.Identity.Node},
		{"role", alone.Identity.Role, said.Identity.Role},
		{"environment", alone.Identity.Environment, said.Identity.Environment},
		{"endpoints", strings.Join(alone.Store.Endpoints, ","), strings.Join(said.Store.Endpoints, ",")},
		{"prefix", alone.Store.Prefix, said.Store.Prefix},
		{"cacert", alone.Store.CACert, said.Store.CACert},
		{"cert", alone.Store.Cert, said.Store.Cert},
		{"key", alone.Store.Key, said.Store.Key},
		{"allowed_signers", alone.AllowedSigners, said.AllowedSigners},
		{"revoked_signers", alone.RevokedSigners, said.RevokedSigners},
		{"mirrors", strings.Join(alone.Mirrors, ","), strings.Join(said.Mirrors, ",")},
	} {
		if s.file != s.said {
			differ = append(differ, fmt.Sprintf("%s is %q there and %q here", s.key, s.file, s.said))
		}
	}
	if differ == nil {
		return nil
	}
	return fmt.Errorf("%s says something else than the command line: %s\nleave out what is in the file, or write it anew with `--overwrite`",
		said.Path, strings.Join(differ, "; "))
}
