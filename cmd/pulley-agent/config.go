package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/join"
	"pulley/internal/mirror"
	"pulley/internal/store"
)

// file is agent.yaml. A key that is not here is an error: a typo must not silently leave a default in force.
type file struct {
	Node            string        `yaml:"node,omitempty"`
	Role            string        `yaml:"role,omitempty"`
	Environment     string        `yaml:"environment,omitempty"`
	Endpoints       []string      `yaml:"endpoints,omitempty"`
	CACert          string        `yaml:"cacert,omitempty"`
	Cert            string        `yaml:"cert,omitempty"`
	Key             string        `yaml:"key,omitempty"`
	Servers         []string      `yaml:"servers,omitempty"` // https URLs of `pulley serve`, where certificates are renewed
	Prefix          string        `yaml:"prefix,omitempty"`
	Timeout         time.Duration `yaml:"timeout,omitempty"`
	AllowedSigners  string        `yaml:"allowed_signers,omitempty"`
	RevokedSigners  string        `yaml:"revoked_signers,omitempty"`
	Mirrors         []string      `yaml:"mirrors,omitempty"`
	EnforceInterval time.Duration `yaml:"enforce_interval,omitempty"`
	Heartbeat       time.Duration `yaml:"heartbeat,omitempty"`
	MaxAttempts     int           `yaml:"max_attempts,omitempty"`
	VerifyTimeout   time.Duration `yaml:"verify_timeout,omitempty"`
	Puppet          puppetFile    `yaml:"puppet,omitempty"`
	Upgrade         upgradeFile   `yaml:"upgrade,omitempty"`
}

type puppetFile struct {
	Program   string        `yaml:"program,omitempty"`
	Deadline  time.Duration `yaml:"deadline,omitempty"`
	Grace     time.Duration `yaml:"grace,omitempty"`
	StateDirs []string      `yaml:"state_dirs,omitempty"`
}

// config is what a verb works with: agent.yaml, the environment and the flags, in rising order.
type config struct {
	file
	identity agent.Identity
	settings agent.Settings
	store    store.Config
	root     string
	path     string // of agent.yaml
}

const (
	defaultVerifyTimeout = 30 * time.Second
	maxConfigBytes       = 1 << 20
	mirrorTimeout        = 20 * time.Second // of one request; what does not come comes from etcd
	schedulePath         = "etc/cron.d/pulley-agent"
	allowedPath          = "etc/pulley/allowed_signers"
	revokedPath          = "etc/pulley/revoked_signers"
	identityPath         = "identity/node.pem" // key and certificate, in the state folder; written by the join and by renewals
	bundlePath           = "identity/ca.pem"   // the CAs that are trusted
)

func (c config) stateDir() string { return filepath.Join(c.root, "var/lib/pulley") }
func (c config) schedule() string { return filepath.Join(c.root, schedulePath) }

// identityFile and bundleFile are where a node that has joined keeps who it is and whom it trusts.
func (c config) identityFile() string { return filepath.Join(c.stateDir(), identityPath) }
func (c config) bundleFile() string   { return filepath.Join(c.stateDir(), bundlePath) }

// joined says whether this node is who it is by the identity of a join.
func (c config) joined() bool { return c.store.Cert != "" && c.store.Cert == c.identityFile() }

// load reads the settings. A verb that works offline (status, enable, disable) does without.
func (o *options) load() (config, error) {
	root, err := filepath.Abs(o.root)
	if err != nil {
		return config{}, fmt.Errorf("cannot use root %s: %w", o.root, err)
	}
	c := config{root: root, path: o.config}
	if c.path == "" {
		c.path = filepath.Join(root, "etc/pulley/agent.yaml")
	}
	b, err := readBounded(c.path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && (o.config == "" || o.bootstraps):
		// Flags and the environment may say everything; bootstrap writes the file.
	case err != nil:
		return config{}, fmt.Errorf("cannot read the settings: %w", err)
	default:
		if c.file, err = parseFile(c.path, b); err != nil {
			return config{}, err
		}
	}
	if err := c.identify(o); err != nil {
		return config{}, err
	}
	if err := c.connect(o); err != nil {
		return config{}, err
	}
	c.AllowedSigners, c.RevokedSigners = first(o.allowed, c.AllowedSigners), first(o.revoked, c.RevokedSigners)
	if len(o.mirrors) > 0 {
		c.Mirrors = o.mirrors
	}
	if _, err := c.mirror(); err != nil {
		return config{}, err
	}
	if len(c.Servers) > 0 {
		if _, err := join.NewClient(c.Servers, nil, 0); err != nil {
			return config{}, fmt.Errorf("cannot use %s: %w", c.path, err)
		}
	}
	return c, c.limits()
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxConfigBytes+1)) // one more than anybody takes: what was cut must not look whole
}

// parseFile reads agent.yaml, strictly.
func parseFile(path string, b []byte) (file, error) {
	var f file
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	err := dec.Decode(&f)
	if err == nil && dec.Decode(new(any)) == nil {
		err = errors.New("it has a second document, which would be left out")
	}
	if err == nil || errors.Is(err, io.EOF) {
		return f, nil
	}
	problem := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n", ""), "yaml: ")
	problem = strings.TrimPrefix(problem, "unmarshal errors:  ")
	problem = strings.ReplaceAll(problem, " in type main.file", "")
	problem = strings.ReplaceAll(problem, " in type main.puppetFile", " in puppet")
	problem = strings.ReplaceAll(problem, " in type main.upgradeFile", " in upgrade")
	return file{}, fmt.Errorf("cannot read %s: %s\nits keys are node, role, environment, endpoints, cacert, cert, key, servers, prefix, timeout, allowed_signers, revoked_signers, mirrors, "+
		"enforce_interval, heartbeat, max_attempts, verify_timeout, puppet: {program, deadline, grace, state_dirs} and upgrade: {self_test, first_step, step, probation}", path, problem)
}

// identify finds out who this node is: from the flags, else the file, else the hostname.
func (c *config) identify(o *options) error {
	name := first(o.node, o.env.Getenv("PULLEY_NODE"), c.Node)
	role := first(o.role, c.Role)
	env := first(o.fleet.Name, o.env.Getenv("PULLEY_ENVIRONMENT"), c.Environment)
	if env == "" {
		return cli.Usagef("which environment is this node of? give -e NAME, or `environment:` in %s", c.path)
	}
	ref, err := environments.ParseRef(env)
	if err != nil {
		return err
	}
	if name == "" {
		if name, err = os.Hostname(); err != nil {
			return fmt.Errorf("cannot read the hostname: %w", err)
		}
		name, _, _ = strings.Cut(name, ".")
		if n, err := environments.ParseHostname(name); err == nil {
			name = n.String()
		} else if role == "" {
			return fmt.Errorf("cannot tell which node this is: %w\ngive --node NAME, or --role ROLE for a machine of another name", err)
		}
	}
	certname := name
	if n, err := environments.ParseNode(name); err == nil {
		if ref, err = ref.Of(n); err != nil {
			return err
		}
		certname, role = n.Hostname(), first(role, n.Role)
	} else if role == "" {
		return fmt.Errorf("%w\nfor a machine of another name, give its role: --role ROLE, or `role:` in %s", err, c.path)
	}
	c.identity = agent.Identity{Node: name, Certname: certname, Role: role, Environment: ref.String(), PuppetEnvironment: ref.Environment}
	return nil
}

func (c *config) connect(o *options) error {
	conn := o.connection
	conn.Fill(o.env)
	if err := conn.Check(); err != nil {
		return err
	}
	if len(conn.Endpoints) == 0 {
		conn.Endpoints = c.Endpoints
	}
	conn.CACert, conn.Cert, conn.Key = first(conn.CACert, c.CACert), first(conn.Cert, c.Cert), first(conn.Key, c.Key)
	conn.Prefix = first(conn.Prefix, c.Prefix)
	if conn.Timeout == 0 {
		conn.Timeout = c.Timeout
	}
	c.store = conn.Config()
	c.useIdentity()
	return nil
}

// useIdentity takes the files of the join where neither a flag nor the settings name any. Etcd in plain text asks nobody who
// he is.
func (c *config) useIdentity() {
	s := &c.store
	if s.CACert != "" || s.Cert != "" || s.Key != "" || !slices.ContainsFunc(s.Endpoints, func(e string) bool { return !strings.HasPrefix(e, "http://") }) {
		return
	}
	if _, err := os.Stat(c.identityFile()); err != nil {
		return
	}
	s.Cert, s.Key, s.CACert = c.identityFile(), c.identityFile(), c.bundleFile()
}

// limits fills in defaults and refuses what makes no sense.
func (c *config) limits() error {
	c.settings = agent.DefaultSettings()
	for _, d := range []struct {
		name string
		from time.Duration
		to   *time.Duration
	}{
		{"enforce_interval", c.EnforceInterval, &c.settings.EnforceInterval},
		{"heartbeat", c.Heartbeat, &c.settings.Heartbeat},
		{"timeout", c.Timeout, nil}, {"puppet.deadline", c.Puppet.Deadline, nil}, {"puppet.grace", c.Puppet.Grace, nil},
		{"verify_timeout", c.VerifyTimeout, nil}, {"upgrade.self_test", c.Upgrade.SelfTest, nil}, {"upgrade.first_step", c.Upgrade.FirstStep, nil},
		{"upgrade.step", c.Upgrade.Step, nil}, {"upgrade.probation", c.Upgrade.Probation, nil},
	} {
		if d.from < 0 {
			return fmt.Errorf("cannot use %s: %s is %s; give a duration like 30m", c.path, d.name, d.from)
		}
		if d.from > 0 && d.to != nil {
			*d.to = d.from
		}
	}
	if c.MaxAttempts < 0 {
		return fmt.Errorf("cannot use %s: max_attempts is %d; give a number from 1", c.path, c.MaxAttempts)
	}
	if c.MaxAttempts > 0 {
		c.settings.MaxAttempts = c.MaxAttempts
	}
	if c.VerifyTimeout == 0 {
		c.VerifyTimeout = defaultVerifyTimeout
	}
	return nil
}

// signers says where this node's signers are written down.
func (c config) signers() signersFiles {
	return signersFiles{
		allowed: first(c.AllowedSigners, filepath.Join(c.root, allowedPath)), allowedNamed: c.AllowedSigners != "",
		revoked: first(c.RevokedSigners, filepath.Join(c.root, revokedPath)), revokedNamed: c.RevokedSigners != "",
		floor: filepath.Join(c.stateDir(), floorFile),
	}
}

// mirror is the client of the mirrors; nil when there is none.
func (c config) mirror() (*mirror.Client, error) {
	if len(c.Mirrors) == 0 {
		return nil, nil
	}
	var settings *tls.Config
	if c.store.CACert != "" { // the mirror that `pulley serve` offers may be of the same CA as etcd
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		ca, err := readBounded(c.store.CACert)
		if err != nil {
			return nil, fmt.Errorf("cannot read the CA of the mirrors: %w", err)
		}
		pool.AppendCertsFromPEM(ca)
		settings = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	m, err := mirror.New(c.Mirrors, settings, mirrorTimeout)
	if err != nil {
		return nil, err
	}
	m.StartAt(c.identity.Node)
	return m, nil
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
