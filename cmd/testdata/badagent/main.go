// Command badagent is a fake pulley-agent that fails, each build in its own way.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Set by the linker: the reported version, the fault with spaces around it, and a real agent for all correct behaviour.
var version, fault, real string

func main() {
	if slices.Contains(os.Args, "--version") {
		fmt.Println("pulley-agent version " + version)
		return
	}
	verb, how := os.Args[1], strings.TrimSpace(fault)
	watched := slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "--supervised-by") })
	switch verb + " " + how {
	case "selftest crash-at-start", "run crash-at-start":
		var nothing map[string]int
		nothing["x"] = 1
	case "selftest fails-selftest":
		fmt.Fprintln(os.Stderr, "a new bug")
		os.Exit(1)
	case "selftest hang-in-selftest":
		hang()
	}
	if verb == "run" && watched {
		bad(how)
	}
	exec()
}

// bad fails a tick that another agent watches.
func bad(how string) {
	pipe := os.NewFile(3, "pipe")
	switch how {
	case "crash":
		panic("a new bug")
	case "crash-in-a-step":
		fmt.Fprintln(pipe, "step observe")
		panic("a new bug")
	case "killed":
		fmt.Fprintln(pipe, "step observe")
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		hang()
	case "hang":
		hang()
	case "hang-in-a-step":
		fmt.Fprintln(pipe, "step observe")
		fmt.Fprintln(pipe, "step desire")
		hang()
	case "chatter": // must not extend a limit
		fmt.Fprintln(pipe, "step observe")
		for {
			fmt.Fprintln(pipe, strings.Repeat("x", 10_000))
			time.Sleep(time.Millisecond)
		}
	case "mute":
		os.Exit(0)
	case "liar":
		for _, step := range []string{"observe", "desire", "decide", "report"} {
			fmt.Fprintln(pipe, "step "+step)
		}
		fmt.Fprintln(pipe, `end {"code":0}`)
		os.Exit(0)
	case "unreachable":
		os.Args = append(os.Args, "--endpoints=http://127.0.0.1:1", "--timeout=1s")
	case "breaks-puppet":
		os.Args = append(os.Args, "--config="+os.Getenv("BROKEN_CONFIG"))
	}
}

// hang ignores SIGTERM.
func hang() {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-time.After(time.Hour):
	}
}

// exec replaces this process by the real agent.
func exec() {
	os.Args[0] = real
	fmt.Fprintln(os.Stderr, syscall.Exec(real, os.Args, os.Environ()))
	os.Exit(1)
}
