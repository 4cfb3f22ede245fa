//go:build e2e

package cmd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"pulley/internal/firstboot"
	"pulley/internal/pki"
	"pulley/internal/testbed/puppettest"
)

// The unit that resumes a first boot after a reboot.
const resumeUnit = "etc/systemd/system/pulley-first-boot.service"

// TestFirstBootCrashes proves that the next boot completes a first boot after a power cut, an OOM kill or a reboot at
// any point. It covers every step, before and after. The machine and etcd must end as without the crash, and no number
// of the role may be used twice or lost.
func TestFirstBootCrashes(t *testing.T) {
	t.Parallel()
	all := firstboot.CrashPoints()
	f := newBootFleet(t, len(all)+1)
	good := f.machine("good")
	f.boot(good, nil)
	want, wantNode := f.end(t, good), f.nodes()[f.node(t, good)]
	if f.node(t, good) != "controller1" {
		t.Fatalf("the first machine became %s", f.node(t, good))
	}
	var machines []string
	for i, place := range all {
		m := f.machine(fmt.Sprintf("m%d", i))
		machines = append(machines, m)
		t.Run(place, func(t *testing.T) {
			f.die(t, m, place)
			// Before the lock, userdata's own unit resumes.
			begun := place != "before:first-boot-lock" && !strings.HasSuffix(place, "-network")
			if _, err := os.Stat(filepath.Join(m, resumeUnit)); begun == (err != nil) {
				t.Errorf("a reboot resumes it: %t, want %t", err == nil, begun)
			}
			f.boot(m, nil)
			if got := f.end(t, m); got != want {
				t.Errorf("on the machine:\n%s\nwithout the crash:\n%s", got, want)
			}
		})
	}
	seen := f.nodes()
	names := map[string]bool{}
	for i, m := range machines {
		node := f.node(t, m)
		names[node] = true
		if got := seen[node]; got != wantNode {
			t.Errorf("%s: in etcd\n%s\nwithout the crash\n%s", all[i], got, wantNode)
		}
	}
	for i := range all {
		if n := fmt.Sprintf("controller%d", i+2); !names[n] {
			t.Errorf("no machine became %s: a crash took its number", n)
		}
	}
	var tokens []struct {
		Used int `json:"used"`
	}
	if err := json.Unmarshal([]byte(f.must("pulley", "token", "list", "-o", "json")), &tokens); err != nil || len(tokens) != 1 || tokens[0].Used != len(all)+1 {
		t.Errorf("the token was used %+v times by %d machines (%v)", tokens, len(all)+1, err)
	}
}

// bootFleet is an environment with an etcd with authentication, and machines that join it.
type bootFleet struct {
	*crashFleet
	token, server, pin string
}

func newBootFleet(t *testing.T, machines int) *bootFleet {
	f := newFleet(t)
	f.write("dev.yaml", fmt.Sprintf("roles:\n  controller: {cardinality: %d, flavor: bare-metal}\n", machines))
	f.must("pulley", "env", "apply", "dev.yaml")
	f.token = strings.TrimSpace(f.quietly("pulley", "token", "create", "--role", "controller", "--uses", "0"))
	return f
}

// newFleet is an etcd with authentication, without an environment.
func newFleet(t *testing.T, serve ...string) *bootFleet {
	dir := t.TempDir()
	f := &bootFleet{crashFleet: &crashFleet{t: t, dir: dir, env: append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "PULLEY_ENVIRONMENT=dev", "SUDO_USER=ann")}}
	for _, name := range []string{"fake", "machine"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	puppettest.Write(t, filepath.Join(dir, "fake"))
	f.serve(serve...)
	return f
}

// serve runs `pulley serve` until the test ends, and stores its output in the environment.
func (f *bootFleet) serve(more ...string) {
	log := filepath.Join(f.dir, "serve.log")
	out, err := os.Create(log)
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.CommandContext(context.Background(), filepath.Join(bin, "pulley"), append([]string{"serve", "--auth", "--data-dir", "data", "--listen", "127.0.0.1:0", "--listen-https", "127.0.0.1:0"}, more...)...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = f.dir, f.env, out, out
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		out.Close()
	})
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		text, err := os.ReadFile(log)
		if err != nil {
			f.t.Fatal(err)
		}
		if at, pin := joinsAt.FindSubmatch(text), firstPins.FindSubmatch(text); at != nil && pin != nil && strings.Contains(string(text), "PULLEY_ENDPOINTS=") {
			f.server, f.pin = string(at[1]), string(pin[1])
			for _, m := range exports.FindAllSubmatch(text, -1) {
				f.env = append(f.env, string(m[1]))
			}
			return
		}
		if time.Now().After(end) {
			f.t.Fatalf("serve does not come up:\n%s", text)
		}
	}
}

// quietly is must without standard error.
func (f *bootFleet) quietly(program string, args ...string) string {
	f.t.Helper()
	cmd := exec.CommandContext(context.Background(), filepath.Join(bin, program), args...)
	cmd.Dir, cmd.Env = f.dir, f.env
	out, err := cmd.Output()
	if err != nil {
		f.t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// machine creates the root of a machine, as an image and userdata leave it.
func (f *bootFleet) machine(name string) string {
	root := filepath.Join(f.dir, name)
	files := map[string]string{
		"etc/machine-id":                      machineIDOf(name) + "\n",
		"etc/hostname":                        "bare\n",
		"run/systemd/system/.keep":            "",
		"etc/cloud/cloud.cfg.d/.keep":         "",
		"etc/pulley/agent.yaml":               "puppet:\n  program: " + filepath.Join(f.dir, "fake", "puppet") + "\n",
		"etc/pulley/first-boot/pre.d/10-one":  "#!/bin/sh\necho \"$PULLEY_STEP\" >$PULLEY_ROOT/pre\n",
		"etc/pulley/first-boot/post.d/10-one": "#!/bin/sh\necho \"$PULLEY_STEP $PULLEY_NODE $PULLEY_ROLE $PULLEY_ENVIRONMENT\" >$PULLEY_ROOT/post\n",
		"schedule":                            "#!/bin/sh\nmkdir -p $PULLEY_ROOT/etc/cron.d && echo \"* * * * * root pulley-agent run\" >$PULLEY_ROOT/etc/cron.d/pulley-agent\n",
		firstboot.PlanPath: fmt.Sprintf("role: controller\nenvironment: dev\nservers: [%s]\nca: [%s]\ntoken: %s\nhostname: node\nleave: poweroff\nsteps:\n  schedule: %s\n",
			f.server, f.pin, f.token, filepath.Join(root, "schedule")),
	}
	for path, text := range files {
		f.write(filepath.Join(name, path), text)
	}
	for _, script := range []string{"etc/pulley/first-boot/pre.d/10-one", "etc/pulley/first-boot/post.d/10-one", "schedule"} {
		if err := os.Chmod(filepath.Join(root, script), 0o755); err != nil {
			f.t.Fatal(err)
		}
	}
	return root
}

// machineIDOf returns a unique machine id.
func machineIDOf(name string) string { return fmt.Sprintf("%x%032d", name, 0)[:32] }

func (f *bootFleet) bootstrap(root string, env []string) (string, error) {
	cmd := exec.CommandContext(f.t.Context(), filepath.Join(bin, "pulley-agent"), "bootstrap", "--root", root)
	cmd.Dir, cmd.Env = f.dir, append([]string{"PATH=" + os.Getenv("PATH")}, env...) // cron and systemd set only PATH
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (f *bootFleet) boot(root string, env []string) {
	f.t.Helper()
	if out, err := f.bootstrap(root, env); err != nil {
		f.t.Fatalf("%v\n%s", err, out)
	}
}

// die kills a first boot, and checks that it died at this place by SIGKILL.
func (f *bootFleet) die(t *testing.T, root, place string) {
	t.Helper()
	out, err := f.bootstrap(root, []string{"PULLEY_FAILPOINT=" + place})
	if !killed(err) {
		t.Fatalf("the first boot was not killed at %s: %v\n%s", place, err, out)
	}
}

// node returns the node of a machine.
func (f *bootFleet) node(t *testing.T, root string) string {
	t.Helper()
	id, err := pki.LoadIdentity(filepath.Join(root, "var/lib/pulley/identity/node.pem"))
	if err != nil {
		t.Fatal(err)
	}
	name, err := id.Name()
	if err != nil {
		t.Fatal(err)
	}
	return name.Subject
}

// end returns every file of a machine with its mode and content, but only the work from a first boot's state.
func (f *bootFleet) end(t *testing.T, root string) string {
	t.Helper()
	node := f.node(t, root)
	var lines []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(root, path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := ""
		switch {
		case name == "etc/machine-id":
		case name == "usr/local/bin/pulley-agent", strings.HasSuffix(name, "identity/node.pem"):
		case strings.HasSuffix(name, "first-boot.json"):
			text = f.state(t, path)
		case d.Type()&fs.ModeSymlink != 0:
			text, err = os.Readlink(path)
		default:
			var b []byte
			b, err = os.ReadFile(path)
			text = string(b)
		}
		lines = append(lines, fmt.Sprintf("%s %s %q", info.Mode(), name, strings.ReplaceAll(strings.ReplaceAll(text, root, "ROOT"), node, "NODE")))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

func (f *bootFleet) state(t *testing.T, path string) string {
	t.Helper()
	s, err := firstboot.Disk{Dir: filepath.Dir(path)}.Load()
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("finished %t", !s.Finished.IsZero())
	for _, name := range firstboot.Names() {
		text += fmt.Sprintf(" %s %s %s", name, s.Steps[name].State, s.Steps[name].Error)
	}
	return text
}

// nodes returns the final state of each node in etcd, without names and times.
func (f *bootFleet) nodes() map[string]string {
	f.t.Helper()
	seen := map[string]string{}
	for _, args := range [][]string{{"nodes"}, {"status"}} {
		var out any
		if err := json.Unmarshal([]byte(f.must("pulley", append(args, "-o", "json")...)), &out); err != nil {
			f.t.Fatal(err)
		}
		if o, ok := out.(map[string]any); ok {
			out = o["nodes"]
		}
		for _, n := range out.([]any) {
			fields := n.(map[string]any)
			name := fmt.Sprint(fields["node"])
			b, err := json.Marshal(fields)
			if err != nil {
				f.t.Fatal(err)
			}
			said := strings.NewReplacer(`"`+name+`"`, "NODE", "/"+name+"/", "/NODE/").Replace(string(b))
			seen[name] += volatileBoot.ReplaceAllString(ownAddresses.ReplaceAllString(said, ""), "…") + "\n"
		}
	}
	return seen
}

var volatileBoot = regexp.MustCompile(`20\d\d-\d\d-\d\dT[0-9:.]+Z|[0-9a-f]{32}|NODE/[0-9a-f]{16}|"attempts":\d+|"id":"[0-9a-f]{16}"`)

// ownAddresses are what a machine registers of its addresses: all machines of a test have the same one, and the first to join keeps it.
var ownAddresses = regexp.MustCompile(`"(addresses|refused)":\[[^\]]*\],`)
