package cmd_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"pulley/internal/pki"
	"pulley/internal/testbed/etcdtest"
)

// patience limits a script's polling for an expected change.
const patience = 2 * time.Minute

func serverOf(ts *testscript.TestScript) *etcdtest.Server {
	return ts.Value(serverKey{}).(*etcdtest.Server)
}

// usage fails a script with an invalid line.
func usage(ts *testscript.TestScript, wrong bool, text string) {
	if wrong {
		ts.Fatalf("usage: %s", text)
	}
}

// etcd up|down|full|roomy|small starts or stops the scenario's etcd, makes it reject writes for lack of space, or limits it to 16 MiB.
func scriptEtcd(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "etcd up|down|full|roomy|small")
	switch args[0] {
	case "up":
		serverOf(ts).Up()
	case "down":
		serverOf(ts).Down()
	case "full", "roomy":
		ts.Check(serverOf(ts).Full(context.Background(), args[0] == "full"))
	case "small":
		serverOf(ts).Quota(16 << 20)
	default:
		ts.Fatalf("etcd is up, down, full, roomy or small")
	}
}

// put KEY VALUE writes a value that Pulley never writes.
func put(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 2, "put KEY VALUE")
	_, err := serverOf(ts).Client().Put(context.Background(), args[0], args[1])
	ts.Check(err)
}

// delete PREFIX deletes keys. At least one must exist.
func deleteKeys(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "delete PREFIX")
	if serverOf(ts).Drop(args[0]) == 0 {
		ts.Fatalf("no key begins with %s", args[0])
	}
}

// damage KEY truncated|newer|foreign damages an existing value, and stores the original in a file.
func damage(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 2, "damage KEY truncated|newer|foreign")
	client := serverOf(ts).Client()
	resp, err := client.Get(context.Background(), args[0])
	ts.Check(err)
	if len(resp.Kvs) != 1 {
		ts.Fatalf("there is no key %s", args[0])
	}
	value := string(resp.Kvs[0].Value)
	bad := map[string]string{
		"truncated": value[:len(value)/2],
		"newer":     regexp.MustCompile(`"v":\d+`).ReplaceAllLiteralString(value, `"v":99`),
		"foreign":   "locked by terraform",
	}[args[1]]
	if bad == "" || bad == value {
		ts.Fatalf("cannot make %q %s", value, args[1])
	}
	ts.Check(os.WriteFile(keptFile(ts, args[0]), resp.Kvs[0].Value, 0o600))
	_, err = client.Put(context.Background(), args[0], bad)
	ts.Check(err)
}

// restore KEY restores the value that damage changed.
func restore(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "restore KEY")
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
	ts.Check(ts.Exec("pulley", "publish", dir, "--version", args[0], "--no-puppet"))
}

// fleet FILE NODE… stores the environment dev, promotes release 1.0.0 with this site.pp, and applies it on each node.
func scriptFleet(ts *testscript.TestScript, neg bool, args []string) {
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

// private FOLDER checks that only the owner can read anything in a folder, and that its own entries say so themselves.
func private(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "private FOLDER")
	top := ts.MkAbs(args[0])
	ts.Check(filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type() == fs.ModeSymlink {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			err = fmt.Errorf("%s has mode %s", path, info.Mode())
		}
		if err == nil && e.IsDir() && path != top {
			return filepath.SkipDir // closed, with all that it contains
		}
		return err
	}))
}

// until TEXT COMMAND [ARG …] runs a command until its output matches TEXT, and logs only the last run. The pauses grow: each run costs
// as much of the processor as what the script waits for.
func until(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) < 2, "until TEXT COMMAND [ARG ...]")
	want := regexp.MustCompile(args[0])
	end := time.Now().Add(patience)
	for pause := 50 * time.Millisecond; ; time.Sleep(pause) {
		pause = min(pause*3/2, 500*time.Millisecond)
		cmd := exec.CommandContext(context.Background(), "sh", append([]string{"-c", `exec "$0" "$@"`}, args[1:]...)...)
		cmd.Dir = ts.MkAbs(".")
		cmd.Env = surroundings(ts)
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

// surroundings are the variables of a script that matter to its programs.
func surroundings(ts *testscript.TestScript) (all []string) {
	for _, name := range []string{
		"PATH", "HOME", "WORK", "PULLEY_ENDPOINTS", "PULLEY_CACERT", "PULLEY_CERT", "PULLEY_KEY", "PULLEY_ENVIRONMENT", "SUDO_USER",
		"ETCDCTL_ENDPOINTS", "ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY",
	} {
		if value := ts.Getenv(name); value != "" {
			all = append(all, name+"="+value)
		}
	}
	return all
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

// dump FILE [WITHOUT] writes the content of etcd to a file, key by key, except keys that contain WITHOUT.
func dump(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) < 1 || len(args) > 2, "dump FILE [WITHOUT]")
	var b strings.Builder
	for _, key := range serverOf(ts).Keys() {
		if len(args) == 2 && strings.Contains(key, args[1]) {
			continue
		}
		resp, err := serverOf(ts).Client().Get(context.Background(), key)
		ts.Check(err)
		for _, kv := range resp.Kvs {
			fmt.Fprintf(&b, "%s %q\n", key, kv.Value)
		}
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(b.String()), 0o600))
}

// age DURATION makes all machine records in the inventory older: a plan waits for young machines.
func age(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "age DURATION")
	by, err := time.ParseDuration(args[0])
	ts.Check(err)
	for _, key := range serverOf(ts).Keys() {
		if !strings.Contains(key, "/machines/") || !strings.Contains(key, "/environments/") {
			continue
		}
		resp, err := serverOf(ts).Client().Get(context.Background(), key)
		ts.Check(err)
		for _, kv := range resp.Kvs {
			var record map[string]any
			ts.Check(json.Unmarshal(kv.Value, &record))
			at, err := time.Parse(time.RFC3339, record["at"].(string))
			ts.Check(err)
			record["at"] = at.Add(-by).Format(time.RFC3339)
			b, err := json.Marshal(record)
			ts.Check(err)
			_, err = serverOf(ts).Client().Put(context.Background(), key, string(b))
			ts.Check(err)
		}
	}
}

// agent VERSION FILE [FAULT] writes a pulley-agent that reports this version. With a fault, it fails in that way
// (testdata/badagent).
func agentProgram(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) < 2 || len(args) > 3, "agent VERSION FILE [FAULT]")
	b, err := agentOf(args[0], strings.Join(args[2:], ""))
	ts.Check(err)
	to := ts.MkAbs(args[1])
	ts.Check(os.MkdirAll(filepath.Dir(to), 0o755))
	ts.Check(os.WriteFile(to+".new", b, 0o755))
	ts.Check(os.Rename(to+".new", to))
}

// The texts in a build that agentOf replaces by others of the same length: a build for each version takes minutes.
const (
	versionMark = "7.9.3"
	faultMark   = "_________fault__________"
)

var (
	goodAgent = sync.OnceValues(func() ([]byte, error) { return buildAgent("./pulley-agent", "") })
	badAgent  = sync.OnceValues(func() ([]byte, error) {
		return buildAgent("./testdata/badagent", " -X main.fault="+faultMark+" -X main.real="+filepath.Join(bin, "pulley-agent"))
	})
)

func buildAgent(from, flags string) ([]byte, error) {
	program := filepath.Join(bin, "agents", filepath.Base(from))
	cmd := exec.Command("go", "build", "-tags", "failpoint", "-ldflags", "-s -w -X main.version="+versionMark+flags, "-o", program, from)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cannot build %s: %w\n%s", from, err, out)
	}
	return os.ReadFile(program)
}

// agentOf returns a pulley-agent of this version, with a fault unless it is "".
func agentOf(version, fault string) ([]byte, error) {
	build := goodAgent
	if fault != "" {
		build = badAgent
	}
	b, err := build()
	if err != nil {
		return nil, err
	}
	if len(version) != len(versionMark) || len(fault) > len(faultMark) {
		return nil, fmt.Errorf("cannot make agent %s %s: the version must have %d characters, the fault at most %d", version, fault, len(versionMark), len(faultMark))
	}
	b = bytes.ReplaceAll(b, []byte(versionMark), []byte(version))
	return bytes.ReplaceAll(b, []byte(faultMark), fmt.Appendf(nil, "%-*s", len(faultMark), fault)), nil
}

var (
	exports   = regexp.MustCompile(`(?m)^export (PULLEY_\w+=.*)$`)
	joinsAt   = regexp.MustCompile(`serve at (https://[0-9.:]+) with`)
	firstPins = regexp.MustCompile(`fingerprints? (?:are|is) (sha256:[0-9a-f]{64})`)
)

// secured runs `pulley serve --auth` until the script ends, beside the scenario's own etcd, and sets the operators'
// variables to it. From here on the script is its administrator. $SERVE is the address for joins, $PIN its CA.
func secured(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) > 0, "secured")
	log := ts.MkAbs("secured.log")
	out, err := os.Create(log)
	ts.Check(err)
	cmd := exec.CommandContext(context.Background(), "sh", "-c", `exec pulley serve --auth --data-dir "$0" --listen 127.0.0.1:0 --listen-https 127.0.0.1:0`, ts.MkAbs("secured"))
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{"PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("HOME")}, out, out
	ts.Check(cmd.Start())
	ts.Defer(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		out.Close()
	})
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		text := ts.ReadFile(log)
		at, pin := joinsAt.FindStringSubmatch(text), firstPins.FindStringSubmatch(text)
		if at != nil && pin != nil && strings.Contains(text, "PULLEY_ENDPOINTS=") {
			ts.Setenv("SERVE", at[1])
			ts.Setenv("PIN", pin[1])
			for _, m := range exports.FindAllStringSubmatch(text, -1) {
				name, value, _ := strings.Cut(m[1], "=")
				ts.Setenv(name, value)
			}
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("serve does not come up:\n%s", text)
		}
	}
}

// outdated starts a server whose certificate ended long ago, as a machine with a clock that is ahead sees every server.
// $OUTDATED is its URL, $OUTDATED_CA the file of its CA and $OUTDATED_PIN the CA's fingerprint.
func outdated(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) > 0, "outdated")
	ca, err := pki.OpenCA(ts.MkAbs("outdated"), pki.Options{Now: func() time.Time { return time.Now().AddDate(-1, 0, 0) }})
	ts.Check(err)
	chain, key, err := ca.IssueServer(nil, 24*time.Hour)
	ts.Check(err)
	pair, err := tls.X509KeyPair(chain, key)
	ts.Check(err)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	server.StartTLS()
	ts.Defer(server.Close)
	ts.Check(os.WriteFile(ts.MkAbs("outdated.pem"), ca.Bundle(), 0o600))
	ts.Setenv("OUTDATED", server.URL)
	ts.Setenv("OUTDATED_CA", ts.MkAbs("outdated.pem"))
	ts.Setenv("OUTDATED_PIN", ca.Fingerprints()[0])
}

// machine NAME [LINE …] creates the root of a machine in $WORK/NAME, with the scripted Puppet. The lines are the plan
// of its first boot. Its agent starts as under cron and systemd: `env -i PATH=$PATH pulley-agent … --root NAME`.
func machine(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) == 0, "machine NAME [LINE ...]")
	plan := strings.Join(append(args[1:], "steps: {schedule: \"off\"}"), "\n") + "\n"
	for name, text := range map[string]string{
		"etc/machine-id":             fmt.Sprintf("%x%032d", args[0], 0)[:32] + "\n",
		"etc/pulley/agent.yaml":      "timeout: 2s\nverify_timeout: 2s\npuppet:\n  program: " + ts.MkAbs("fake/puppet") + "\n  state_dirs: [" + ts.MkAbs("fake/var/state") + "]\n",
		"etc/pulley/first-boot.yaml": plan,
	} {
		path := ts.MkAbs(filepath.Join(args[0], name))
		ts.Check(os.MkdirAll(filepath.Dir(path), 0o755))
		ts.Check(os.WriteFile(path, []byte(text), 0o600))
	}
}

// signWith NAME|none selects the operators' signing key from here on. The first use creates the key: NAME and
// NAME.pub.
func signWith(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "sign-with NAME|none")
	if args[0] == "none" {
		ts.Setenv("PULLEY_SIGN_KEY", "")
		return
	}
	publicKey(ts, args[0])
	ts.Setenv("PULLEY_SIGN_KEY", ts.MkAbs(args[0]))
}

// publicKey returns a person's public key, in the format of its file.
func publicKey(ts *testscript.TestScript, name string) string {
	file := ts.MkAbs(name)
	if _, err := os.Stat(file); err != nil {
		ts.Check(ts.Exec("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", file))
	}
	return strings.TrimSpace(ts.ReadFile(file + ".pub"))
}

var person = regexp.MustCompile(`\{(\w+)\}`)

// signers NODE [LINE …] writes a node's list of allowed signers. {NAME} stands for that person's public key.
func signers(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) == 0, "signers NODE [LINE ...]")
	writeKeys(ts, args[0], "allowed_signers", args[1:])
}

// revoked NODE [LINE …] writes a node's list of revoked keys.
func revoked(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) == 0, "revoked NODE [LINE ...]")
	writeKeys(ts, args[0], "revoked_signers", args[1:])
}

func writeKeys(ts *testscript.TestScript, node, name string, lines []string) {
	text := person.ReplaceAllStringFunc(strings.Join(append(lines, ""), "\n"), func(s string) string { return publicKey(ts, s[1:len(s)-1]) })
	dir := ts.MkAbs(node + "/etc/pulley")
	ts.Check(os.MkdirAll(dir, 0o755))
	ts.Check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
}

// keep KEY FILE stores the present value of a key in a file.
func keep(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 2, "keep KEY FILE")
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(valueOf(ts, args[0])), 0o600))
}

// replay KEY FILE writes a stored value to etcd.
func replay(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 2, "replay KEY FILE")
	put(ts, false, []string{args[0], ts.ReadFile(args[1])})
}

// change KEY OLD NEW replaces the first occurrence of a text in a value.
func change(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 3, "change KEY OLD NEW")
	value := valueOf(ts, args[0])
	if !strings.Contains(value, args[1]) {
		ts.Fatalf("%s has no %q:\n%s", args[0], args[1], value)
	}
	put(ts, false, []string{args[0], strings.Replace(value, args[1], args[2], 1)})
}

// flip KEY changes one character of the last signature under a value.
func flip(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 1, "flip KEY")
	value := []byte(valueOf(ts, args[0]))
	at := strings.LastIndex(string(value), "\n-----END SSH SIGNATURE-----") - 20
	if at < 0 {
		ts.Fatalf("%s is not signed:\n%s", args[0], value)
	}
	was := value[at]
	if value[at] = 'A'; was == 'A' {
		value[at] = 'B'
	}
	put(ts, false, []string{args[0], string(value)})
}

// page PAGE FILE writes the first shell script of a page to a file: a block of sh that begins with #!.
func pageScript(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) != 2, "page PAGE FILE")
	text, err := os.ReadFile(filepath.Join(repository, args[0]))
	ts.Check(err)
	for _, b := range parsePage(args[0], string(text)).blocks {
		if b.language == "sh" && strings.HasPrefix(b.lines[0], "#!") {
			ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(strings.Join(b.lines, "\n")+"\n"), 0o755))
			return
		}
	}
	ts.Fatalf("%s has no shell script", args[0])
}

func valueOf(ts *testscript.TestScript, key string) string {
	resp, err := serverOf(ts).Client().Get(context.Background(), key)
	ts.Check(err)
	if len(resp.Kvs) != 1 {
		ts.Fatalf("there is no key %s", key)
	}
	return string(resp.Kvs[0].Value)
}
