package puppetservertest

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// PuppetDB is Debian's puppetdb with a PostgreSQL of its own.
type PuppetDB struct {
	daemon
	*Way // for clients

	own      string // where puppetdb listens
	client   *http.Client
	database daemon
	password string
}

const (
	puppetDBName = "puppetdb.test"
	puppetDBPort = "8081"
	databasePort = "5432"
	puppetDBConf = `[global]
vardir = %[1]s/var
logging-config = %[1]s/logback.xml
[database]
subname = //%[2]s:%[3]s/postgres
username = puppetdb
password = %[4]s
[jetty]
ssl-host = %[2]s
ssl-port = %[5]s
ssl-key = %[6]s
ssl-cert = %[7]s
ssl-ca-cert = %[8]s
[puppetdb]
certificate-allowlist = %[1]s/allowed
disable-update-checking = true
`
)

// PuppetDB makes a PuppetDB for one test, which is down until Up. It serves only clients with certificates of the allowed names.
func (s *Site) PuppetDB(t testing.TB, allowed ...string) *PuppetDB {
	t.Helper()
	d := &PuppetDB{daemon: daemon{Name: puppetDBName, dir: filepath.Join(s.Dir, puppetDBName)}}
	var err error
	if d.own, err = freeAddress(puppetDBPort); err != nil {
		t.Fatal(err)
	}
	d.Way = NewWay(t, net.JoinHostPort(d.own, puppetDBPort))
	files := s.Issue(t, Client{Name: puppetDBName, At: []string{d.Address, d.own}})
	if d.client, err = clientOf(files); err != nil {
		t.Fatal(err)
	}
	d.password = rand.Text()
	if err := d.configure(files, append(allowed, puppetDBName)); err != nil {
		t.Fatal(err)
	}
	return d
}

// Up starts PostgreSQL and PuppetDB, and returns when they answer: after 20 s. A test calls it once.
func (d *PuppetDB) Up(t testing.TB) {
	t.Helper()
	if err := d.startDatabase(t); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Kill)
	if err := d.serve("-cp", "/usr/share/puppetdb/puppetdb.jar", "clojure.main", "-m", "puppetlabs.puppetdb.core", "services",
		"--config", d.path("conf.d"), "--bootstrap-config", "/etc/puppetdb/bootstrap.cfg"); err != nil {
		t.Fatalf("%v\n%s", err, d.database.Log())
	}
}

func (d *PuppetDB) path(name string) string { return filepath.Join(d.dir, name) }

func (d *PuppetDB) configure(files Credentials, allowed []string) error {
	auth, err := os.ReadFile("/etc/puppetdb/conf.d/auth.conf")
	if err != nil {
		return fmt.Errorf("there is no PuppetDB here: apt-get install puppetdb: %w", err)
	}
	for file, content := range map[string]string{
		"conf.d/auth.conf":    string(auth),
		"conf.d/puppetdb.ini": fmt.Sprintf(puppetDBConf, d.dir, d.own, databasePort, d.password, puppetDBPort, files.Key, files.Cert, files.CA),
		"allowed":             strings.Join(allowed, "\n") + "\n",
		"logback.xml":         logging,
		"var/.keep":           "",
	} {
		if err := os.MkdirAll(filepath.Dir(d.path(file)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(d.path(file), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// startDatabase starts PostgreSQL, with the extension that PuppetDB needs. PuppetDB waits until it answers. PostgreSQL does not run as
// root, and its folder is not below one that only root reads.
func (d *PuppetDB) startDatabase(t testing.TB) error {
	programs, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(programs) == 0 {
		return errors.New("there is no PostgreSQL here: apt-get install postgresql")
	}
	bin := filepath.Dir(programs[len(programs)-1])
	dir, err := os.MkdirTemp("", "pulley-postgresql-")
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	data, password := filepath.Join(dir, "data"), filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte(d.password), 0o600); err != nil {
		return err
	}
	as := &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		if as.Credential, err = credential("postgres"); err != nil {
			return err
		}
		for _, file := range []string{dir, password} {
			if err := os.Chown(file, int(as.Credential.Uid), int(as.Credential.Gid)); err != nil {
				return err
			}
		}
	}
	command := func(program string, args ...string) *exec.Cmd {
		c := exec.Command(filepath.Join(bin, program), args...)
		c.Dir, c.SysProcAttr = dir, as
		return c
	}
	extension := command("postgres", "--single", "-D", data, "postgres")
	extension.Stdin = strings.NewReader("create extension pg_trgm\n")
	for _, c := range []*exec.Cmd{
		command("initdb", "--pgdata", data, "--username", "puppetdb", "--auth", "scram-sha-256", "--pwfile", password, "--encoding", "UTF8", "--locale", "C", "--no-sync"),
		extension,
	} {
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", c, err, out)
		}
	}
	d.database = daemon{Name: "postgresql", dir: dir}
	t.Cleanup(func() { d.database.end(t, syscall.SIGQUIT) }) // it also ends its children
	return d.database.run(command("postgres", "-D", data, "-h", d.own, "-p", databasePort, "-c", "unix_socket_directories=", "-c", "fsync=off"))
}

// credential is that of a user of this machine.
func credential(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
}

func clientOf(files Credentials) (*http.Client, error) {
	own, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(files.CA)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{own}, RootCAs: roots}}}, nil
}

// Facts submits facts of a node that have a time, as a Puppet server does.
func (d *PuppetDB) Facts(t testing.TB, certname string, at time.Time) {
	t.Helper()
	stamp := at.UTC().Format(time.RFC3339Nano)
	body, err := json.Marshal(map[string]any{"certname": certname, "environment": "production", "producer_timestamp": stamp, "producer": FirstName, "values": map[string]any{"kernel": "Linux"}})
	if err != nil {
		t.Fatal(err)
	}
	query := url.Values{"command": {"replace_facts"}, "version": {"5"}, "certname": {certname}, "producer-timestamp": {stamp}, "secondsToWaitForCompletion": {"60"}}
	d.request(t, http.MethodPost, "/pdb/cmd/v1?"+query.Encode(), body)
	if d.Deactivated(t, certname) {
		t.Fatalf("PuppetDB has %s as deactivated", certname)
	}
}

// Deactivated reports whether PuppetDB has a node as deactivated. PuppetDB must know it.
func (d *PuppetDB) Deactivated(t testing.TB, certname string) bool {
	t.Helper()
	var node struct {
		Certname    string
		Deactivated *time.Time
	}
	answer := d.request(t, http.MethodGet, "/pdb/query/v4/nodes/"+certname, nil)
	if err := json.Unmarshal(answer, &node); err != nil || node.Certname != certname {
		t.Fatalf("%s: %v", answer, err)
	}
	return node.Deactivated != nil
}

func (d *PuppetDB) request(t testing.TB, method, path string, body []byte) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "https://"+net.JoinHostPort(d.own, puppetDBPort)+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := d.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s, %s, %v\n%s", method, path, resp.Status, answer, err, d.Log())
	}
	return answer
}
