package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"pulley/internal/cli"
)

// A service that is stopped while its cluster is unreachable must not count as failed.
func TestServeEndsBeforeEtcdAnswered(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // like a signal
	var stdout, stderr bytes.Buffer
	env := cli.Env{Stdin: &bytes.Buffer{}, Stdout: &stdout, Stderr: &stderr, Getenv: func(string) string { return "" }, Now: time.Now}
	code := Main(ctx, env, []string{"serve", "--endpoints", "http://127.0.0.1:1"})
	if code != cli.ExitDone || stdout.String() != "stopping: signal received\n" || stderr.Len() > 0 {
		t.Errorf("exit code %d, %q, %q", code, stdout.String(), stderr.String())
	}
}
