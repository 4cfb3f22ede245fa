//go:build e2e && linux

package userdata

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestMain starts the tests again in mount and UTS namespaces of their own: what they mount and name is gone with them,
// however they end.
func TestMain(m *testing.M) {
	const inside = "PULLEY_USERDATA_NAMESPACE"
	if os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests run the script on a copy-on-write view of this machine, which needs root: sudo -E make e2e")
		os.Exit(1)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS,
		Pdeathsig:    syscall.SIGKILL,
	}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// An unquoted word or a bashism would show on one distribution only, months later.
func TestShellcheck(t *testing.T) {
	if _, err := exec.LookPath("shellcheck"); err != nil {
		t.Fatal("shellcheck is missing: apt-get install shellcheck, or dnf install ShellCheck")
	}
	for _, golden := range []string{"testdata/minimal.golden.sh", "testdata/full.golden.sh"} {
		if out, err := exec.Command("shellcheck", "--shell=sh", "--severity=style", golden).CombinedOutput(); err != nil {
			t.Errorf("shellcheck: %v\n%s", err, out)
		}
	}
}

// A first boot that is repeated, as after a crash or by a doubting operator, must end where one run ends.
func TestFirstBootTwice(t *testing.T) {
	agent := []byte(recorder)
	server := serve(t, agent)
	o := full(t)
	o.Hostname = "controller1-t42"
	o.Proxy = ""
	o.AgentURL, o.AgentSHA256 = server.URL+"/pulley-agent", checksum(agent)
	m := newMachine(t)

	m.boot(t, o, 0)
	first := m.state(t)
	m.boot(t, o, 0)
	if second := m.state(t); first != second {
		t.Errorf("the second run left\n%s\nthe first\n%s", second, first)
	}

	for path, want := range map[string]struct {
		text string
		mode fs.FileMode
	}{
		"/etc/hostname":               {"controller1-t42\n", 0o644},
		"/etc/pulley/ca.pem":          {string(o.CACert), 0o644},
		"/etc/pulley/allowed_signers": {signerLines(o.AllowedSigners), 0o644},
		"/usr/local/bin/pulley-agent": {recorder, 0o755},
		"/etc/pulley/agent.yaml": {`node: controller1_t42
environment: dev@t42
endpoints:
    - https://etcd1.example:2379
    - https://etcd2.example:2379
prefix: /fleets/north
cacert: /etc/pulley/ca.pem
allowed_signers: /etc/pulley/allowed_signers
mirrors:
    - https://pulley.example:8443
    - https://mirror.example/pulley
`, 0o600},
	} {
		if got := m.read(t, path); got != want.text {
			t.Errorf("%s holds %q, should hold %q", path, got, want.text)
		}
		if info, err := os.Stat(m.root + path); err != nil || info.Mode().Perm() != want.mode {
			t.Errorf("%s: mode %v (%v), should be %v", path, info.Mode(), err, want.mode)
		}
	}
	var uts syscall.Utsname
	if err := syscall.Uname(&uts); err != nil {
		t.Fatal(err)
	}
	if got := utsName(uts); got != o.Hostname {
		t.Errorf("the machine's name is %q, should be %q", got, o.Hostname)
	}
	call := "bootstrap|--config|/etc/pulley/agent.yaml|--puppet-package=openvox-agent|--puppet-version=8.19.2-1+debian12|" +
		"--package-repo=https://apt.example/openvox8-release-debian12.deb|--schedule=*/5 * * * *|umask 0022 HOME /root LANG C.UTF-8\n"
	if got := m.read(t, "/calls"); got != call+call {
		t.Errorf("pulley-agent was called\n%sshould have been called twice\n%s", got, call)
	}
	if n := server.hits.Load(); n != 1 {
		t.Errorf("the agent was downloaded %d times: what is there and genuine should be kept", n)
	}
}

// A run that is killed anywhere is healed by the next one.
func TestFirstBootKilled(t *testing.T) {
	agent := []byte(recorder)
	server := serve(t, agent)
	o := full(t)
	o.Proxy = ""
	o.AgentURL, o.AgentSHA256 = server.URL, checksum(agent)

	good := newMachine(t)
	good.boot(t, o, 0)
	want := good.state(t)

	// Each of these programs is, in turn, the last that the script gets to start.
	for _, last := range []string{"flock", "mkfifo", "rm", "mkdir", "cat", "chmod", "sync", "mv", "hostname", "sha256sum", "timeout"} {
		t.Run(last, func(t *testing.T) {
			m := newMachine(t)
			m.program(t, last, "#!/bin/sh\nkill -KILL 0\n")
			if err := syscall.Sethostname([]byte("bare")); err != nil {
				t.Fatal(err)
			}
			m.boot(t, o, -1)
			if m.exists("/calls") {
				t.Fatalf("the agent was started: %s was not needed before", last)
			}
			m.remove(t, "/usr/local/sbin/"+last)
			m.boot(t, o, 0)
			if got := m.state(t); got != want {
				t.Errorf("killed at %s and run again, the machine holds\n%s\nshould hold\n%s", last, got, want)
			}
		})
	}
}

// What comes over the network runs as root only when it is what the operator meant.
func TestFirstBootRefusesOtherAgent(t *testing.T) {
	server := serve(t, []byte("#!/bin/sh\ntouch /owned\n"))
	o := full(t)
	o.Proxy = ""
	o.AgentURL, o.AgentSHA256 = server.URL, checksum([]byte(recorder))
	m := newMachine(t)
	out := m.boot(t, o, 1)
	if m.exists("/owned") || m.exists("/usr/local/bin/pulley-agent") {
		t.Error("an agent with a wrong checksum was installed")
	}
	if !strings.Contains(out, "wrong checksum: ") || !strings.Contains(out, "cannot download pulley-agent from "+server.URL) {
		t.Errorf("the console does not say why:\n%s", out)
	}
	if got := m.read(t, "/sleeps"); got != "0 5 10 20 40 " {
		t.Errorf("the pauses between downloads were %q", got)
	}
}

// With wget in place of curl, a first boot ends in the same state.
func TestFirstBootWithWget(t *testing.T) {
	agent := []byte(recorder)
	server := serve(t, agent)
	o := full(t)
	o.Proxy = ""
	o.AgentURL, o.AgentSHA256 = server.URL, checksum(agent)
	m := newMachine(t)
	m.remove(t, "/usr/bin/curl")
	m.boot(t, o, 0)
	if !m.exists("/calls") {
		t.Error("the agent was not started")
	}
	m.remove(t, "/usr/bin/wget", "/usr/local/bin/pulley-agent")
	if out := m.boot(t, o, 1); !strings.Contains(out, "neither curl nor wget") {
		t.Errorf("the console does not say what is missing:\n%s", out)
	}
}

// An image without the agent must say so in words: there is nobody at its console to debug it.
func TestFirstBootWithoutAgent(t *testing.T) {
	m := newMachine(t)
	out := m.boot(t, minimal(), 1)
	if !strings.Contains(out, "cannot start pulley-agent: this image has no /usr/local/bin/pulley-agent") {
		t.Errorf("the console does not say what is missing:\n%s", out)
	}
	m.program(t, "../bin/pulley-agent", recorder)
	m.boot(t, minimal(), 0)
	if got := m.read(t, "/calls"); !strings.HasPrefix(got, "bootstrap|--config|/etc/pulley/agent.yaml|umask") {
		t.Errorf("the agent was called %q", got)
	}
}

// An etcd that comes up later than the machine is waited for; a usage that is wrong now will be wrong in ten minutes.
func TestBootstrapRetries(t *testing.T) {
	for _, c := range []struct {
		name, agent string
		code        int
		sleeps      string
	}{
		{"good at third", "#!/bin/sh\necho x >>/tries\n[ $(wc -l </tries) = 3 ]\n", 0, "0 5 10 "},
		{"never good", "#!/bin/sh\nexit 3\n", 3, "0 5 10 20 40 60 60 60 60 60 "},
		{"wrong usage", "#!/bin/sh\nexit 2\n", 2, "0 "},
		{"another architecture", "\x7fELF", 126, "0 "},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			m.program(t, "../bin/pulley-agent", c.agent)
			out := m.boot(t, minimal(), c.code)
			if got := m.read(t, "/sleeps"); got != c.sleeps {
				t.Errorf("the pauses were %q, should be %q; console:\n%s", got, c.sleeps, out)
			}
		})
	}
}

// Two runs at once would write the same files; the second leaves the machine to the first.
func TestSecondRunAtOnce(t *testing.T) {
	m := newMachine(t)
	m.program(t, "../bin/pulley-agent", "#!/bin/sh\necho started >>/calls\nread -r _ </go\n")
	if err := syscall.Mkfifo(m.root+"/go", 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.boot(t, minimal(), 0)
	}()
	waitUntil(t, "the first run starts the agent", func() bool { return m.exists("/calls") })
	if out := m.boot(t, minimal(), 0); !strings.Contains(out, "another run is in progress") {
		t.Errorf("the second run said:\n%s", out)
	}
	release, err := os.OpenFile(m.root+"/go", os.O_RDWR, 0) // for reading too: opening never waits for the other side
	if err != nil {
		t.Fatal(err)
	}
	defer release.Close()
	if _, err := release.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	<-done
	if got := m.read(t, "/calls"); got != "started\n" {
		t.Errorf("the agent was started more than once: %q", got)
	}
}

// A service that outlives its installation must neither keep the first boot from ending nor hold its lock.
func TestServiceLeftBehind(t *testing.T) {
	m := newMachine(t)
	m.program(t, "../bin/pulley-agent", "#!/bin/sh\n/bin/sleep 300 &\necho $! >>/service\necho \"it's done\"\n")
	t.Cleanup(func() {
		if err := exec.Command("kill", append([]string{"-KILL"}, strings.Fields(m.read(t, "/service"))...)...).Run(); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		console, err := os.Create(filepath.Join(t.TempDir(), "console"))
		if err != nil {
			t.Fatal(err)
		}
		cmd := m.command(t, minimal())
		cmd.Stdout, cmd.Stderr = console, console // a file: its reader need not wait for the service
		if err := cmd.Run(); err != nil {
			t.Fatalf("the first boot did not end: %v", err)
		}
		for _, path := range []string{console.Name(), m.root + "/var/log/pulley-bootstrap.log"} {
			waitUntil(t, "the end is written to "+path, func() bool {
				text, err := os.ReadFile(path)
				return err == nil && strings.HasSuffix(string(text), "it's done\n")
			})
		}
		if text, err := os.ReadFile(console.Name()); err != nil || strings.Contains(string(text), "another run") {
			t.Fatalf("the service of the run before holds the lock: %s (%v)", text, err)
		}
	}
}

// recorder stands for pulley-agent: it writes down how it was called.
const recorder = `#!/bin/sh
for word; do printf '%s|' "$word"; done >>/calls
echo "umask $(umask) HOME $HOME LANG $LANG" >>/calls
`

// machine is a copy-on-write view of this one, without an agent, with programs of the test's own in /usr/local/sbin.
type machine struct{ root, upper string }

func newMachine(t *testing.T) machine {
	t.Helper()
	dir := t.TempDir()
	mount := func(source, target, kind string, flags uintptr, data string) {
		if err := syscall.Mount(source, target, kind, flags, data); err != nil {
			t.Fatalf("cannot mount %s on %s: %v", source, target, err)
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(target, syscall.MNT_DETACH); err != nil {
				t.Errorf("cannot unmount %s: %v", target, err)
			}
		})
	}
	mount("tmpfs", dir, "tmpfs", 0, "size=64m")
	m := machine{root: filepath.Join(dir, "root"), upper: filepath.Join(dir, "upper")}
	for _, d := range []string{m.root, m.upper, filepath.Join(dir, "work")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mount("overlay", m.root, "overlay", 0, "lowerdir=/,upperdir="+m.upper+",workdir="+filepath.Join(dir, "work"))
	mount("/dev", m.root+"/dev", "", syscall.MS_BIND|syscall.MS_REC, "")
	mount("/proc", m.root+"/proc", "", syscall.MS_BIND|syscall.MS_REC, "")
	mount("tmpfs", m.root+"/run", "tmpfs", 0, "size=4m")
	m.remove(t, "/usr/local/bin/pulley-agent", "/etc/pulley", "/calls", "/sleeps")
	m.program(t, "sleep", "#!/bin/sh\nprintf '%s ' \"$1\" >>/sleeps\n")
	return m
}

func (m machine) command(t *testing.T, o Options) *exec.Cmd {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "/bin/sh")
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Stdin = bytes.NewReader(mustRender(t, o))
	cmd.Dir = "/"
	cmd.Env = []string{} // as bare as cloud-init's
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: m.root, Setpgid: true}
	return cmd
}

// boot runs the script, which should end with code (-1: by a signal), and returns what the console showed.
func (m machine) boot(t *testing.T, o Options, code int) string {
	t.Helper()
	out, err := m.command(t, o).CombinedOutput()
	var exit *exec.ExitError
	got := 0
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		t.Error(err)
	}
	if got != code {
		t.Errorf("the script ended with %d, should end with %d:\n%s", got, code, out)
	}
	return string(out)
}

// state returns all that the script left behind, apart from what the test itself counts and the log.
func (m machine) state(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(m.upper, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name := strings.TrimPrefix(path, m.upper)
		if slices.Contains([]string{"/calls", "/sleeps", "/var/log/pulley-bootstrap.log"}, name) {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := []byte(nil)
		if info.Mode().IsRegular() {
			if text, err = os.ReadFile(path); err != nil {
				return err
			}
		} else if info.Mode()&fs.ModeCharDevice != 0 {
			return nil // a whiteout: removed by the test, or never there
		}
		_, err = fmt.Fprintf(&out, "%s %v %s\n", name, info.Mode(), checksum(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func (m machine) program(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(m.root, "usr/local/sbin", name), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (m machine) remove(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.RemoveAll(m.root + path); err != nil {
			t.Fatal(err)
		}
	}
}

func (m machine) exists(path string) bool {
	_, err := os.Lstat(m.root + path)
	return err == nil
}

func (m machine) read(t *testing.T, path string) string {
	t.Helper()
	return read(t, m.root, path)
}

type agentServer struct {
	*httptest.Server
	hits atomic.Int32
}

func serve(t *testing.T, agent []byte) *agentServer {
	t.Helper()
	s := &agentServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.hits.Add(1)
		_, _ = w.Write(agent) // a client that is gone will ask again
	}))
	t.Cleanup(s.Close)
	return s
}

func utsName(uts syscall.Utsname) string {
	var name []byte
	for _, c := range uts.Nodename {
		if c == 0 {
			break
		}
		name = append(name, byte(c))
	}
	return string(name)
}

func waitUntil(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited 30 s in vain until %s", what)
		}
	}
}
