package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/cli"
	"pulley/internal/publish/controlrepo"
)

// After Ctrl-C, the operator must learn whether a cleanup is needed.
func TestInterruptedPublishPrintsRemedy(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "repo")
	if _, err := controlrepo.Init(dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, said bytes.Buffer
	env := cli.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &said, Getenv: func(string) string { return "" }, Now: time.Now, User: "ann"}
	code := Main(ctx, env, []string{"publish", dir, "--version", "12.0.0", "--endpoints", "http://127.0.0.1:1"})
	want := "pulley: cannot publish 12.0.0: interrupted\n  run the command again: it continues with the objects that are in etcd\n"
	if code != cli.ExitFailed || said.String() != want {
		t.Errorf("exit code %d:\n%s", code, said.String())
	}
}
