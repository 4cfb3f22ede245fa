// Package contexts owns config.yaml, the file of an operator's contexts. A context names a fleet: the connection to its etcd, the
// identity, the servers of joins, and the operator's defaults.
//
// It must never talk to etcd, and never write a fleet's connection into the context of another fleet.
package contexts

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"gopkg.in/yaml.v3"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/model"
	"pulley/internal/pki"
)

// Context is one fleet, as one operator reaches it. All paths are absolute.
type Context struct {
	Endpoints   []string `yaml:"endpoints,flow,omitempty" json:"endpoints"`          // etcd's client URLs
	CACert      string   `yaml:"cacert,omitempty" json:"cacert,omitempty"`           // file of etcd's CA certificates
	Cert        string   `yaml:"cert,omitempty" json:"cert,omitempty"`               // file of the operator's certificate
	Key         string   `yaml:"key,omitempty" json:"key,omitempty"`                 // file of its key
	Prefix      string   `yaml:"prefix,omitempty" json:"prefix,omitempty"`           // of every key in etcd
	Servers     []string `yaml:"servers,flow,omitempty" json:"servers,omitempty"`    // URLs of pulley serve
	Environment string   `yaml:"environment,omitempty" json:"environment,omitempty"` // for commands without -e
	SignKey     string   `yaml:"sign_key,omitempty" json:"sign_key,omitempty"`       // for commands without --sign-key
}

// File is the content of config.yaml.
type File struct {
	Current  string             `yaml:"current,omitempty"` // name of the context that counts; "" for none
	Contexts map[string]Context `yaml:"contexts,omitempty"`
}

// maxFile limits config.yaml, in bytes.
const maxFile = 1 << 20

// Folder is the folder of config.yaml and of the identities of logins: $XDG_CONFIG_HOME/pulley, or .config/pulley in the home
// folder.
func Folder(getenv func(string) string) (string, error) {
	if dir := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) { // the specification ignores a relative one
		return filepath.Join(dir, "pulley"), nil
	}
	home := getenv("HOME")
	if home == "" {
		return "", errors.New("cannot find your home folder\nset HOME")
	}
	return filepath.Join(home, ".config", "pulley"), nil
}

// Path is the path of config.yaml.
func Path(getenv func(string) string) (string, error) {
	dir, err := Folder(getenv)
	return filepath.Join(dir, "config.yaml"), err
}

// Read reads a file. A missing file has no context.
func Read(path string) (File, error) {
	var f File
	b, err := bounded.ReadFile(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return f, nil
	}
	if err == nil && len(bytes.TrimSpace(b)) > 0 {
		d := yaml.NewDecoder(bytes.NewReader(b))
		d.KnownFields(true)
		err = d.Decode(&f)
	}
	if err != nil {
		problem := strings.ReplaceAll(err.Error(), " in type contexts.File", "")
		problem = strings.ReplaceAll(problem, " in type contexts.Context", " in a context")
		return File{}, fmt.Errorf("cannot read the contexts of %s: %s\ncorrect the file, or move it away and run `pulley login` again", path, problem)
	}
	return f, nil
}

// lockTimeout limits the wait for another command that writes the file.
const lockTimeout = 5 * time.Second

// Change reads a file, lets do change the content, and writes it. Other commands wait meanwhile.
func Change(path string, do func(*File) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("cannot write the contexts: %w", err)
	}
	unlock, err := lock(filepath.Join(filepath.Dir(path), ".config.lock"))
	if err != nil {
		return fmt.Errorf("cannot write the contexts of %s: %w", path, err)
	}
	defer unlock()
	f, err := Read(path)
	if err != nil {
		return err
	}
	if f.Contexts == nil {
		f.Contexts = map[string]Context{}
	}
	if err := do(&f); err != nil {
		return err
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err = enc.Encode(f); err == nil {
		err = atomicfile.Replace(path, b.Bytes(), 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot write the contexts to %s: %w", path, err)
	}
	return nil
}

// lock waits for the lock of a file, for a limited time.
func lock(path string) (unlock func(), err error) {
	f, err := atomicfile.OpenLock(path)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(lockTimeout); ; time.Sleep(10 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(end) {
			_ = f.Close()
			return nil, fmt.Errorf("cannot lock %s: %w", path, err)
		}
	}
}

// Names lists the contexts.
func (f File) Names() []string { return slices.Sorted(maps.Keys(f.Contexts)) }

// Get returns a context.
func (f File) Get(name string) (Context, error) {
	if c, ok := f.Contexts[name]; ok {
		return c, nil
	}
	hint := "`pulley context list` lists them"
	if near := model.SuggestName(name, f.Names()); near != "" {
		hint = "did you mean " + near + "?"
	}
	return Context{}, fmt.Errorf("cannot find context %q\n%s", name, hint)
}

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// CheckName refuses a name that could not be a file's name, or is no single word.
func CheckName(name string) error {
	if validName.MatchString(name) {
		return nil
	}
	return fmt.Errorf("cannot use %q as the name of a context: use at most 63 letters, digits, dots, dashes and underscores", name)
}

// NameFor returns the usual name of a context, from a URL of its fleet: the host, or "local" for this machine.
func NameFor(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return "local"
	}
	host := u.Hostname()
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return "local"
	}
	host = strings.Trim(strings.Map(func(r rune) rune {
		if validName.MatchString(string(r)) || r == '.' {
			return r
		}
		return '-'
	}, host), ".-")
	if CheckName(host) != nil {
		return "local"
	}
	return host
}

// OfFleet reports whether the context's CA is one of these, by their fingerprints.
func (c Context) OfFleet(pins []string) bool {
	return c.CACert != "" && HasPin(c.CACert, pins)
}

// HasPin reports whether a file of CA certificates contains one with such a fingerprint.
func HasPin(file string, pins []string) bool {
	text, err := bounded.ReadFile(file, maxFile)
	if err != nil {
		return false
	}
	certs, err := pki.ParseCertificates(text)
	return err == nil && slices.ContainsFunc(certs, func(c *x509.Certificate) bool { return slices.Contains(pins, pki.Fingerprint(c)) })
}

// maxNumber limits the names that FreeName tries.
const maxNumber = 100

// FreeName returns a name for the context of a fleet: name, or name-2, name-3 and so on. usable decides about a name; there may
// be a context of that name.
func (f File) FreeName(name string, usable func(name string, c Context, exists bool) bool) (string, error) {
	for n := 1; n <= maxNumber; n++ {
		try := name
		if n > 1 {
			try = fmt.Sprintf("%s-%d", name, n)
		}
		c, exists := f.Contexts[try]
		if usable(try, c, exists) {
			return try, nil
		}
	}
	return "", fmt.Errorf("cannot find a free name for a context: %s to %s-%d are of other fleets\ngive --context NAME", name, name, maxNumber)
}

// Connect sets the connection of a context: the same values as in with, except for the operator's defaults, which it keeps. The
// context becomes the current one if there is none, or with use.
func (f *File) Connect(name string, with Context, use bool) {
	old := f.Contexts[name]
	with.Environment, with.SignKey = old.Environment, old.SignKey
	f.Contexts[name] = with
	if _, ok := f.Contexts[f.Current]; use || !ok {
		f.Current = name
	}
}
