package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"pulley/internal/cli"
	"pulley/internal/etcd"
)

// Thirteen nodes with the largest status that etcd takes, and an environment in which nothing can be read, stopped `status`, rollouts, the
// classifier and `doctor` for all, and serve did not start again.
func TestLargeAndForeignValuesStopNoOthers(t *testing.T) {
	t.Parallel()
	dir, files := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"dev.yaml":              "puppet: {servers: {eu1: {address: 10.0.0.1}}}\nenc: {classes: {ntp: {}}}\nroles:\n  web: {cardinality: 14}\n",
		"one/manifests/site.pp": "node default { }\n", "one/environments/dev.yaml": "roles:\n  web: {cardinality: 14}\n",
		"two/manifests/site.pp": "node default { notice('two') }\n", "two/environments/dev.yaml": "roles:\n  web: {cardinality: 14}\n",
	} {
		file := filepath.Join(files, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var ahead atomic.Int64
	out, stop := serveAt(t, dir, &ahead)
	admin := filepath.Join(dir, "pki", "admin.pem")
	config := etcd.Config{CACert: filepath.Join(dir, "pki", "bundle.pem"), Cert: admin, Key: admin}
	run := func(want int, args ...string) string {
		t.Helper()
		var said bytes.Buffer
		env := cli.Env{Stdin: &bytes.Buffer{}, Stdout: &said, Stderr: &said, Now: time.Now, User: "ann", Getenv: func(name string) string {
			return map[string]string{
				"PULLEY_ENDPOINTS": config.Endpoints[0], "PULLEY_CACERT": config.CACert, "PULLEY_CERT": admin, "PULLEY_KEY": admin, "HOME": dir, "XDG_CACHE_HOME": dir,
			}[name]
		}}
		if code := Main(t.Context(), env, append(args, "--timeout", "60s")); code != want {
			t.Errorf("pulley %s: exit code %d, want %d:\n%.3000s", strings.Join(args, " "), code, want, &said)
		}
		return said.String()
	}
	says := func(said string, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if !strings.Contains(said, text) {
				t.Errorf("it does not contain %q:\n%.3000s", text, said)
			}
		}
	}
	config.Endpoints = []string{out.find(t, `PULLEY_ENDPOINTS=(\S+)`)}
	run(0, "env", "apply", filepath.Join(files, "dev.yaml"))
	run(0, "publish", filepath.Join(files, "one"), "--version", "1.0.0", "--no-validate")
	run(0, "publish", filepath.Join(files, "two"), "--version", "2.0.0", "--no-validate")
	run(0, "promote", "1.0.0", "-e", "dev")
	tls, err := config.TLS()
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: config.Endpoints, TLS: tls, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	put := func(key, value string) {
		t.Helper()
		if _, err := c.Put(t.Context(), "/pulley/v1/"+key, value); err != nil {
			t.Fatal(err)
		}
	}
	large := `{"v":1,"why":"` + strings.Repeat("x", 1_450_000) + `"}`
	for i := range 14 {
		node := fmt.Sprintf("web%d", i+1)
		run(0, "nodes", "add", node, "-e", "dev")
		if i > 0 { // one good node
			put("status/dev/"+node, large)
			put("environments/dev/hosts/exports/"+node, large)
		}
	}
	for _, key := range []string{
		"spec", "gate", "statement", "desired/default", "desired/nodes/web1", "history/000000000001", "rollbacks/000000000001", "assigned/web1", "job", "previews/web1",
		"campaigns/r1/plan", "campaigns/r1/state", "data/head", "hosts/exports/web9", "hosts/nodes/web9", "holds/all", "agent", "machines/web9", "applying", "acts/x", "provisioning",
	} {
		put("environments/bad/"+key, `{"v":99}`)
	}
	for _, kind := range []string{"status", "facts", "identities", "precreated", "cleanups", "presigned", "firstboots", "machines", "floods", "retirements", "recipients"} {
		put(kind+"/bad/web9", "locked by terraform")
	}
	for key, value := range map[string]string{
		"environments/dev/provisioning": "x", "releases/9.9.9": "x", "agents/9.9.9": "x", "withdrawn/9.9.9": "x", "notices/x": "x", "disk": large, "installation": `{"v":99}`, "certificates/web1": "x", "publishing/x": "x", "pruning": "x",
		"tokens/nodes/00000000": "x", "tokens/operators/00000001": `{"v":1}`, "operators/eve": "x", "operators/admin": "x", "environments/a b/spec": "x", "environments/a%20b/spec": "x", "status/d%65v/web1": "x",
	} {
		put(key, value)
	}
	_ = c.Close()
	if code := stop(true); code != cli.ExitDone {
		t.Fatalf("serve ended with %d:\n%s", code, out)
	}
	out, stop = serveAt(t, dir, &ahead)
	config.Endpoints[0] = out.find(t, `PULLEY_ENDPOINTS=(\S+)`)

	says(run(0, "status", "-e", "dev"), "web14", "status/dev/web2: its value has 1416 KiB")
	works := func(bad int) {
		t.Helper()
		if said := run(0, "nodes", "-e", "dev"); bad > 0 {
			says(said, "warning: cannot read key /pulley/v1/environments/dev/provisioning: ", "run `pulley doctor`: it names the command")
		}
		if said := run(0, "env", "list"); strings.Contains(said, "a b") {
			t.Errorf("it is no environment:\n%s", said)
		}
		says(run(0, "enc", "web1"), "ntp: {}")
		says(run(1, "enc", "web20"), "there is no such node in any environment")
		says(run(0, "releases"), "2.0.0")
		run(bad, "agents", "list")
		run(0, "token", "list")
		run(0, "operators", "list")
	}
	works(1)
	says(run(1, "doctor"), "status/dev/web14: its value has 1416 KiB", "pulley doctor --delete /pulley/v1/status/dev/web14",
		"cannot read key /pulley/v1/environments/bad/spec", "pulley doctor --delete /pulley/v1/firstboots/bad/web9")
	says(run(1, "releases", "show", "2.0.0"), "cannot read whether bad uses it: ")
	says(run(0, "rollout", "start", "2.0.0", "-e", "dev"), "2.0.0")
	says(run(0, "rollout", "list", "-e", "dev"), "2.0.0")
	listed := regexp.MustCompile("`pulley doctor --delete ([^`]+)`")
	for range 5 { // of some names, it lists a few keys
		args := []string{"doctor", "--yes"}
		for _, m := range listed.FindAllStringSubmatch(run(1, "doctor"), -1) {
			args = append(args, "--delete", strings.Trim(m[1], "'"))
		}
		if len(args) == 2 {
			break
		}
		said := run(0, args...)
		if strings.Contains(said, "operators/admin") {
			says(said, "the operator loses its access")
			run(0, "ca", "admin", "--data-dir", dir, "--yes")
		}
	}
	if said := run(1, "doctor"); strings.Contains(said, "cannot read key") {
		t.Errorf("a key stays:\n%.3000s", said)
	}
	works(0)
	if code := stop(true); code != cli.ExitDone {
		t.Errorf("serve ended with %d:\n%s", code, out)
	}
	out, stop = serveAt(t, dir, &ahead)
	config.Endpoints[0] = out.find(t, `PULLEY_ENDPOINTS=(\S+)`)
	works(0)
	run(0, "rollout", "list", "-e", "dev")
	if code := stop(true); code != cli.ExitDone {
		t.Errorf("serve ended with %d:\n%s", code, out)
	}
}
