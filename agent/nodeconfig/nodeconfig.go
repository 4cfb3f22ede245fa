// Package nodeconfig is the configuration of one node: agent.yaml, the flags and variables that override it, and the
// paths of the agent's files below the root.
//
// It must never read or write anything but the configuration, the identity and the machine's own names, and never
// decide how the agent uses them.
package nodeconfig

import (
	"bytes"
	"cmp"
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

	"pulley/agent/upgrade"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/release/mirror"
)

// File is agent.yaml. An unknown key is an error: a typo must not silently keep a default.
type File struct {
	Node        string   `yaml:"node,omitempty"`
	Role        string   `yaml:"role,omitempty"`
	Environment string   `yaml:"environment,omitempty"`
	Endpoints   []string `yaml:"endpoints,omitempty"`
	CACert      string   `yaml:"cacert,omitempty"`
	Cert        string   `yaml:"cert,omitempty"`
	Key         string   `yaml:"key,omitempty"`
	// https URLs of `pulley serve`, for the renewal of certificates
	Servers         []string      `yaml:"servers,omitempty"`
	Prefix          string        `yaml:"prefix,omitempty"`
	Timeout         time.Duration `yaml:"timeout,omitempty"`
	AllowedSigners  string        `yaml:"allowed_signers,omitempty"`
	RevokedSigners  string        `yaml:"revoked_signers,omitempty"`
	Mirrors         []string      `yaml:"mirrors,omitempty"`
	Proxy           string        `yaml:"proxy,omitempty"` // of package installations
	NoProxy         []string      `yaml:"no_proxy,omitempty"`
	EnforceInterval time.Duration `yaml:"enforce_interval,omitempty"`
	Heartbeat       time.Duration `yaml:"heartbeat,omitempty"`
	MaxAttempts     int           `yaml:"max_attempts,omitempty"`
	VerifyTimeout   time.Duration `yaml:"verify_timeout,omitempty"`
	// space that an installation of a release leaves free; 0 means the default of package content
	DiskReserveMiB int64       `yaml:"disk_reserve_mib,omitempty"`
	Puppet         PuppetFile  `yaml:"puppet,omitempty"`
	Upgrade        UpgradeFile `yaml:"upgrade,omitempty"`
}

// PuppetFile is the key `puppet` of agent.yaml.
type PuppetFile struct {
	Program   string        `yaml:"program,omitempty"`
	Deadline  time.Duration `yaml:"deadline,omitempty"`
	Grace     time.Duration `yaml:"grace,omitempty"`
	StateDirs []string      `yaml:"state_dirs,omitempty"`
	SSLDir    string        `yaml:"ssldir,omitempty"`
	// whether each run also writes Puppet's own last_run files; nil: after a takeover
	LastRunFiles *bool `yaml:"last_run_files,omitempty"`
	// Puppet's report processors, in the place of those of the environment file
	Reports   []string `yaml:"reports,omitempty"`
	ReportURL string   `yaml:"reporturl,omitempty"`
}

// UpgradeFile is the key `upgrade` of agent.yaml; a missing value means the limit of package upgrade.
type UpgradeFile struct {
	SelfTest  time.Duration `yaml:"self_test,omitempty"`
	FirstStep time.Duration `yaml:"first_step,omitempty"`
	Step      time.Duration `yaml:"step,omitempty"`
	Probation time.Duration `yaml:"probation,omitempty"`
}

// Flags are the flags of pulley-agent that override agent.yaml.
type Flags struct {
	Root           string
	Path           string // of agent.yaml; "" means etc/pulley/agent.yaml below the root
	Node           string
	Role           string
	Environment    cli.EnvironmentFlag
	Connection     cli.Connection
	AllowedSigners string
	RevokedSigners string
	Mirrors        []string
	Optional       bool // the file that Path names may be missing
}

// Config is the effective configuration: agent.yaml, overridden by the variables, overridden by the flags.
type Config struct {
	File
	Identity model.Identity
	Settings model.Settings
	Store    etcd.Config
	Root     string
	Path     string // of agent.yaml
}

// The defaults and limits of a configuration.
const (
	defaultVerifyTimeout = 30 * time.Second
	MaxFileBytes         = 1 << 20
	mirrorTimeout        = 20 * time.Second             // of one request; etcd is the fallback
	AgentPath            = "usr/local/bin/pulley-agent" // below the root; cron starts it there
)

// Under returns a configuration with a root only, for the paths of files.
func Under(root string) Config { return Config{Root: root} }

// StateDir is the agent's state folder.
func (c Config) StateDir() string { return filepath.Join(c.Root, "var/lib/pulley") }

// Crontab is the file by which cron starts the agent.
func (c Config) Crontab() string { return filepath.Join(c.Root, "etc/cron.d/pulley-agent") }

// IdentityFile contains the key and the certificate of a node that has joined. The join and the renewals write it.
func (c Config) IdentityFile() string { return filepath.Join(c.StateDir(), "identity/node.pem") }

// SecretsFile returns the file of the identities that decrypt secrets, one a line.
func (c Config) SecretsFile() string { return filepath.Join(c.StateDir(), "identity/secrets.txt") }

// BundleFile contains the CAs that a node trusts since its join.
func (c Config) BundleFile() string { return filepath.Join(c.StateDir(), "identity/ca.pem") }

// JoinKeyFile contains the key of a join, from before the first request until the certificate is stored. A repeated
// request with the same key creates nothing new.
func (c Config) JoinKeyFile() string { return filepath.Join(c.StateDir(), "identity/key.pem.new") }

// UpgradeFolder is the folder of the agent's own upgrades.
func (c Config) UpgradeFolder() upgrade.Folder {
	return upgrade.Folder{Dir: filepath.Join(c.StateDir(), "agent"), Installed: filepath.Join(c.Root, AgentPath)}
}

// Joined reports whether the node uses the identity of a join.
func (c Config) Joined() bool { return c.Store.Cert != "" && c.Store.Cert == c.IdentityFile() }

// Load reads agent.yaml, and applies the variables and the flags.
func (f Flags) Load(env cli.Env) (Config, error) {
	root, err := filepath.Abs(f.Root)
	if err != nil {
		return Config{}, fmt.Errorf("cannot use root %s: %w", f.Root, err)
	}
	named := f.Path != ""
	c := Config{Root: root, Path: cmp.Or(f.Path, filepath.Join(root, "etc/pulley/agent.yaml"))}
	b, err := bounded.ReadFile(c.Path, MaxFileBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist) && (!named || f.Optional):
		// Flags and variables can be sufficient; bootstrap writes the file.
	case err != nil:
		return Config{}, fmt.Errorf("cannot read the settings: %w", err)
	default:
		if c.File, err = ParseFile(c.Path, b); err != nil {
			return Config{}, err
		}
	}
	if err := c.identify(f, env); err != nil {
		return Config{}, err
	}
	if err := c.connect(f, env); err != nil {
		return Config{}, err
	}
	c.AllowedSigners, c.RevokedSigners = cmp.Or(f.AllowedSigners, c.AllowedSigners), cmp.Or(f.RevokedSigners, c.RevokedSigners)
	if len(f.Mirrors) > 0 {
		c.Mirrors = f.Mirrors
	}
	if _, err := c.Mirror(); err != nil {
		return Config{}, err
	}
	if len(c.Servers) > 0 {
		if _, err := join.NewClient(c.Servers, nil, 0); err != nil {
			return Config{}, fmt.Errorf("cannot use %s: %w", c.Path, err)
		}
	}
	return c, c.limits()
}

// ParseFile reads agent.yaml; path is its name in errors.
func ParseFile(path string, b []byte) (File, error) {
	var f File
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	err := dec.Decode(&f)
	if err == nil && dec.Decode(new(any)) == nil {
		err = errors.New("it has a second document, which would be ignored")
	}
	if err == nil || errors.Is(err, io.EOF) {
		return f, nil
	}
	problem := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n", ""), "yaml: ")
	problem = strings.TrimPrefix(problem, "unmarshal errors:  ")
	problem = strings.ReplaceAll(problem, " in type nodeconfig.File", "")
	problem = strings.ReplaceAll(problem, " in type nodeconfig.PuppetFile", " in puppet")
	problem = strings.ReplaceAll(problem, " in type nodeconfig.UpgradeFile", " in upgrade")
	return File{}, fmt.Errorf("cannot read %s: %s\nits keys are node, role, environment, endpoints, cacert, cert, key, servers, prefix, timeout, allowed_signers, revoked_signers, mirrors, proxy, no_proxy, "+
		"enforce_interval, heartbeat, max_attempts, verify_timeout, disk_reserve_mib, puppet: {program, deadline, grace, state_dirs, ssldir, last_run_files, reports, reporturl} and upgrade: {self_test, first_step, step, probation}", path, problem)
}

// identify determines the node's identity from the flags, else the file, else the hostname.
func (c *Config) identify(f Flags, env cli.Env) error {
	name := cmp.Or(f.Node, env.Getenv("PULLEY_NODE"), c.Node)
	role := cmp.Or(f.Role, c.Role)
	environment := cmp.Or(f.Environment.Name, env.Getenv("PULLEY_ENVIRONMENT"), c.Environment)
	if environment == "" {
		return cli.Usagef("missing the environment of this node: give -e NAME, or `environment:` in %s", c.Path)
	}
	ref, err := model.ParseRef(environment)
	if err != nil {
		return err
	}
	if name == "" {
		if name, err = os.Hostname(); err != nil {
			return fmt.Errorf("cannot read the hostname: %w", err)
		}
		name, _, _ = strings.Cut(name, ".")
		if n, err := model.ParseHostname(name); err == nil {
			name = n.String()
		} else if role == "" {
			return fmt.Errorf("cannot determine the name of this node: %w\ngive --node NAME, or --role ROLE for a machine of another name", err)
		}
	}
	certname := name
	if n, err := model.ParseNode(name); err == nil {
		if ref, err = ref.Of(n); err != nil {
			return err
		}
		certname, role = n.Hostname(), cmp.Or(role, n.Role)
	} else if role == "" {
		return fmt.Errorf("%w\nfor a machine of another name, give its role: --role ROLE, or `role:` in %s", err, c.Path)
	}
	c.Identity = model.Identity{Node: name, Certname: certname, Role: role, Environment: ref.String(), PuppetEnvironment: ref.Environment}
	return nil
}

func (c *Config) connect(f Flags, env cli.Env) error {
	conn := f.Connection
	conn.Fill(env)
	if err := conn.Check(); err != nil {
		return err
	}
	if len(conn.Endpoints) == 0 {
		conn.Endpoints = c.Endpoints
	}
	conn.CACert, conn.Cert, conn.Key = cmp.Or(conn.CACert, c.CACert), cmp.Or(conn.Cert, c.Cert), cmp.Or(conn.Key, c.Key)
	conn.Prefix = cmp.Or(conn.Prefix, c.Prefix)
	if conn.Timeout == 0 {
		conn.Timeout = c.Timeout
	}
	c.Store = conn.Config()
	c.useIdentity()
	return nil
}

// useIdentity uses the files of the join if neither a flag nor the settings name any. An etcd in plain text needs no
// identity.
func (c *Config) useIdentity() {
	s := &c.Store
	if s.CACert != "" || s.Cert != "" || s.Key != "" || !slices.ContainsFunc(s.Endpoints, func(e string) bool { return !strings.HasPrefix(e, "http://") }) {
		return
	}
	if _, err := os.Stat(c.IdentityFile()); err != nil {
		return
	}
	s.Cert, s.Key, s.CACert = c.IdentityFile(), c.IdentityFile(), c.BundleFile()
}

// limits sets defaults and refuses invalid limits.
func (c *Config) limits() error {
	c.Settings = model.DefaultSettings()
	for _, d := range []struct {
		name string
		from time.Duration
		to   *time.Duration
	}{
		{"enforce_interval", c.EnforceInterval, &c.Settings.EnforceInterval},
		{"heartbeat", c.Heartbeat, &c.Settings.Heartbeat},
		{"timeout", c.Timeout, nil}, {"puppet.deadline", c.Puppet.Deadline, nil}, {"puppet.grace", c.Puppet.Grace, nil},
		{"verify_timeout", c.VerifyTimeout, nil}, {"upgrade.self_test", c.Upgrade.SelfTest, nil}, {"upgrade.first_step", c.Upgrade.FirstStep, nil},
		{"upgrade.step", c.Upgrade.Step, nil}, {"upgrade.probation", c.Upgrade.Probation, nil},
	} {
		if d.from < 0 {
			return fmt.Errorf("cannot use %s: %s is %s; give a duration like 30m", c.Path, d.name, d.from)
		}
		if d.from > 0 && d.to != nil {
			*d.to = d.from
		}
	}
	if c.DiskReserveMiB < 0 || c.DiskReserveMiB > 1<<30 {
		return fmt.Errorf("cannot use %s: disk_reserve_mib is %d; give a number of MiB, like 256", c.Path, c.DiskReserveMiB)
	}
	if c.MaxAttempts < 0 {
		return fmt.Errorf("cannot use %s: max_attempts is %d; give a number from 1", c.Path, c.MaxAttempts)
	}
	if c.MaxAttempts > 0 {
		c.Settings.MaxAttempts = c.MaxAttempts
	}
	if c.VerifyTimeout == 0 {
		c.VerifyTimeout = defaultVerifyTimeout
	}
	return nil
}

// AllowedSignersFile is the file of the allowed signers; named reports whether the configuration names it.
func (c Config) AllowedSignersFile() (path string, named bool) {
	return cmp.Or(c.AllowedSigners, filepath.Join(c.Root, "etc/pulley/allowed_signers")), c.AllowedSigners != ""
}

// RevokedSignersFile is the file of the revoked signers; named reports whether the configuration names it.
func (c Config) RevokedSignersFile() (path string, named bool) {
	return cmp.Or(c.RevokedSigners, filepath.Join(c.Root, "etc/pulley/revoked_signers")), c.RevokedSigners != ""
}

// Mirror returns a client of the mirrors, or nil without mirrors.
func (c Config) Mirror() (*mirror.Client, error) {
	if len(c.Mirrors) == 0 {
		return nil, nil
	}
	var settings *tls.Config
	if c.Store.CACert != "" { // the mirror of `pulley serve` may have a certificate of etcd's CA
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		ca, err := bounded.ReadFile(c.Store.CACert, MaxFileBytes)
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
	m.StartAt(c.Identity.Node)
	return m, nil
}

// ServeClient returns a client of `pulley serve` with the node's identity; the error is fs.ErrNotExist without one.
func (c Config) ServeClient(servers []string) (*join.Client, error) {
	return c.ServeClientWithin(servers, 0)
}

// ServeClientWithin is ServeClient with a limit for each request to one server.
func (c Config) ServeClientWithin(servers []string, timeout time.Duration) (*join.Client, error) {
	identity, err := pki.LoadIdentity(c.IdentityFile())
	if err != nil {
		return nil, err
	}
	bundle, err := bounded.ReadFile(c.BundleFile(), MaxFileBytes)
	if err != nil {
		return nil, fmt.Errorf("cannot read the CA certificates: %w", err)
	}
	trust, err := identity.TLS(bundle)
	if err != nil {
		return nil, err
	}
	return join.NewClient(servers, trust, timeout)
}

// SaveSecrets stores the identities that decrypt secrets. Only root may read them.
func (c Config) SaveSecrets(identities []string) error {
	if err := atomicfile.WriteShared(c.SecretsFile(), []byte(strings.Join(identities, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("cannot store the identities of secrets: %w", err)
	}
	return nil
}

// Secrets reads the result of SaveSecrets. A missing file has no identities.
func (c Config) Secrets() ([]string, error) {
	b, err := bounded.ReadFile(c.SecretsFile(), MaxFileBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the identities of secrets: %w", err)
	}
	return strings.Fields(string(b)), nil
}

// Encode returns the text of agent.yaml.
func (f File) Encode() ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(f); err != nil {
		return nil, err
	}
	return b.Bytes(), enc.Close()
}

// BootID returns the kernel's id of this boot, or "".
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "" // it only distinguishes two machines with one machine id
	}
	return strings.TrimSpace(string(b))
}

// MachineID returns the id of the machine (machine-id(5)): that of the root, else that of the running system. Some
// containers have none; then it returns "".
func MachineID(root string) string {
	b, err := bounded.ReadFile(filepath.Join(root, "etc/machine-id"), MaxFileBytes)
	if err != nil {
		b, err = bounded.ReadFile("/etc/machine-id", MaxFileBytes)
	}
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
