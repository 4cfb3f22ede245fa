//go:build e2e

package cmd_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	etcdclient "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"pulley/agent"
	"pulley/internal/provision"
)

// applyFleet is an etcd that checks its users, and a provider whose machines are folders, for many environments.
type applyFleet struct {
	*bootFleet
	etcd  *etcdclient.Client // as the administrator
	count atomic.Int32
}

// applyCase is one environment, and the machines that the provider made for it.
type applyCase struct {
	*applyFleet
	t          *testing.T
	scene      applyScene
	place, how string
	env        string
	ended      string // what there is in the end

	stop  context.CancelFunc
	off   chan struct{}
	boots map[string][]string // ids of all machines that ever were, by name
	said  []string            // by their agents
}

// twice is files.sh with a second web1 of each fleet for which there is DIR/copy-of-FLEET.
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
	f.must("pulley", "publish", "R", "--version", "1.0.0")
	return f
}

// admin is a plain client with the administrator's certificate, for what Pulley would never do.
func (f *applyFleet) admin() *etcdclient.Client {
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

func (f *applyFleet) applyCase(scene applyScene, place, how string) *applyCase {
	return &applyCase{applyFleet: f, scene: scene, place: place, how: how, env: fmt.Sprintf("%s%dx", scene.name, f.count.Add(1)), boots: map[string][]string{}}
}

func (c *applyCase) file(roles string) {
	c.write(c.env+".yaml", fmt.Sprintf(`provider: {driver: exec, command: [%s/twice.sh, %s/cloud]}
userdata: {servers: ["%s"], ca: ["%s"], steps: {agent: "off", hostname: "off", puppet: "off", schedule: "off"}}
roles:
%s`, c.dir, c.dir, c.server, c.pin, roles))
}

func (c *applyCase) must(args ...string) string {
	c.t.Helper()
	out, err := c.within(nil, "pulley", args...)
	if err != nil {
		c.powerOff()
		c.t.Fatalf("pulley %s: %v\n%s\nits machines:\n%s", strings.Join(args, " "), err, out, strings.Join(c.said, "\n"))
	}
	return out
}

// within runs one of the two programs, and kills it when it takes too long.
func (c *applyCase) within(env []string, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, program), args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = c.dir, append(slices.Clone(c.crashFleet.env), env...), time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// loseRecord has the books forget a machine.
func (c *applyCase) loseRecord() {
	if _, err := c.etcd.Delete(c.t.Context(), "/pulley/v1/environments/"+c.env+"/machines/web2"); err != nil {
		c.t.Fatal(err)
	}
}

// plantCopy has the provider show a second web1.
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

// unlock has etcd end the lease of the dead apply's lock, as it does when it heard nothing of it for a minute.
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

// powerOn begins to run the machines of the fleet, until powerOff.
func (c *applyCase) powerOn() {
	ctx, cancel := context.WithCancel(context.Background())
	c.stop, c.off = sync.OnceFunc(cancel), make(chan struct{})
	c.t.Cleanup(c.powerOff)
	go func() {
		defer close(c.off)
		done := map[string]bool{} // boots and requests
		for every := time.NewTicker(200 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				every.Stop()
				return
			case <-every.C:
				c.machines(ctx, done)
			}
		}
	}()
}

func (c *applyCase) powerOff() { c.stop(); <-c.off }

// machines does what machines do by themselves: each boots with its userdata, once, and comes to what its node is asked for.
func (c *applyCase) machines(ctx context.Context, done map[string]bool) {
	for name, id := range c.there() {
		if !slices.Contains(c.boots[name], id) {
			c.boots[name] = append(c.boots[name], id)
		}
		root := filepath.Join(c.dir, "roots", id)
		if !done[id] {
			done[id] = c.firstBoot(name, id, root) // else cloud-init's unit tries again
			continue
		}
		resp, err := c.etcd.Get(ctx, "/pulley/v1/environments/"+c.env+"/hosts/nodes/"+name)
		if err != nil || resp.Count == 0 {
			continue
		}
		var h agent.Host
		if json.Unmarshal(resp.Kvs[0].Value, &h) == nil && h.Request != nil && !done[h.Request.ID] {
			done[h.Request.ID] = c.agent("run", "--root", root)
		}
	}
}

var planIn = regexp.MustCompile(`(?s)/etc/pulley/first-boot.yaml 600 <<'PULLEY'\n(.*?)\nPULLEY\n`)

// firstBoot is what cloud-init and cron do with a machine, and reports whether it went well.
func (c *applyCase) firstBoot(name, id, root string) bool {
	place, err := filepath.Glob(filepath.Join(c.dir, "cloud", "*", c.env, name, "userdata"))
	if err != nil || len(place) != 1 {
		return false // it is gone
	}
	b, err := os.ReadFile(place[0])
	plan := planIn.FindSubmatch(b)
	if err != nil || plan == nil {
		return false
	}
	for path, text := range map[string]string{
		"etc/machine-id":             strings.ReplaceAll(id, "-", "") + "\n",
		"etc/pulley/agent.yaml":      "puppet:\n  program: " + filepath.Join(c.dir, "fake", "puppet") + "\n  state_dirs: [" + filepath.Join(c.dir, "fake", "var") + "]\n",
		"etc/pulley/first-boot.yaml": string(plan[1]) + "\n",
	} {
		path = filepath.Join(root, path)
		if os.MkdirAll(filepath.Dir(path), 0o755) != nil || os.WriteFile(path, []byte(text), 0o600) != nil {
			return false
		}
	}
	return c.agent("bootstrap", "--root", root) && (!c.scene.released || c.agent("run", "--root", root))
}

func (c *applyCase) agent(args ...string) bool {
	out, err := c.within(nil, "pulley-agent", args...)
	c.said = append(c.said, fmt.Sprintf("pulley-agent %s: %v\n%s", strings.Join(args, " "), err, out))
	return err == nil
}

// there is the ids of the fleet's machines by their names.
func (c *applyCase) there() map[string]string {
	ids := map[string]string{}
	files, _ := filepath.Glob(filepath.Join(c.dir, "cloud", "*", c.env, "*", "id"))
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil {
			ids[filepath.Base(filepath.Dir(file))] = strings.TrimSpace(string(b))
		}
	}
	return ids
}

// volatileApply is what differs between applies without meaning anything.
var volatileApply = regexp.MustCompile(`20\d\d-\d\d-\d\d[T ][0-9:.]+Z|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22,}|\b[0-9a-f]{8,}\b|\b20\d{6}T\d{6}Z-\d+|"(tries|attempts?|took[a-z_]*|epoch|rev|revision)":\d+,?`)

// end is everything that is left: each key and each user of etcd that is the environment's, and the machines, whether each is the
// one in the books and on the list of hosts. Times and ids are left out, and what was done twice counts once.
func (c *applyCase) end() string {
	c.t.Helper()
	lines := map[string]bool{}
	line := func(format string, args ...any) {
		text := strings.ReplaceAll(fmt.Sprintf(format, args...), c.env, "ENV")
		lines[volatileApply.ReplaceAllString(text, "…")] = true
	}
	there := c.there()
	for name, id := range there {
		flavor, _ := filepath.Glob(filepath.Join(c.dir, "cloud", "*", c.env, name, "flavor"))
		b, err := os.ReadFile(flavor[0])
		line("machine %s: %q %v, %d ever", name, b, err, len(c.boots[name]))
		if ids := c.boots[name]; ids[len(ids)-1] != id {
			c.t.Errorf("%s is %s, and was %q", name, id, ids)
		}
	}
	resp, err := c.etcd.Get(c.t.Context(), "/pulley/v1/", etcdclient.WithPrefix())
	if err != nil {
		c.t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		key, value := string(kv.Key), string(kv.Value)
		switch {
		case strings.Contains(key, "/tokens/") && strings.Contains(value, `"`+c.env+`"`), strings.Contains(key+"/", "/"+c.env+"/"):
			line("%s %s", key, value)
		}
		switch place, node := filepath.Split(key); place {
		case "/pulley/v1/environments/" + c.env + "/machines/":
			var r provision.Record
			err := json.Unmarshal(kv.Value, &r)
			line("record of %s: its machine is there %t, %v", node, r.ID == there[r.Name], err)
		case "/pulley/v1/environments/" + c.env + "/hosts/nodes/":
			var h agent.Host
			err := json.Unmarshal(kv.Value, &h)
			line("host %s: it is the machine %t, %v", node, h.MachineID == strings.ReplaceAll(there[node], "-", ""), err)
		}
	}
	users, err := c.etcd.UserList(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	roles, err := c.etcd.RoleList(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	for _, name := range slices.Concat(users.Users, roles.Roles) {
		if strings.Contains(name+"/", "/"+c.env+"/") {
			line("user or role %s", name)
		}
	}
	drained, _ := filepath.Glob(filepath.Join(c.dir, "drained."+c.env+".*"))
	for _, file := range drained {
		b, err := os.ReadFile(file)
		if n := strings.Count(string(b), "drained\n"); n < 1 || n > 2 {
			c.t.Errorf("%s: the hook ran %d times (%v)", file, n, err)
		}
		line("drained %s", filepath.Base(file))
	}
	return strings.Join(slices.Sorted(maps.Keys(lines)), "\n")
}
