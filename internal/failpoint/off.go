//go:build !failpoint

// Package failpoint ends the process at a named place, so that tests can show what a crash there leaves behind. Built
// without the tag `failpoint` it compiles to nothing.
package failpoint

// Here does nothing in this build.
func Here(string) {}
