package cmd_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// etcdProgram builds etcd's own program once, in the version of the embedded etcd.
var etcdProgram = sync.OnceValue(func() error {
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", filepath.Join(bin, "etcd"), "go.etcd.io/etcd/server/v3")
	build.Dir, build.Env = repository, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build etcd: %w\n%s", err, out)
	}
	return nil
})

// startedKey is the key of the programs that a script has started, by name.
type startedKey struct{}

// The addresses in docs/runbook.md. Members' traffic has no certificates in the test.
var (
	exampleHost = regexp.MustCompile(`(?:etcd|10\.0\.0\.)(\d)(?:\.example\.com)?:`)
	exampleName = regexp.MustCompile(`--host \S+(\d)(\.example\.com)?`)
	peerURL     = regexp.MustCompile(`https://([\d.]+:2380)`)
)

// runbook HEADING N [MEMBER] runs the Nth block of commands below a heading of docs/runbook.md. Etcd and serve continue
// to run as etcdMEMBER and serve. MEMBER also replaces the member in the commands. The variables that a block exports are
// kept. `runbook kill NAME` kills such a program.
func runbook(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) < 2 || len(args) > 3, "runbook HEADING N [MEMBER], or runbook kill NAME")
	started, ok := ts.Value(startedKey{}).(map[string]*exec.Cmd)
	if !ok {
		ts.Fatalf("no programs can be started")
	}
	end := func(name string) {
		if cmd := started[name]; cmd != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			delete(started, name)
		}
	}
	if args[0] == "kill" {
		end(args[1])
		return
	}
	ts.Check(etcdProgram())
	commands := blockOf(ts, args[0], args[1])
	if len(args) == 3 {
		commands = regexp.MustCompile(`etcd\d|10\.0\.0\.\d`).ReplaceAllStringFunc(commands, func(s string) string { return s[:len(s)-1] + args[2] })
	}
	net := ts.Getenv("NET")
	commands = exampleName.ReplaceAllString(commands, "--host "+net+".$1")
	commands = exampleHost.ReplaceAllString(commands, net+".$1:")
	commands = peerURL.ReplaceAllString(commands, "http://$1")
	commands = strings.NewReplacer("0.0.0.0:8443", net+".9:8443", "--sign-key KEY", "--sign-key alice", " …", "").Replace(commands)

	run, name := "set -e\n"+commands+"\nexport -p | grep -E '(ETCDCTL|PULLEY)_' >$WORK/exported || true\n", ""
	last := strings.LastIndex("\n"+commands, "\n")
	switch daemon := commands[last:]; {
	case strings.HasPrefix(daemon, "etcd "):
		name = "etcd" + args[2]
	case strings.HasPrefix(daemon, "pulley serve "):
		name = "serve"
	}
	if name != "" {
		run = "set -e\n" + commands[:last] + "exec " + commands[last:]
	}
	shell := func() *exec.Cmd {
		cmd := exec.Command("sh", "-c", run)
		cmd.Dir, cmd.Env = ts.MkAbs("."), surroundings(ts)
		return cmd
	}
	if name == "" {
		out, err := shell().CombinedOutput()
		for end := time.Now().Add(patience); err != nil && strings.Contains(string(out), "unhealthy cluster") && time.Now().Before(end); time.Sleep(time.Second) {
			out, err = shell().CombinedOutput() // as the page says
		}
		ts.Logf("%s\n%s", commands, out)
		ts.Check(os.WriteFile(ts.MkAbs("out"), out, 0o600))
		if err != nil {
			ts.Fatalf("%s: %v", args[0], err)
		}
		for _, m := range regexp.MustCompile(`((?:ETCDCTL|PULLEY)_\w+)='?([^'\n]*)`).FindAllStringSubmatch(ts.ReadFile(filepath.Join(ts.Getenv("WORK"), "exported")), -1) {
			ts.Setenv(m[1], m[2])
		}
		return
	}
	end(name)
	cmd := shell()
	log, err := os.Create(filepath.Join(ts.Getenv("WORK"), name+".log"))
	ts.Check(err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = log, log, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	ts.Check(cmd.Start())
	started[name] = cmd
	ts.Defer(func() { end(name) })
}

// blockOf returns a block of commands of docs/runbook.md, without its indentation and with joined lines.
func blockOf(ts *testscript.TestScript, heading, number string) string {
	text, err := os.ReadFile(filepath.Join(repository, "docs", "runbook.md"))
	ts.Check(err)
	n, err := strconv.Atoi(number)
	ts.Check(err)
	_, section, found := strings.Cut(string(text), "# "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, b := range parsePage("runbook", section).blocks {
		if b.language != "sh" {
			continue
		}
		if n--; n == 0 {
			for i, line := range b.lines {
				b.lines[i] = strings.TrimSpace(line)
			}
			return strings.ReplaceAll(strings.Join(b.lines, "\n"), "\\\n", "")
		}
	}
	ts.Fatalf("docs/runbook.md has no block %s below %q (%v)", number, heading, found)
	return ""
}
