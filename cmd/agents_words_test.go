package cmd_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
)

// agents are the builds of pulley-agent for the scripts. Each is built once.
var agents struct {
	sync.Mutex
	built map[string]string // by version and fault
}

// agent VERSION FILE [FAULT] writes a build of pulley-agent that reports this version. With a fault, the build fails in
// that way (testdata/badagent).
func agentProgram(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) < 2 || len(args) > 3, "agent VERSION FILE [FAULT]")
	program, err := buildAgent(args[0], slices.Concat(args[2:], []string{""})[0])
	ts.Check(err)
	b, err := os.ReadFile(program)
	ts.Check(err)
	to := ts.MkAbs(args[1])
	ts.Check(os.MkdirAll(filepath.Dir(to), 0o755))
	ts.Check(os.WriteFile(to+".new", b, 0o755))
	ts.Check(os.Rename(to+".new", to))
}

func buildAgent(version, fault string) (string, error) {
	agents.Lock()
	defer agents.Unlock()
	key := version + " " + fault
	if program, ok := agents.built[key]; ok {
		return program, nil
	}
	program := filepath.Join(bin, "agents", version+"-"+fault, "pulley-agent")
	flags, from := "-X main.version="+version, "./pulley-agent"
	if fault != "" {
		flags += " -X main.how=" + fault + " -X main.real=" + filepath.Join(bin, "pulley-agent")
		from = "./testdata/badagent"
	}
	cmd := exec.Command("go", "build", "-tags", "failpoint", "-ldflags", flags, "-o", program, from)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build agent %s %s: %w\n%s", version, fault, err, out)
	}
	if agents.built == nil {
		agents.built = map[string]string{}
	}
	agents.built[key] = program
	return program, nil
}
