//go:build e2e

package providers

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"pulley/internal/provision"
	"pulley/internal/provision/command"
	"pulley/internal/provision/conform"
)

// path is where Debian has the tools: a developer's machine may have others of the same names.
const path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"

// documented returns what opens a command of docs/providers, as the exec driver does.
func documented(t *testing.T, environ []string, name string, args ...string) func(provision.Mark) (provision.Provider, error) {
	t.Helper()
	program, err := filepath.Abs(filepath.Join("../../docs/providers", name))
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	return func(mark provision.Mark) (provision.Provider, error) {
		return command.New(command.Config{
			Command: append([]string{program}, args...), Mark: mark, Environ: append([]string{path, "HOME=" + home}, environ...), Log: log,
		})
	}
}

// slow are the deadlines for tools that take a second for each call.
func slow(c conform.Config) conform.Config {
	c.Call, c.Boot, c.Gone, c.Poll = 2*time.Minute, 2*time.Minute, 2*time.Minute, 100*time.Millisecond
	return c
}
