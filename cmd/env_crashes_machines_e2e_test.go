//go:build e2e

package cmd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	etcdclient "go.etcd.io/etcd/client/v3" // for writes that Pulley never makes

	"pulley/internal/facts"
	"pulley/internal/machines"
	"pulley/internal/model"
)

// ours is the provider's folder of machines with this installation's mark. Other machines are beside it.
const ours = "cloud/[0-9a-f]*"

// powerOn runs the machines of the fleet until powerOff.
func (c *applyCase) powerOn() {
	c.write("cloud/others/"+c.env+"/web1/id", "not ours")
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
				c.machines(done)
			}
		}
	}()
}

func (c *applyCase) powerOff() { c.stop(); <-c.off }

// machines simulates the machines: each boots once with its userdata, and its agent handles requests.
func (c *applyCase) machines(done map[string]bool) {
	for name, id := range c.there() {
		if !slices.Contains(c.boots[name], id) {
			c.boots[name] = append(c.boots[name], id)
		}
		root := filepath.Join(c.dir, "roots", id)
		if !done[id] {
			done[id] = c.firstBoot(name, id, root) // otherwise cloud-init's unit retries
			continue
		}
		if id, asked := c.asked.Load("/pulley/v1/environments/" + c.env + "/hosts/nodes/" + name); asked && !done[id.(string)] {
			done[id.(string)] = c.agent("run", "--root", root)
		}
	}
}

var planIn = regexp.MustCompile(`(?s)/etc/pulley/first-boot.yaml 600 <<'PULLEY'\n(.*?)\nPULLEY\n`)

// firstBoot does the work of cloud-init and cron on a machine, and reports whether it succeeded.
func (c *applyCase) firstBoot(name, id, root string) bool {
	place, err := filepath.Glob(filepath.Join(c.dir, ours, c.env, name, "userdata"))
	if err != nil || len(place) != 1 {
		return false // the machine is deleted
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
	out, err := c.within([]string{"PATH=" + os.Getenv("PATH")}, "pulley-agent", args...) // as under cron
	c.said = append(c.said, fmt.Sprintf("pulley-agent %s: %v\n%s", strings.Join(args, " "), err, out))
	return err == nil
}

// there returns the ids of the fleet's machines by name.
func (c *applyCase) there() map[string]string {
	ids := map[string]string{}
	files, _ := filepath.Glob(filepath.Join(c.dir, ours, c.env, "*", "id"))
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil {
			ids[filepath.Base(filepath.Dir(file))] = strings.TrimSpace(string(b))
		}
	}
	return ids
}

// volatileApply matches irrelevant differences between applies: times, ids, numbers of attempts, and reasons that
// mention a resumed apply.
var volatileApply = regexp.MustCompile(`20\d\d-\d\d-\d\d[T ][0-9:.]+Z|\b20\d{6}T\d{6}Z-\d+|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22,}|\b[0-9a-f]{8,}\b|"outcome":"(un)?changed"|` +
	`"(tries|attempts|took|revision)":\d+,?|"why":"[^"]*"|"reasons":\[[^\]]*\]|"step":"[a-z]*"`)

// end returns the final state: each key and each user of the environment in etcd, and the machines, with whether each
// is in the inventory and on the host list. It excludes times and ids, and counts repeated work once.
func (c *applyCase) end() string {
	c.t.Helper()
	lines := map[string]bool{}
	line := func(format string, args ...any) {
		text := strings.ReplaceAll(fmt.Sprintf(format, args...), c.env, "ENV")
		text = strings.ReplaceAll(text, `"joined":true,`, "") // an apply that resumes need not observe an earlier join
		if strings.Contains(text, `"finished":`) {            // the machine may be deleted between the reports of its last two steps
			text = strings.ReplaceAll(text, `"state":"started"`, `"state":"done"`)
		}
		lines[volatileApply.ReplaceAllString(ownAddresses.ReplaceAllString(text, ""), "…")] = true
	}
	if _, err := os.Stat(filepath.Join(c.dir, "cloud", "others", c.env, "web1", "id")); err != nil {
		c.t.Errorf("a foreign machine: %v", err)
	}
	there := c.there()
	for name, id := range there {
		flavor, _ := filepath.Glob(filepath.Join(c.dir, ours, c.env, name, "flavor"))
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
		case strings.HasPrefix(key, "/pulley/v1/runs/"+c.env+"/"): // number of runs
		case strings.HasPrefix(key, "/pulley/v1/facts/"+c.env+"/"): // they have times
			p, err := facts.Decode(kv.Value)
			line("%s %q, %v", key, slices.Sorted(maps.Keys(p.Facts)), err)
		case strings.Contains(value, `"revoked":`) && strings.Contains(value, `"used":0`): // of an interrupted order
		case strings.Contains(key, "/tokens/") && strings.Contains(value, `"`+c.env+`"`), strings.Contains(key+"/", "/"+c.env+"/"):
			line("%s %s", key, value)
		}
		switch place, node := filepath.Split(key); place {
		case "/pulley/v1/environments/" + c.env + "/machines/":
			var r machines.Record
			err := json.Unmarshal(kv.Value, &r)
			line("record of %s: its machine exists %t, %v", node, r.ID == there[r.Name], err)
		case "/pulley/v1/environments/" + c.env + "/hosts/nodes/":
			var h model.Host
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
