//go:build failpoint

// Package failpoint ends the process at a named place, so that tests can show what a crash there leaves behind. Built
// without the tag `failpoint` it compiles to nothing.
package failpoint

import (
	"os"
	"os/signal"
	"syscall"
)

// End before a place in PULLEY_FAILPOINT sends SIGTERM, and the process ends by itself: its own shutdown runs, with its reports.
const End = "end:"

// Here kills this process with SIGKILL when the environment's PULLEY_FAILPOINT is this place, such as "before:apply".
func Here(place string) {
	switch os.Getenv("PULLEY_FAILPOINT") {
	case place:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case End + place:
		arrived := make(chan os.Signal, 1)
		signal.Notify(arrived, syscall.SIGTERM)
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		<-arrived
		signal.Stop(arrived)
	}
}
