//go:build failpoint

// Package failpoint ends the process at a named place, so that tests can show what a crash there leaves behind. Built
// without the tag `failpoint` it compiles to nothing.
package failpoint

import (
	"os"
	"syscall"
)

// Here kills this process with SIGKILL when the environment's PULLEY_FAILPOINT is this place, such as "before:apply".
func Here(place string) {
	if os.Getenv("PULLEY_FAILPOINT") == place {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
