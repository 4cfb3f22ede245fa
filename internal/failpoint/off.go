//go:build !failpoint

// Package failpoint ends the process at a named place, so that tests can show what a crash there leaves behind. Built
// without the tag `failpoint` it compiles to nothing.
package failpoint

// End before a place in PULLEY_FAILPOINT sends SIGTERM, and the process ends by itself: its own shutdown runs, with its reports.
const End = "end:"

// Here does nothing in this build.
func Here(string) {}
