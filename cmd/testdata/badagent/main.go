// Command badagent passes for a version of pulley-agent and is no good, each build in a way of its own.
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

// Stamped in by the linker: what it says of itself, how it is no good, and a real agent for all that it does well.
var version, how, real string

func main() {
	if slices.Contains(os.Args, "--version") {
		fmt.Println("pulley-agent version " + version)
		return
	}
	verb := os.Args[1]
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
		bad()
	}
	exec()
}

// bad is what it does of a tick that another agent watches.
func bad() {
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
	case "chatter": // which is no sign of life
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

// hang obeys no gentle signal.
func hang() {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-time.After(time.Hour):
	}
}

// exec becomes the real agent.
func exec() {
	os.Args[0] = real
	fmt.Fprintln(os.Stderr, syscall.Exec(real, os.Args, os.Environ()))
	os.Exit(1)
}
