// Package cmd_test runs complete scenarios with the two released commands on real etcd. Each script in testdata/script
// reads as documentation: an operator's commands and their results. It must never use a fake of etcd.
package cmd_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"pulley/internal/machines/drivers/local"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/puppettest"
)

// bin is the folder of the two commands, built once. repository is the folder of go.mod.
var bin, repository string

func TestMain(m *testing.M) {
	puppettest.RunAsPuppet()
	local.MaybeInit()
	os.Exit(run(m))
}

// atEnd ends what the tests share.
var atEnd []func() error

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "pulley-scenarios-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	if repository, err = filepath.Abs(".."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	build := exec.Command("go", "build", "-tags", "failpoint", "-ldflags=-s -w", "-o", dir+"/", "./pulley", "./pulley-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot build the commands: %v\n%s", err, out)
		return 1
	}
	if err := os.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config")); err != nil { // not the contexts of this machine's user
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// Scenarios wait more than they compute.
	if err := flag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	for _, end := range atEnd {
		if err := end(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// TestScenarios runs each script with its own etcd and the scripted Puppet. $PULLEY_ENDPOINTS is set. words_test.go
// defines the additional commands of the scripts. They take longer than all tests of packages together, so -short skips
// them.
func TestScenarios(t *testing.T) {
	if testing.Short() {
		t.Skip("the scripts are not for -short")
	}
	t.Parallel()
	play(t, "testdata/script", setup)
}

// play runs the scripts of a folder.
func play(t *testing.T, dir string, setup func(*testscript.Env) error) {
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup:               setup,
		Condition:           condition,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"etcd": scriptEtcd, "put": put, "delete": deleteKeys, "damage": damage, "restore": restore,
			"release": release, "node": node, "fleet": scriptFleet,
			"starts": starts, "code": code, "until": until, "appears": appears, "running": running,
			"shift": shift, "capture": capture, "keys": keys, "documented": documented,
			"sign-with": signWith, "signers": signers, "revoked": revoked,
			"agent": agentProgram, "secured": secured, "outdated": outdated, "machine": machine,
			"connections": connections, "leases": leases, "hostile": hostile, "flood": flood, "write": write, "runbook": runbook, "page": pageScript, "shows": shows,
			"dump": dump, "private": private, "puppetserver": puppetServer, "users": users, "plant": plant, "age": age, "keep": keep, "replay": replay, "change": change, "flip": flip,
		},
	})
}

// condition reports whether a line of a scenario counts: [away] in a run with PULLEY_TEST_AWAY.
func condition(name string) (bool, error) {
	if name != "away" {
		return false, fmt.Errorf("there is no condition [%s]", name)
	}
	return os.Getenv("PULLEY_TEST_AWAY") != "", nil
}

type serverKey struct{}

func setup(env *testscript.Env) error {
	t := env.T().(testing.TB)
	server := etcdtest.Start(t)
	env.Values[serverKey{}] = server
	env.Values[startedKey{}] = map[string]*exec.Cmd{}
	env.Values[puppetServerKey{}] = new(puppetBackend)
	fake := filepath.Join(env.WorkDir, "fake")
	for _, dir := range []string{fake, filepath.Join(env.WorkDir, "machine"), filepath.Join(fake, "etc"), filepath.Join(fake, "var", "state")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	puppettest.Write(t, fake)
	env.Setenv("PATH", bin+":"+env.Getenv("PATH"))
	env.Setenv("PULLEY_ENDPOINTS", server.Endpoint)
	env.Setenv("PULLEY_ENVIRONMENT", "dev")
	env.Setenv("PULLEY_DATA_DIR", filepath.Join(env.WorkDir, "pulley-data"))
	env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))                             // the contexts of operators
	env.Setenv("PROVIDERS", filepath.Join(repository, "cmd", "testdata", "providers")) // for the exec driver
	env.Setenv("SUDO_USER", "ann")
	env.Setenv("XDG_CACHE_HOME", filepath.Join(env.WorkDir, "cache"))                      // the object cache of publish
	env.Setenv("NET", fmt.Sprintf("127.%d.%d", 64+os.Getpid()/200%128, 1+os.Getpid()%200)) // loopback addresses of this process
	env.Setenv("LONG", strconv.Itoa(1_000_000+os.Getpid()))                                // a unique number of seconds for sleep
	return nil
}
