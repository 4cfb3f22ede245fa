// Package cmd_test plays whole scenarios with the two commands as they are shipped, on real etcd. Each script in
// testdata/script reads as documentation: what an operator types, and what comes of it.
package cmd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"pulley/internal/etcdtest"
	"pulley/internal/puppettest"
)

// bin holds the two commands, built once.
var bin string

func TestMain(m *testing.M) {
	puppettest.RunAsPuppet()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "pulley-scenarios-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	build := exec.Command("go", "build", "-tags", "failpoint", "-o", dir+"/", "./pulley", "./pulley-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot build the commands: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// TestScenarios runs each script with an etcd of its own and the scripted Puppet. $PULLEY_ENDPOINTS is set; `node` makes
// the settings of a node whose root is $WORK/<node>.
func TestScenarios(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup:               setup,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"etcd": etcd, "repo": repo, "node": node, "starts": starts, "code": code, "wait": wait, "put": put,
		},
	})
}

type serverKey struct{}

func setup(env *testscript.Env) error {
	t := env.T().(testing.TB)
	server := etcdtest.Start(t)
	env.Values[serverKey{}] = server
	fake := filepath.Join(env.WorkDir, "fake")
	if err := os.Mkdir(fake, 0o755); err != nil {
		return err
	}
	puppettest.Write(t, fake)
	env.Setenv("PATH", bin+":"+env.Getenv("PATH"))
	env.Setenv("PULLEY_ENDPOINTS", server.Endpoint)
	env.Setenv("PULLEY_ENVIRONMENT", "dev")
	env.Setenv("SUDO_USER", "ann")
	return nil
}

func serverOf(ts *testscript.TestScript) *etcdtest.Server { return ts.Value(serverKey{}).(*etcdtest.Server) }

// etcd up|down starts or stops the etcd of this scenario.
func etcd(ts *testscript.TestScript, neg bool, args []string) {
	switch {
	case neg || len(args) != 1:
		ts.Fatalf("usage: etcd up|down")
	case args[0] == "up":
		serverOf(ts).Up()
	case args[0] == "down":
		serverOf(ts).Down()
	}
}

// put KEY VALUE writes what Pulley would not.
func put(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: put KEY VALUE")
	}
	_, err := serverOf(ts).Client().Put(context.Background(), args[0], args[1])
	ts.Check(err)
}

// repo DIR FILE makes a control repository whose site.pp is FILE, with $WORK replaced. The second time it only writes site.pp.
func repo(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: repo DIR FILE")
	}
	dir := ts.MkAbs(args[0])
	if _, err := os.Stat(dir); err != nil {
		ts.Check(ts.Exec("pulley", "init", dir))
		ts.Check(os.RemoveAll(filepath.Join(dir, "validate.d"))) // the starter's check is for what its own manifests do
	}
	site := strings.ReplaceAll(ts.ReadFile(args[1]), "$WORK", ts.Getenv("WORK"))
	ts.Check(os.WriteFile(filepath.Join(dir, "manifests", "site.pp"), []byte(site), 0o644))
}

// node NAME [SETTING …] writes a node's agent.yaml, with the scripted Puppet and quick limits, and registers it.
func node(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: node NAME [SETTING ...]")
	}
	settings := []string{
		"node: " + args[0], "environment: dev", "endpoints: [" + serverOf(ts).Endpoint + "]", "timeout: 2s", "verify_timeout: 2s",
		"puppet:", "  program: " + ts.MkAbs("fake/puppet"), "  state_dirs: [" + ts.MkAbs("fake/var/state") + "]",
	}
	settings = append(settings, args[1:]...)
	dir := ts.MkAbs(args[0] + "/etc/pulley")
	ts.Check(os.MkdirAll(dir, 0o755))
	ts.Check(os.WriteFile(filepath.Join(dir, "agent.yaml"), []byte(strings.Join(settings, "\n")+"\n"), 0o600))
	ts.Check(ts.Exec("pulley", "nodes", "add", args[0]))
}

// starts N: the scripted Puppet was started so often since the last `starts`.
func starts(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(strings.Join(args, ""))
	if neg || err != nil {
		ts.Fatalf("usage: starts N")
	}
	log := ts.MkAbs("fake/fake-starts")
	b, err := os.ReadFile(log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		ts.Fatalf("%v", err)
	}
	ts.Check(os.WriteFile(log, nil, 0o644))
	if got := strings.Count(string(b), "\n"); got != want {
		ts.Fatalf("Puppet was started %d times, want %d:\n%s", got, want, b)
	}
}

// code N COMMAND [ARG …]: the command ends with this exit code.
func code(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	if neg || err != nil || len(args) < 2 {
		ts.Fatalf("usage: code N COMMAND [ARG ...]")
	}
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

// wait TEXT COMMAND [ARG …] runs a command until its output contains the text, at most 30 s.
func wait(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: wait TEXT COMMAND [ARG ...]")
	}
	for end := time.Now().Add(30 * time.Second); ; {
		out, _ := exec.CommandContext(context.Background(), filepath.Join(bin, args[1]), args[2:]...).CombinedOutput()
		if strings.Contains(string(out), args[0]) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%q never appeared; last:\n%s", args[0], out)
		}
	}
}
