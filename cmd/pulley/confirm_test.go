package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/store"
	"pulley/internal/testbed/etcdtest"
)

// Whoever rolls back or removes the wrong thing must see it before it happens.
func TestRemovalsAskOnATerminal(t *testing.T) {
	t.Parallel()
	server, ctx := etcdtest.Start(t), t.Context()
	s, err := store.Open(store.Config{Endpoints: []string{server.Endpoint}, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	e, err := environments.Parse("dev.yaml", []byte("roles:\n  web: {cardinality: 1}\n"))
	if err == nil {
		err = s.Environments.PutSpec(ctx, e, 0)
	}
	if err == nil {
		err = s.Fleet.Register(ctx, "dev", agent.Host{Node: "web1", Role: "web"})
	}
	if err != nil {
		t.Fatal(err)
	}
	run := func(reply string, args ...string) (code int, stdout, stderr string) {
		var out, complaints bytes.Buffer
		env := cli.Env{
			Stdin: strings.NewReader(reply), Stdout: &out, Stderr: &complaints, Getenv: func(string) string { return "" },
			Now: time.Now, Terminal: true, ErrTerminal: true, User: "ann",
		}
		code = Main(ctx, env, append(args, "--endpoints", server.Endpoint))
		return code, out.String(), complaints.String()
	}
	code, out, complaints := run("n\n", "nodes", "remove", "web1", "-e", "dev")
	if code != cli.ExitFailed || !strings.Contains(out, "web1 leaves dev: its entry in the host list, its holds and its own target are deleted.\nRemove it? [y/N] ") || !strings.Contains(complaints, "not confirmed; nothing was done") {
		t.Errorf("no: %d\n%s\n%s", code, out, complaints)
	}
	if hosts, err := s.Fleet.Hosts(ctx, e.Ref()); err != nil || len(hosts) != 1 {
		t.Errorf("after no: %v, %v", hosts, err)
	}
	if code, out, complaints := run("y\n", "nodes", "remove", "web1", "-e", "dev"); code != cli.ExitDone {
		t.Errorf("yes: %d\n%s\n%s", code, out, complaints)
	}
	if hosts, err := s.Fleet.Hosts(ctx, e.Ref()); err != nil || len(hosts) != 0 {
		t.Errorf("after yes: %v, %v", hosts, err)
	}
	for _, args := range [][]string{{"operators", "revoke", "bob"}, {"token", "revoke", "1a2b3c4d"}} {
		if code, out, _ := run("\n", args...); code != cli.ExitFailed || !strings.Contains(out, "[y/N] ") {
			t.Errorf("%v: %d\n%s", args, code, out)
		}
	}
}
