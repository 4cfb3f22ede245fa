//go:build failpoint

// Package failpoint ends the process at a named place, so that tests can show what a crash there leaves behind. Built
// without the tag `failpoint` it compiles to nothing.
package failpoint

import (
	"os"
	"strings"
	"syscall"
)

// Here dies when the environment's PULLEY_FAILPOINT names this place: "before:apply=exit" ends with os.Exit(3) and no
// deferred calls, "after:commit=kill" with SIGKILL to the process itself.
func Here(name string) {
	place, how, ok := strings.Cut(os.Getenv("PULLEY_FAILPOINT"), "=")
	if !ok || place != name {
		return
	}
	switch how {
	case "exit":
		os.Exit(3) //nolint:forbidigo // dying without deferred calls is what it is for
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
