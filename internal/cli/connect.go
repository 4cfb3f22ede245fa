package cli

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"pulley/internal/bounded"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/pki"
)

// DefaultEndpoint is the default address of `pulley serve`.
const DefaultEndpoint = "http://127.0.0.1:2379"

// Connection contains the flags for the connection to etcd. Each has a PULLEY_… variable. If neither is set, etcdctl's
// own ETCDCTL_… variable counts.
type Connection struct {
	Endpoints []string
	CACert    string
	Cert      string
	Key       string
	Prefix    string
	Timeout   time.Duration
}

// AddFlags adds the flags.
func (c *Connection) AddFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&c.Endpoints, "endpoints", nil, "etcd's client URLs, with commas [PULLEY_ENDPOINTS] (default "+DefaultEndpoint+")")
	f.StringVar(&c.CACert, "cacert", "", "PEM file of the CA that signed etcd's certificate [PULLEY_CACERT]")
	f.StringVar(&c.Cert, "cert", "", "PEM file of the client certificate [PULLEY_CERT]")
	f.StringVar(&c.Key, "key", "", "PEM file of its key [PULLEY_KEY]")
	f.StringVar(&c.Prefix, "prefix", "", "first part of every key in etcd [PULLEY_PREFIX] (default "+etcd.DefaultPrefix+")")
	DurationVar(f, &c.Timeout, "timeout", 0, "how long one call to etcd may take [PULLEY_TIMEOUT] (default "+etcd.DefaultTimeout.String()+")")
}

// Fill sets unset flags from the environment.
func (c *Connection) Fill(e Env) {
	if len(c.Endpoints) == 0 {
		if s := variable(e, "ENDPOINTS"); s != "" {
			for _, endpoint := range strings.Split(s, ",") {
				c.Endpoints = append(c.Endpoints, strings.TrimSpace(endpoint))
			}
		}
	}
	for _, v := range []struct {
		to   *string
		name string
	}{{&c.CACert, "CACERT"}, {&c.Cert, "CERT"}, {&c.Key, "KEY"}} {
		if *v.to == "" {
			*v.to = variable(e, v.name)
		}
	}
	if c.Prefix == "" {
		c.Prefix = e.Getenv("PULLEY_PREFIX")
	}
	if s := e.Getenv("PULLEY_TIMEOUT"); s != "" && c.Timeout == 0 {
		var err error
		if c.Timeout, err = ParseDuration(s); err != nil {
			c.Timeout = -1 // rejected by Check, and by etcd.Open
		}
	}
	for i, endpoint := range c.Endpoints {
		if !strings.Contains(endpoint, "://") {
			c.Endpoints[i] = "http://" + endpoint
			if c.CACert != "" {
				c.Endpoints[i] = "https://" + endpoint
			}
		}
	}
}

// NamesFleet reports whether a flag or a variable of Pulley names etcd's endpoints.
func (c *Connection) NamesFleet(e Env) bool {
	return len(c.Endpoints) > 0 || e.Getenv("PULLEY_ENDPOINTS") != ""
}

// WithoutEtcdctl returns an environment without etcdctl's variables, which may be those of another etcd.
func WithoutEtcdctl(getenv func(string) string) func(string) string {
	return func(name string) string {
		if strings.HasPrefix(name, etcdctlPrefix) {
			return ""
		}
		return getenv(name)
	}
}

const etcdctlPrefix = "ETCDCTL_"

// Check rejects invalid values. Programs call it after Fill, before any other work.
func (c *Connection) Check() error {
	if c.Timeout < 0 {
		return Usagef("cannot use this timeout: give --timeout or PULLEY_TIMEOUT a time above 0, as in 5s")
	}
	return nil
}

func variable(e Env, name string) string {
	if s := e.Getenv("PULLEY_" + name); s != "" {
		return s
	}
	return e.Getenv(etcdctlPrefix + name)
}

// Author names the author of changes over a completed connection: the holder of the client certificate, whom etcd checks. Without one,
// or without TLS, it is the user of this machine, whom nothing proves.
func (c *Connection) Author(e Env) string {
	secure := func(endpoint string) bool { return strings.HasPrefix(endpoint, "https://") }
	if c.Cert == "" || !slices.ContainsFunc(c.Endpoints, secure) {
		return e.User
	}
	text, err := bounded.ReadFile(c.Cert, 1<<20)
	block, _ := pem.Decode(text)
	for rest := text; err == nil && block != nil && block.Type != "CERTIFICATE"; {
		block, rest = pem.Decode(rest)
	}
	if err != nil || block == nil {
		return e.User // the connection reports the file
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || cert.Subject.CommonName == "" {
		return e.User
	}
	if name, err := pki.ParseName(cert.Subject.CommonName); err == nil && name.Kind == pki.KindOperator {
		return name.Subject
	}
	return cert.Subject.CommonName
}

// Config returns how to connect to etcd.
func (c *Connection) Config() etcd.Config {
	endpoints := c.Endpoints
	if len(endpoints) == 0 {
		endpoints = []string{DefaultEndpoint}
	}
	return etcd.Config{Endpoints: endpoints, CACert: c.CACert, Cert: c.Cert, Key: c.Key, Prefix: c.Prefix, Timeout: c.Timeout}
}

// EnvironmentFlag is the flag -e/--environment.
type EnvironmentFlag struct {
	Name    string
	Default string        // of the operator's context
	Used    string        // the environment of this command, once it is known
	flags   []*pflag.Flag // one for each command that has it
}

// AddFlag adds the flag.
func (v *EnvironmentFlag) AddFlag(f *pflag.FlagSet) {
	f.StringVarP(&v.Name, "environment", "e", "", "environment, or environment@stack [PULLEY_ENVIRONMENT]")
	v.flags = append(v.flags, f.Lookup("environment"))
}

// None reports whether neither a flag, a variable nor the context names an environment.
func (v *EnvironmentFlag) None(e Env) bool {
	given := slices.ContainsFunc(v.flags, func(f *pflag.Flag) bool { return f.Changed })
	return v.Name == "" && !given && e.Getenv("PULLEY_ENVIRONMENT") == "" && v.Default == ""
}

// Ref returns the chosen environment. A missing flag is a usage error.
func (v *EnvironmentFlag) Ref(e Env) (model.Ref, error) {
	name := v.Name
	given := slices.ContainsFunc(v.flags, func(f *pflag.Flag) bool { return f.Changed })
	if name == "" && !given { // -e "$UNSET" must not select another fleet
		if name = e.Getenv("PULLEY_ENVIRONMENT"); name == "" {
			name = v.Default
		}
	}
	if name == "" {
		return model.Ref{}, Usagef("missing environment: give -e NAME or set PULLEY_ENVIRONMENT\n`pulley env list` lists them; `pulley context set --environment NAME` sets a default")
	}
	ref, err := model.ParseRef(name)
	if err == nil {
		v.Used = ref.String()
	}
	return ref, err
}
