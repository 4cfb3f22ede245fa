package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
)

// Whoever rolls back or removes the wrong thing must see it before it happens.
func TestRemovalsAskOnATerminal(t *testing.T) {
	t.Parallel()
	server, ctx := etcdtest.Start(t), t.Context()
	s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	e, err := environments.Parse("dev.yaml", []byte("roles:\n  web: {cardinality: 1}\n"))
	if err == nil {
		err = specs.In(s).PutSpec(ctx, e, 0)
	}
	if err == nil {
		err = fleet.In(s).Register(ctx, "dev", model.Host{Node: "web1", Role: "web"})
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
	if hosts, err := fleet.In(s).Hosts(ctx, e.Ref()); err != nil || len(hosts) != 1 {
		t.Errorf("after no: %v, %v", hosts, err)
	}
	if code, out, complaints := run("y\n", "nodes", "remove", "web1", "-e", "dev"); code != cli.ExitDone {
		t.Errorf("yes: %d\n%s\n%s", code, out, complaints)
	}
	if hosts, err := fleet.In(s).Hosts(ctx, e.Ref()); err != nil || len(hosts) != 0 {
		t.Errorf("after yes: %v, %v", hosts, err)
	}
	for _, args := range [][]string{
		{"operators", "revoke", "bob"}, {"token", "revoke", "1a2b3c4d"}, {"releases", "withdraw", "1.0.0", "-m", "x"},
		{"releases", "sign", "1.0.0", "--sign-key", "key", "--replace"}, {"nodes", "unlock", "web1", "-e", "dev", "-m", "x"},
	} {
		if code, out, complaints := run("\n", args...); code != cli.ExitFailed || !strings.Contains(out, "[y/N] ") || !strings.Contains(complaints, "nothing was done") {
			t.Errorf("%v: %d\n%s%s", args, code, out, complaints)
		}
	}
}

// A script without --yes must change nothing: nobody sees the question. A piped reply is none.
func TestRemovalsRefuseWithoutATerminal(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"rollback -e dev", "nodes remove web1 -e dev", "nodes unlock web1 -e dev -m x", "operators revoke bob", "token revoke 1a2b3c4d",
		"releases prune", "releases withdraw 1.0.0 -m x", "releases sign 1.0.0 --sign-key key --replace",
		"ca admin", "ca retire", "ca rotate --stolen", "ca rotate --force", "env destroy dev",
	} {
		var out, complaints bytes.Buffer
		env := cli.Env{
			Stdin: strings.NewReader("y\n"), Stdout: &out, Stderr: &complaints, Getenv: func(string) string { return "" }, Now: time.Now, User: "ann",
		}
		args := append(strings.Fields(line), "--endpoints", "http://127.0.0.1:1")
		if code := Main(t.Context(), env, args); code != 2 || !strings.Contains(complaints.String(), "cannot ask for confirmation: no terminal\n  give --yes, or --dry-run to see the changes\n") {
			t.Errorf("%s: %d\n%s%s", line, code, &out, &complaints)
		}
	}
}
