//go:build e2e

package cmd_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"pulley/agent"
	"pulley/internal/etcd"
	"pulley/internal/machines/drivers/local"
	"pulley/internal/model"
	"pulley/internal/testbed/observe"
)

// siteWithSecret uses a secret as a careful author does. Backup and diff are requested for the files. A run waits while
// /tmp/wait exists.
const siteWithSecret = `class profile::db(Sensitive[String] $password) {
  file { '/etc/app': ensure => directory }
  file { '/etc/app/db.conf': content => Sensitive("password=${password.unwrap}\n"), backup => '.old', show_diff => true }
  -> file { '/etc/app/plain.conf': content => $password }
  -> notify { "the password is ${password}": }
  -> exec { '/bin/sh -c "ulimit -c >/tmp/core-limit; while test -e /tmp/wait; do touch /tmp/waiting; sleep 0.1; done"': }
}
include pulley
include profile::db
`

// siteThatFails uses the secret in a resource that fails, and siteRefused in a catalog that does not compile.
const (
	siteThatFails = siteWithSecret + `file { '/nowhere/file': content => lookup('profile::db::password') }
exec { 'fails': command => Sensitive("/bin/false"), unless => Sensitive('/bin/false') }
`
	siteRefused = siteWithSecret + `class wants_a_number(Sensitive[Integer] $n) { }
class { 'wants_a_number': n => lookup('profile::db::password') }
`
	// siteWithLeaks shows that the search works: each line is a leak of its own kind.
	siteWithLeaks = siteWithSecret + `$plain = lookup('profile::db::password').unwrap
notify { "leaked: ${plain}": }
file { '/var/tmp/leaked': content => $plain }
exec { "/bin/sh -c 'sleep 1; : ${plain}'": }
exec { 'in the environment': command => '/bin/sleep 1', environment => ["LEAKED=${plain}"] }
`
)

// managed are the files of the catalog, the only ones that may contain a secret.
var managed = []string{"etc/app/db.conf", "etc/app/plain.conf"}

// After runs with a secret, and after a crash at each step, a person who takes the disk of the node, the disk of serve, a backup of
// etcd or a log must not find the secret, and neither must another user of the machine who watches its processes. The environment
// variable PULLEY_TEST_TRACES=all crashes the agent at each step, not only where decrypted data is in memory and just after it.
func TestSecretsLeaveNoTrace(t *testing.T) {
	t.Parallel()
	f := newSecretFleet(t)
	f.site("1.0.0", siteWithSecret)
	f.do("", "pulley", "env", "apply", "dev.yaml")
	f.do("", "pulley", "data", "set", "pulley::schedule", "17 */3 * * *", "--role", "controller")
	f.do("", "pulley", "promote", "1.0.0")
	f.setSecret()
	watch := f.watch()

	// The first boot: the release and its data are staged before the first run, and the identity comes with the join.
	f.firstBoot()
	if text := f.in(0, "cat", "/etc/cron.d/pulley-agent"); !strings.Contains(text, "17 */3 * * * root ") {
		t.Errorf("the first boot did not use the data with the secret: %s", text)
	}
	f.run(0)
	f.carries()
	f.setSecret()
	f.in(1, "sh", "-c", "PATH=$PATH:/usr/local/bin pulley-agent run --noop --force >&2; test -e /etc/app/db.conf.old")
	f.run(0)
	f.carries()
	f.finds(nil, f.disk())

	f.site("1.1.0", siteThatFails)
	f.do("", "pulley", "promote", "1.1.0")
	f.run(1)
	f.site("1.2.0", siteRefused)
	f.do("", "pulley", "promote", "1.2.0")
	f.run(1)
	f.do("", "pulley", "promote", "1.0.0")
	f.run(0)
	f.carries()

	places := []string{"after:admit", "after:apply", "after:commit"}
	if os.Getenv("PULLEY_TEST_TRACES") == "all" {
		places = nil
		for _, step := range agent.Steps(model.Take) {
			places = append(places, "before:"+step, "after:"+step)
		}
	}
	for _, place := range places {
		f.crash(place)
	}
	f.finds(nil, f.disk())
	f.run(0)
	f.carries()
	f.quit()
	f.finds(nil, f.disk())

	f.setSecret()
	f.do("", "pulley", "secret", "rotate", "--role", "controller")
	f.run(0)
	f.carries()
	f.snapshot()
	f.read()
	f.finds(nil, f.disk())
	f.finds(nil, f.files())
	f.finds(nil, f.printed())
	f.finds(nil, watch())

	// The search itself: it finds each leak of a careless manifest.
	watch = f.watch()
	f.site("9.0.0", siteWithLeaks)
	f.do("", "pulley", "promote", "9.0.0")
	f.run(0)
	f.snapshot()
	f.read()
	f.finds([]string{"var/tmp/leaked", "var/lib/pulley/runs/"}, f.disk())
	f.finds([]string{"/member/snap/db", ".wal", "/backup"}, f.files())
	f.finds([]string{"pulley runs"}, f.printed())
	f.finds([]string{"cmdline", "environ"}, watch())
}

// A secret that is typed must not be on the screen, and Ctrl-C at the question must end the command with a terminal that shows what is
// typed.
func TestSecretIsTypedUnseen(t *testing.T) {
	t.Parallel()
	f := newBootFleet(t, 1)
	f.env = append(f.env, "PULLEY_SERVERS="+f.server)
	ask := func(typed string) (string, error) {
		t.Helper()
		control, terminal := openTerminal(t, 20, 100)
		defer terminal.Close()
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "pulley"), "secret", "set", "profile::password", "--role", "controller")
		cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = f.dir, f.env, terminal, terminal, terminal
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		screen := new(observe.Log)
		go func() { _, _ = io.Copy(screen, control) }() // ends with control
		echoes := func() bool {
			s, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
			return err == nil && s.Lflag&unix.ECHO != 0
		}
		observe.Eventually(t, "the question", func() bool { return strings.Contains(screen.String(), "secret profile::password: ") && !echoes() })
		if _, err := control.WriteString(typed); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			if !echoes() {
				t.Error("the terminal shows no input any more")
			}
			return screen.String(), err
		case <-time.After(patience):
			_ = cmd.Process.Kill()
			t.Fatalf("the command does not end:\n%s", screen.String())
			return "", nil
		}
	}
	if screen, err := ask("\x03"); err == nil {
		t.Errorf("Ctrl-C set a secret: %q", screen)
	}
	if screen, err := ask("typed-s3cret\n"); err != nil || strings.Contains(screen, "typed") {
		t.Errorf("%v: the screen shows %q", err, screen)
	}
	if text := f.must("pulley", "data", "get", "profile::password", "--show-secrets"); !strings.Contains(text, " typed-s3cret\n") {
		t.Errorf("another secret was set: %s", text)
	}
}

// secretFleet is a fleet with one machine, and the marker with which each of its secrets begins.
type secretFleet struct {
	*bootFleet
	machine  *local.Machine
	began    time.Time
	marker   string
	secrets  int
	said     []output
	forms    [][]byte // of the marker, in usual encodings
	releases int
}

type output struct {
	of   string
	text []byte
}

func newSecretFleet(t *testing.T) *secretFleet {
	t.Helper()
	dir := t.TempDir()
	random := make([]byte, 12)
	_, _ = rand.Read(random)
	f := &secretFleet{began: time.Now(), marker: "Marker" + hex.EncodeToString(random), bootFleet: &bootFleet{crashFleet: &crashFleet{t: t, dir: dir,
		env: append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "PULLEY_ENVIRONMENT=dev", "SUDO_USER=ann", "HOME="+dir, "XDG_CONFIG_HOME="+dir)}}}
	f.forms = [][]byte{[]byte(f.marker), []byte(hex.EncodeToString([]byte(f.marker)))}
	for shift := range 3 { // of the bytes before it
		text := base64.StdEncoding.EncodeToString(append(make([]byte, shift), f.marker...))
		f.forms = append(f.forms, []byte(text[4:len(text)-4]))
	}
	f.serve()
	f.env = append(f.env, "PULLEY_SERVERS="+f.server)
	f.write("dev.yaml", "roles:\n  controller: {cardinality: 2, flavor: bare-metal}\n")
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	if f.machine, err = local.Start(t.Context(), local.Config{Hostname: "controller1",
		Empty: []string{"/etc/cron.d", "/etc/puppet", "/var/lib/puppet", "/var/cache/puppet", "/etc/pulley", "/var/lib/pulley",
			"/root", "/home", cache, repository}, // where the host writes meanwhile
		Binds: []local.Bind{{From: filepath.Join(bin, "pulley-agent"), To: "/usr/local/bin/pulley-agent"}},
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.machine.Close() })
	return f
}

// site publishes a release.
func (f *secretFleet) site(version, site string) {
	f.t.Helper()
	if f.releases++; f.releases == 1 {
		f.do("", "pulley", "init", "R")
		if err := os.RemoveAll(filepath.Join(f.dir, "R", "validate.d")); err != nil { // it fits only the starter's manifests
			f.t.Fatal(err)
		}
	}
	f.write("R/manifests/site.pp", site)
	f.do("", "pulley", "publish", "R", "--version", version, "--no-validate")
}

// do runs a program with standard input, which must succeed, and keeps what it prints.
func (f *secretFleet) do(stdin, program string, args ...string) string {
	f.t.Helper()
	cmd := exec.CommandContext(f.t.Context(), filepath.Join(bin, program), args...)
	cmd.Dir, cmd.Env, cmd.Stdin = f.dir, f.env, strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	f.said = append(f.said, output{program + " " + strings.Join(args, " "), out.Bytes()})
	if err != nil {
		f.t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

// setSecret sets the next secret. Its value is nowhere but in memory and in the pipe to pulley.
func (f *secretFleet) setSecret() {
	f.t.Helper()
	f.secrets++
	f.do(f.secret()+"\n", "pulley", "secret", "set", "profile::db::password", "--role", "controller")
}

func (f *secretFleet) secret() string { return fmt.Sprintf("%sN%d", f.marker, f.secrets) }

// in runs a program in the machine, which must end with a code.
func (f *secretFleet) in(want int, program string, args ...string) string {
	f.t.Helper()
	out, err := f.machine.Command(f.t.Context(), program, args...).CombinedOutput()
	f.said = append(f.said, output{program + " " + strings.Join(args, " "), out})
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		f.t.Fatal(err)
	}
	if code != want {
		f.t.Fatalf("%s %s ended with %d, want %d\n%s", program, strings.Join(args, " "), code, want, out)
	}
	return string(out)
}

func (f *secretFleet) firstBoot() {
	f.t.Helper()
	token := strings.TrimSpace(f.quietly("pulley", "token", "create", "--role", "controller"))
	plan := fmt.Sprintf("role: controller\nenvironment: dev\nservers: [%s]\nca: [%s]\ntoken: %s\n", f.server, f.pin, token)
	if err := f.machine.WriteFile("/etc/pulley/first-boot.yaml", []byte(plan), 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.in(0, "/usr/local/bin/pulley-agent", "bootstrap")
}

// run runs the agent until a code; a run that was interrupted needs a second one.
func (f *secretFleet) run(want int) {
	f.t.Helper()
	f.in(want, "/usr/local/bin/pulley-agent", "run", "--force")
}

// carries checks that the managed files have the present secret, and that no decrypted data is left in memory.
func (f *secretFleet) carries() {
	f.t.Helper()
	if text := f.in(0, "cat", "/etc/app/db.conf"); text != "password="+f.secret()+"\n" {
		f.t.Errorf("the managed file has %q", text)
	}
	f.said = f.said[:len(f.said)-1] // the managed file itself
	if left := f.in(0, "sh", "-c", "ls -d /run/pulley-agent-* /dev/shm/pulley-agent-* 2>/dev/null; true"); left != "" {
		f.t.Errorf("decrypted data is left: %s", left)
	}
}

// crash kills the agent at a place of a run with a new secret.
func (f *secretFleet) crash(place string) {
	f.t.Helper()
	f.setSecret()
	for range 3 { // a run may first complete the one before
		out, err := f.machine.Command(f.t.Context(), "env", "PULLEY_FAILPOINT="+place, "/usr/local/bin/pulley-agent", "run", "--force").CombinedOutput()
		f.said = append(f.said, output{"pulley-agent killed " + place, out})
		if err == nil {
			continue
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 128+9 && !killed(err) {
			f.t.Fatalf("the agent was not killed at %s: %v\n%s", place, err, out)
		}
		return
	}
	f.t.Fatalf("the agent was never killed at %s", place)
}

// quit ends the agent with SIGQUIT in the middle of a run, where it may dump as much as it wants.
func (f *secretFleet) quit() {
	f.t.Helper()
	f.setSecret()
	f.in(0, "sh", "-c", "rm -f /tmp/waiting /tmp/core-limit; touch /tmp/wait")
	cmd := f.machine.Command(f.t.Context(), "sh", "-c", "echo $$ >/tmp/agent.pid; ulimit -c unlimited; cd /var/tmp; GOTRACEBACK=crash exec /usr/local/bin/pulley-agent run --force")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.until("a run that waits", "test -e /tmp/waiting")
	limits := f.in(0, "sh", "-c", "grep -i core /proc/$(cat /tmp/agent.pid)/limits; cat /tmp/core-limit")
	if fields := strings.Fields(limits); len(fields) < 8 || fields[4] != "1" || fields[len(fields)-1] != "0" {
		f.t.Errorf("the agent, or Puppet, may dump: %s", limits)
	}
	f.in(0, "sh", "-c", "kill -QUIT $(cat /tmp/agent.pid)")
	if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), "goroutine") {
		f.t.Fatalf("the agent did not end by SIGQUIT: %v\n%s", err, out.String())
	}
	f.said = append(f.said, output{"pulley-agent, ended by SIGQUIT", out.Bytes()})
	if dumps := f.in(0, "sh", "-c", "find / /tmp -xdev -type f \\( -name core -o -name 'core.*' \\) -newerct @"+f.start()); dumps != "" {
		f.t.Errorf("there is a core dump: %s", dumps)
	}
	f.in(0, "rm", "/tmp/wait")
	f.until("the next run", "/usr/local/bin/pulley-agent run --force 2>&1 | tee /dev/stderr | grep -q 'changed on 1.0.0'") // Puppet outlives its agent
	f.carries()
}

func (f *secretFleet) until(what, script string) {
	f.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		out, err := f.machine.Command(f.t.Context(), "sh", "-c", script).CombinedOutput()
		f.said = append(f.said, output{script, out})
		if err == nil {
			return
		}
		if time.Now().After(end) {
			f.t.Fatalf("%s: %v\n%s", what, err, out)
		}
	}
}

func (f *secretFleet) start() string { return strconv.FormatInt(f.began.Unix(), 10) }

// snapshot makes etcd write a snapshot of its log, and pulley a backup.
func (f *secretFleet) snapshot() {
	f.t.Helper()
	of := map[string]string{}
	for _, line := range f.env {
		name, value, _ := strings.Cut(line, "=")
		of[name] = value
	}
	settings, err := etcd.Config{CACert: of["PULLEY_CACERT"], Cert: of["PULLEY_CERT"], Key: of["PULLEY_KEY"]}.TLS()
	if err != nil {
		f.t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(of["PULLEY_ENDPOINTS"], ","), TLS: settings, DialTimeout: patience})
	if err != nil {
		f.t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	const writers, entries = 100, 11_000 // etcd writes a snapshot every 10,000 entries
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for range entries / writers {
				if _, err := client.Delete(ctx, "/pulley/v1/none"); err != nil {
					f.t.Errorf("cannot fill etcd's log: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if found, _ := filepath.Glob(filepath.Join(f.dir, "data", "*", "member", "snap", "*.snap")); len(found) > 0 {
			break
		}
		if time.Now().After(end) {
			f.t.Fatal("etcd wrote no snapshot")
		}
	}
	f.do("", "pulley", "backup", "backup", "--data-dir", "data")
}

// read prints what operators can read of the node and its data.
func (f *secretFleet) read() {
	f.t.Helper()
	var ids []string
	for _, line := range strings.Split(f.do("", "pulley", "runs", "controller1"), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && strings.Contains(fields[0], "T") && strings.Contains(fields[0], "Z") {
			ids = append(ids, fields[0])
		}
	}
	for _, args := range []string{
		"runs controller1 -o json", "explain controller1", "explain controller1 -o json", "status", "status -o json", "history", "history -o json", "data get",
		"data get -o json", "secret list", "facts controller1 -o json", "nodes -o json", "env show", "doctor --all",
	} {
		f.do("", "pulley", strings.Fields(args)...)
	}
	for _, id := range ids {
		f.do("", "pulley", "runs", "controller1", id, "-o", "json")
	}
	f.in(0, "/usr/local/bin/pulley-agent", "status")
}

// finds checks that exactly these kinds of places contain a secret.
func (f *secretFleet) finds(want, found []string) {
	f.t.Helper()
	for _, kind := range want {
		if !slices.ContainsFunc(found, func(place string) bool { return strings.Contains(place, kind) }) {
			f.t.Errorf("the search does not find the leak in %s; it finds %q", kind, found)
		}
	}
	if len(want) == 0 && len(found) > 0 {
		f.t.Errorf("a secret is in %q", found)
	}
}

// disk searches all files of the machine that were written since the start of the test.
func (f *secretFleet) disk() (found []string) {
	f.t.Helper()
	// /run and /dev/shm are in memory. A killed run leaves its decrypted data there, until the next run.
	script := "find / /tmp /run /dev/shm -xdev -type f -newerct @" + f.start() + " -not -path '/run/pulley-agent-*' -not -path '/dev/shm/pulley-agent-*' -print0 2>/dev/null |" +
		" tar -cf - --null -T - --ignore-failed-read 2>/dev/null; true"
	cmd := f.machine.Command(f.t.Context(), "sh", "-c", script)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		f.t.Fatal(err)
	}
	own := false
	for files := tar.NewReader(out); ; {
		h, err := files.Next()
		if err != nil { // its end, or a file that shrank
			break
		}
		b, err := io.ReadAll(files)
		own = own || h.Name == "var/lib/pulley/state.json"
		if err == nil && !slices.Contains(managed, h.Name) && f.leaks(b, 0) {
			found = append(found, h.Name)
		}
	}
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil || !own {
		f.t.Errorf("the disk of the machine was not read: %v", err)
	}
	return found
}

// files searches the files of serve and of the operator: etcd's data folder, the CA, logs, a backup.
func (f *secretFleet) files() (found []string) {
	f.t.Helper()
	err := filepath.WalkDir(f.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil //nolint:nilerr // etcd removes files meanwhile
		}
		if b, err := os.ReadFile(path); err == nil && f.leaks(b, 0) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return found
}

// printed searches the output of all programs.
func (f *secretFleet) printed() (found []string) {
	for _, o := range f.said {
		if f.leaks(o.text, 0) {
			found = append(found, o.of)
		}
	}
	return found
}

// leaks reports whether bytes contain the marker, also where they contain compressed parts.
func (f *secretFleet) leaks(b []byte, depth int) bool {
	for _, form := range f.forms {
		if bytes.Contains(b, form) {
			return true
		}
	}
	if depth == 3 {
		return false
	}
	for magic, open := range map[string]func(io.Reader) (io.Reader, error){
		"\x28\xb5\x2f\xfd": func(r io.Reader) (io.Reader, error) { return zstd.NewReader(r, zstd.WithDecoderConcurrency(1)) },
		"\x1f\x8b\x08":     func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
	} {
		for rest := b; ; rest = rest[1:] {
			at := bytes.Index(rest, []byte(magic))
			if at < 0 {
				break
			}
			rest = rest[at:]
			r, err := open(bytes.NewReader(rest))
			if err != nil {
				continue
			}
			plain, _ := io.ReadAll(io.LimitReader(r, 64<<20)) // an error is the end of the compressed part
			if z, ok := r.(*zstd.Decoder); ok {
				z.Close()
			}
			if len(plain) > 0 && f.leaks(plain, depth+1) {
				return true
			}
		}
	}
	return false
}

// watch samples the arguments and the environment of all processes until the result is called, which names those with a
// secret.
func (f *secretFleet) watch() func() []string {
	ctx, stop := context.WithCancel(f.t.Context())
	ended := make(chan []string, 1)
	go func() {
		found, samples := map[string]bool{}, 0
		for ; ctx.Err() == nil; samples++ {
			processes, _ := filepath.Glob("/proc/[0-9]*")
			for _, p := range processes {
				for _, name := range []string{"cmdline", "environ"} {
					if b, err := os.ReadFile(filepath.Join(p, name)); err == nil && f.leaks(b, 3) {
						found[name+" "+strconv.Quote(string(b))] = true
					}
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
		var all []string
		for place := range found {
			all = append(all, place)
		}
		f.t.Logf("processes were sampled %d times", samples)
		ended <- all
	}()
	return func() []string { stop(); return <-ended }
}
