//go:build e2e

package providers

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/drivers/command"
	"pulley/internal/machines/drivers/conform"
)

// patience limits each wait for an expected change, on a busy machine.
const patience = 10 * time.Minute

// path contains Debian's tools: a developer's machine may have others of the same names.
const path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"

// documented returns a function that opens a command of docs/providers, as the exec driver does.
func documented(t *testing.T, environ []string, name string, args ...string) func(machines.Mark) (machines.Provider, error) {
	t.Helper()
	program, err := filepath.Abs(filepath.Join("../../docs/providers", name))
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	return func(mark machines.Mark) (machines.Provider, error) {
		return command.New(command.Config{
			Command: append([]string{program}, args...), Timeout: patience, Mark: mark, Environ: append([]string{path, "HOME=" + home}, environ...), Log: log,
		})
	}
}

// slow sets deadlines for tools that need a second for each call.
func slow(c conform.Config) conform.Config {
	c.Call, c.Boot, c.Gone, c.Poll = patience, patience, patience, 100*time.Millisecond
	return c
}

// instead returns a PATH in which a script replaces a tool. The script receives the path of the tool in "$tool".
func instead(t *testing.T, tool, script string) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, tool), []byte("#!/bin/sh\ntool=/usr/bin/"+tool+"\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return "PATH=" + folder + ":" + path[len("PATH="):]
}

// open opens a documented command for a fleet.
func open(t *testing.T, environ []string, name string, args ...string) machines.Provider {
	t.Helper()
	p, err := documented(t, environ, name, args...)(machines.Mark{Owner: "o", Fleet: "dev"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// leavesNoUserdata checks that an interrupted create leaves no file with userdata: it contains the join token of a
// node.
func leavesNoUserdata(t *testing.T, environ []string, name, tool, word string, o machines.Order) {
	t.Helper()
	folder, reached := t.TempDir(), filepath.Join(t.TempDir(), "reached")
	hangs := instead(t, tool, `case " $* " in *" `+word+` "*) touch `+reached+`; exec sleep 100; esac; exec "$tool" "$@"`)
	ctx, cutOff := context.WithTimeout(t.Context(), patience)
	defer cutOff()
	go func() { // once the tool has started
		for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(reached); err == nil {
				cutOff()
			}
		}
	}()
	o.Userdata = []byte("#!/bin/sh\n# a secret\n")
	if m, err := open(t, append(environ, hangs, "TMPDIR="+folder), name, "default", "qemu").Create(ctx, o); err == nil {
		t.Fatalf("the create was not interrupted: %+v", m)
	}
	if _, err := os.Stat(reached); err != nil {
		t.Fatalf("the tool was not called with %s: %v", word, err)
	}
	left, err := os.ReadDir(folder)
	if err != nil || len(left) != 0 {
		t.Errorf("these files are left: %v, %v", left, err)
	}
}
