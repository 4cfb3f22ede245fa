//go:build e2e

package cmd_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	etcdclient "go.etcd.io/etcd/client/v3" // for writes that Pulley never makes
	"go.uber.org/zap"                      // required by etcd's client

	"pulley/internal/model"
)

// applyFleet is an etcd with authentication, and a provider whose machines are folders, for many environments.
type applyFleet struct {
	*bootFleet
	etcd  *etcdclient.Client // as the administrator
	asked sync.Map           // newest requests to nodes: ids by keys of the host list
	count atomic.Int32
}

// applyCase is one environment, and its machines from the provider.
type applyCase struct {
	*applyFleet
	t     *testing.T
	scene applyScene
	place string
	env   string
	ended string // the final state

	stop  context.CancelFunc
	off   chan struct{}
	boots map[string][]string // ids of all machines ever created, by name
	said  []string            // output of their agents
}

// twice is files.sh with a second web1 for each fleet with a file DIR/copy-of-FLEET.
const twice = `#!/bin/sh
set -eu
request=$(cat)
mark=$(printf %%s "$request" | grep -o '"mark":{[^}]*}' | head -n 1)
fleet=${mark##*\"fleet\":\"}
copy=$1/copy-of-${fleet%%%%\"*}
real() { printf %%s "$request" | %s "$1"; }
[ -e "$copy" ] || { real "$1" && exit; }
case $request in
*'"do":"list"'*) real "$1" | sed "s/\"machines\":\[/&{\"name\":\"web1\",\"id\":\"copy\",\"state\":\"running\",$mark},/" ;;
*'"do":"delete"'*'"id":"copy"'*) rm -f "$copy" && echo '{}' ;;
*) real "$1" ;;
esac
`

func newApplyFleet(t *testing.T) *applyFleet {
	f := &applyFleet{bootFleet: newBootFleet(t, 0)}
	f.etcd = f.admin()
	go f.watchRequests()
	f.write("twice.sh", fmt.Sprintf(twice, filepath.Join(repository, "cmd/testdata/providers/files.sh")))
	f.must("pulley", "init", "R")
	f.write("R/manifests/site.pp", "node default { }\n# fake: file "+f.dir+"/machine/%{certname} one\n")
	f.write("R/retire.d/10-drain", "#!/bin/sh\necho drained >>"+f.dir+"/drained.$PULLEY_ENVIRONMENT.$PULLEY_NODE\n")
	for _, script := range []string{"twice.sh", "R/retire.d/10-drain"} {
		if err := os.Chmod(filepath.Join(f.dir, script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(f.dir, "R", "validate.d")); err != nil {
		t.Fatal(err)
	}
	f.must("pulley", "publish", "R", "--version", "1.0.0", "--no-puppet")
	return f
}

// admin returns a plain client with the administrator's certificate, for writes that Pulley never makes.
func (f *bootFleet) admin() *etcdclient.Client {
	f.t.Helper()
	said := map[string]string{}
	for _, v := range f.crashFleet.env {
		name, value, _ := strings.Cut(v, "=")
		said[name] = value
	}
	pair, err := tls.LoadX509KeyPair(said["PULLEY_CERT"], said["PULLEY_KEY"])
	if err != nil {
		f.t.Fatal(err)
	}
	pem, err := os.ReadFile(said["PULLEY_CACERT"])
	if err != nil {
		f.t.Fatal(err)
	}
	secure := &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	secure.RootCAs.AppendCertsFromPEM(pem)
	c, err := etcdclient.New(etcdclient.Config{Endpoints: []string{said["PULLEY_ENDPOINTS"]}, TLS: secure, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = c.Close() })
	return c
}

// watchRequests watches the requests to nodes, to save their agents a read every minute.
func (f *applyFleet) watchRequests() {
	for resp := range f.etcd.Watch(f.t.Context(), "/pulley/v1/environments/", etcdclient.WithPrefix()) {
		for _, ev := range resp.Events {
			var h model.Host
			if key := string(ev.Kv.Key); strings.Contains(key, "/hosts/nodes/") && json.Unmarshal(ev.Kv.Value, &h) == nil && h.Request != nil {
				f.asked.Store(key, h.Request.ID)
			}
		}
	}
}

func (f *applyFleet) applyCase(scene applyScene, place string) *applyCase {
	return &applyCase{applyFleet: f, scene: scene, place: place, env: fmt.Sprintf("%s%dx", scene.name, f.count.Add(1)), boots: map[string][]string{}}
}

// file writes the environment's file, with these roles.
func (c *applyCase) file(roles string) {
	c.write(c.env+".yaml", fmt.Sprintf(`provider: {driver: exec, command: [%s, %s/cloud]}
userdata: {servers: ["%s"], ca: ["%s"], steps: {agent: "off", hostname: "off", puppet: "off", schedule: "off"}}
roles:
%s`, c.scene.provider(c.dir), c.dir, c.server, c.pin, roles))
}

// provider is the program that creates the machines.
func (s applyScene) provider(dir string) string {
	if s.twice {
		return filepath.Join(dir, "twice.sh")
	}
	return filepath.Join(repository, "cmd/testdata/providers/files.sh")
}

func (c *applyCase) must(args ...string) string {
	c.t.Helper()
	out, err := c.pulley(nil, args...)
	if err != nil {
		c.powerOff()
		c.t.Fatalf("pulley %s: %v\n%s\nits machines:\n%s", strings.Join(args, " "), err, out, strings.Join(c.said, "\n"))
	}
	return out
}

// pulley runs the operator's command with additional environment variables.
func (c *applyCase) pulley(env []string, args ...string) (string, error) {
	return c.within(slices.Concat(c.crashFleet.env, env), "pulley", args...)
}

// within runs one of the two programs, and kills it at its deadline.
func (c *applyCase) within(env []string, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, program), args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = c.dir, env, time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// loseRecord deletes a machine record from the inventory.
func (c *applyCase) loseRecord() {
	if _, err := c.etcd.Delete(c.t.Context(), "/pulley/v1/environments/"+c.env+"/machines/web2"); err != nil {
		c.t.Fatal(err)
	}
}

// plantCopy makes the provider list a second web1.
func (c *applyCase) plantCopy() { c.write("cloud/copy-of-"+c.env, "") }

func (c *applyCase) lock() *etcdclient.GetResponse {
	c.t.Helper()
	resp, err := c.etcd.Get(c.t.Context(), "/pulley/v1/environments/"+c.env+"/applying")
	if err != nil {
		c.t.Fatal(err)
	}
	return resp
}

func (c *applyCase) locked() bool { return c.lock().Count > 0 }

// unlock revokes the lease of the dead apply's lock, as etcd does after a minute without a renewal.
func (c *applyCase) unlock() {
	c.t.Helper()
	kvs := c.lock().Kvs
	if len(kvs) != 1 {
		c.t.Fatal("the apply that died has left no lock")
	}
	if _, err := c.etcd.Revoke(c.t.Context(), etcdclient.LeaseID(kvs[0].Lease)); err != nil {
		c.t.Fatal(err)
	}
}
