package main

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
)

// Every machine starts the agent every few minutes, and pays for package initialisation before main, such as large
// patterns, each time. The test counts bytes, which are constant between runs. The runtime prints them
// (https://pkg.go.dev/runtime#hdr-Environment_Variables, inittrace).
func TestAgentStartAllocatesLittle(t *testing.T) {
	const most = 800 << 10
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	var trace bytes.Buffer
	cmd.Stderr = &trace
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, &trace)
	}
	ours, sum := regexp.MustCompile(`(?m)^init (pulley/\S+) .* (\d+) bytes, \d+ allocs$`).FindAllStringSubmatch(trace.String(), -1), 0
	for _, of := range ours {
		n, err := strconv.Atoi(of[2])
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	if len(ours) < 5 || sum == 0 || sum > most {
		t.Errorf("packages of ours prepare %d bytes, want at most %d:\n%s", sum, most, &trace)
	}
	t.Logf("%d bytes in %d packages", sum, len(ours))
}
