package cmd_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"pulley/internal/testbed/etcdtest"
)

// patience limits a script's polling for an expected change.
const patience = 30 * time.Second

func serverOf(ts *testscript.TestScript) *etcdtest.Server {
	return ts.Value(serverKey{}).(*etcdtest.Server)
}

// usage fails a script with an invalid line.
func usage(ts *testscript.TestScript, wrong bool, text string) {
	if wrong {
		ts.Fatalf("usage: %s", text)
	}
}

// etcd up|down|full|roomy starts or stops the scenario's etcd, or makes it reject writes for lack of space.
func etcd(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "etcd up|down|full|roomy")
	switch args[0] {
	case "up":
		serverOf(ts).Up()
	case "down":
		serverOf(ts).Down()
	case "full", "roomy":
		ts.Check(serverOf(ts).Full(context.Background(), args[0] == "full"))
	default:
		ts.Fatalf("etcd is up, down, full or roomy")
	}
}

// put KEY VALUE writes a value that Pulley never writes.
func put(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 2, "put KEY VALUE")
	_, err := serverOf(ts).Client().Put(context.Background(), args[0], args[1])
	ts.Check(err)
}

// drop PREFIX deletes keys. At least one must exist.
func drop(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "drop PREFIX")
	if serverOf(ts).Drop(args[0]) == 0 {
		ts.Fatalf("no key begins with %s", args[0])
	}
}

// spoil KEY truncated|newer|foreign damages an existing value, and stores the original in a file.
func spoil(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 2, "spoil KEY truncated|newer|foreign")
	client := serverOf(ts).Client()
	resp, err := client.Get(context.Background(), args[0])
	ts.Check(err)
	if len(resp.Kvs) != 1 {
		ts.Fatalf("there is no key %s", args[0])
	}
	value := string(resp.Kvs[0].Value)
	bad := map[string]string{
		"truncated": value[:len(value)/2],
		"newer":     strings.Replace(value, `"v":1`, `"v":99`, 1),
		"foreign":   "locked by terraform",
	}[args[1]]
	if bad == "" || bad == value {
		ts.Fatalf("cannot make %q %s", value, args[1])
	}
	ts.Check(os.WriteFile(keptFile(ts, args[0]), resp.Kvs[0].Value, 0o600))
	_, err = client.Put(context.Background(), args[0], bad)
	ts.Check(err)
}

// mend KEY restores the value that spoil damaged.
func mend(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "mend KEY")
	_, err := serverOf(ts).Client().Put(context.Background(), args[0], ts.ReadFile(keptFile(ts, args[0])))
	ts.Check(err)
}

func keptFile(ts *testscript.TestScript, key string) string {
	return ts.MkAbs("kept" + strings.ReplaceAll(key, "/", "_"))
}

// release VERSION FILE publishes a control repository whose site.pp is FILE, with $WORK and $LONG replaced. Its folder
// is R.
func release(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 2, "release VERSION FILE")
	dir := ts.MkAbs("R")
	if _, err := os.Stat(dir); err != nil {
		ts.Check(ts.Exec("pulley", "init", dir))
		ts.Check(os.RemoveAll(filepath.Join(dir, "validate.d"))) // the starter's check fits only its own manifests
	}
	site := strings.NewReplacer("$WORK", ts.Getenv("WORK"), "$LONG", ts.Getenv("LONG")).Replace(ts.ReadFile(args[1]))
	ts.Check(os.WriteFile(filepath.Join(dir, "manifests", "site.pp"), []byte(site), 0o644))
	ts.Check(ts.Exec("pulley", "publish", dir, "--version", args[0]))
}

// fleet FILE NODE… stores the environment dev, promotes release 1.0.0 with this site.pp, and applies it on each node.
func fleet(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) == 0, "fleet FILE NODE ...")
	release(ts, false, []string{"1.0.0", args[0]})
	ts.Check(ts.Exec("pulley", "env", "apply", ts.MkAbs("R/environments/dev.yaml")))
	ts.Check(ts.Exec("pulley", "promote", "1.0.0"))
	for _, name := range args[1:] {
		node(ts, false, []string{name})
		ts.Check(ts.Exec("pulley-agent", "run", "--root", ts.MkAbs(name)))
	}
	starts(ts, false, []string{strconv.Itoa(len(args) - 1)})
}

// node NAME [SETTING …] writes a node's agent.yaml, with the scripted Puppet and short limits, and registers the node.
// A setting is a line of the file and replaces a line with the same key. The node's root is $WORK/NAME.
func node(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) == 0, "node NAME [SETTING ...]")
	settings := []string{
		"node: " + args[0], "environment: dev", "endpoints: [" + serverOf(ts).Endpoint + "]", "timeout: 2s", "verify_timeout: 2s",
		"puppet:", "  program: " + ts.MkAbs("fake/puppet"), "  state_dirs: [" + ts.MkAbs("fake/var/state") + "]",
	}
	for _, s := range args[1:] {
		key, _, _ := strings.Cut(s, ":")
		at := slices.IndexFunc(settings, func(line string) bool { return strings.HasPrefix(line, key+":") })
		switch {
		case at >= 0:
			settings[at] = s
		case strings.HasPrefix(s, " "):
			settings = append(settings, s)
		default:
			settings = append([]string{s}, settings...)
		}
	}
	dir := ts.MkAbs(args[0] + "/etc/pulley")
	ts.Check(os.MkdirAll(dir, 0o755))
	ts.Check(os.WriteFile(filepath.Join(dir, "agent.yaml"), []byte(strings.Join(settings, "\n")+"\n"), 0o600))
	ts.Check(ts.Exec("pulley", "nodes", "add", args[0]))
}

// starts N|some checks the number of starts of the scripted Puppet since the last `starts`.
func starts(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "starts N|some")
	want, err := strconv.Atoi(args[0])
	usage(ts, err != nil && args[0] != "some", "starts N|some")
	log := ts.MkAbs("fake/fake-starts")
	b, err := os.ReadFile(log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		ts.Fatalf("%v", err)
	}
	ts.Check(os.WriteFile(log, nil, 0o644))
	if got := strings.Count(string(b), "\n"); got != want && (args[0] != "some" || got == 0) {
		ts.Fatalf("Puppet was started %d times, want %d:\n%s", got, want, b)
	}
}

// code N COMMAND [ARG …] checks that the command exits with this code.
func code(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) < 2, "code N COMMAND [ARG ...]")
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// until TEXT COMMAND [ARG …] runs a command until its output matches TEXT, and logs only the last run.
func until(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) < 2, "until TEXT COMMAND [ARG ...]")
	want := regexp.MustCompile(args[0])
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		cmd := exec.CommandContext(context.Background(), "sh", append([]string{"-c", `exec "$0" "$@"`}, args[1:]...)...)
		cmd.Dir = ts.MkAbs(".")
		for _, name := range []string{"PATH", "HOME", "PULLEY_ENDPOINTS", "PULLEY_ENVIRONMENT", "SUDO_USER"} {
			cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
		}
		out, err := cmd.CombinedOutput()
		if want.Match(out) {
			ts.Logf("%s", out)
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%q never appeared; last (%v):\n%s", args[0], err, out)
		}
	}
}

// appears FILE waits for a file.
func appears(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "appears FILE")
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%s never appeared", args[0])
		}
	}
}

// running TEXT checks that a process of this machine has TEXT in its command line.
func running(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, len(args) != 1, "running TEXT")
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	ts.Check(err)
	found := slices.ContainsFunc(files, func(file string) bool {
		b, err := os.ReadFile(file)
		return err == nil && strings.Contains(strings.ReplaceAll(string(b), "\x00", " "), args[0])
	})
	if found == neg {
		ts.Fatalf("running %q is %t", args[0], found)
	}
}

var timestamp = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)

// shift FILE DURATION moves every time in a file. This simulates a clock that was wrong by DURATION and is now right.
func shift(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 2, "shift FILE DURATION")
	by, err := time.ParseDuration(args[1])
	ts.Check(err)
	moved := 0
	text := timestamp.ReplaceAllStringFunc(ts.ReadFile(args[0]), func(s string) string {
		at, err := time.Parse(time.RFC3339Nano, s)
		ts.Check(err)
		moved++
		return at.Add(by).Format(time.RFC3339Nano)
	})
	if moved == 0 {
		ts.Fatalf("there is no time in %s", args[0])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}

// capture NAME stores the output of the last command in a variable.
func capture(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "capture NAME")
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

// keys [NAME …] checks that these fields exist in the last printed JSON object, or in the first object of a list. A
// nested field is written as a.b. With `!`, none of them may exist.
func keys(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, len(args) == 0, "keys NAME ...")
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &v))
	found := fieldNames(v)
	for _, name := range args {
		if slices.Contains(found, name) == neg {
			ts.Fatalf("field %s; there are %s", name, strings.Join(found, " "))
		}
	}
}

// fieldNames returns the paths of all fields in a JSON value. Elements of a list have the path of the list.
func fieldNames(v any) []string {
	names := map[string]bool{}
	var walk func(prefix string, v any)
	walk = func(prefix string, v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(prefix, e)
			}
		case map[string]any:
			for name, e := range v {
				names[prefix+name] = true
				walk(fmt.Sprintf("%s%s.", prefix, name), e)
			}
		}
	}
	walk("", v)
	return slices.Sorted(maps.Keys(names))
}
