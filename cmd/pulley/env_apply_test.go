package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/machines"
	"pulley/internal/machines/boots"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/testbed/etcdtest"
	"pulley/userdata"
)

// applied starts an apply of an environment, with the flags of a command line.
func applied(t *testing.T, file string, args ...string) (*etcd.DB, *records.Fleet, *environments.Environment, error) {
	t.Helper()
	e, err := environments.Parse("dev.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	server := etcdtest.Start(t)
	o := &options{env: cli.Env{Getenv: func(string) string { return "" }, Now: time.Now, User: "ann", Stderr: &bytes.Buffer{}}}
	u := firstBootFlags{options: o}
	c := &cobra.Command{}
	o.connection.AddFlags(c.Flags())
	u.add(c.Flags())
	if err := c.ParseFlags(append(args, "--endpoints", server.Endpoint)); err != nil {
		t.Fatal(err)
	}
	s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	a, err := records.In(s).BeginApply(t.Context(), e.Ref(), "ann")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	boot, err := u.prepare(c, e.Ref())
	if err == nil {
		err = u.complete(t.Context(), s, c, e, boot)
	}
	if err != nil {
		return s, nil, e, err
	}
	f, err := records.NewFleet(a, e, userdata.Script, boot)
	return s, f, e, err
}

// boot records the order for a node's machine, replacing the earlier one, and returns the machine's userdata.
func boot(t *testing.T, f *records.Fleet, e *environments.Environment, node string) (text, token string) {
	t.Helper()
	n, err := model.ParseNode(node)
	if err != nil {
		t.Fatal(err)
	}
	r, _ := e.Role(n.Role)
	b, k, err := f.Userdata(machines.Order{Node: node, Name: n.Hostname(), Role: n.Role}, r, userdata.Script)
	if err != nil {
		t.Fatal(err)
	}
	w, err := f.World(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next := machines.Record{Node: node, Name: n.Hostname(), Phase: machines.Making, Token: k.ID, At: time.Now().UTC().Truncate(time.Second), By: "ann"}
	was := (*machines.Record)(nil)
	if r, ok := w.Records[node]; ok {
		was, next.Tries = &r, r.Tries+1
	}
	if err := f.Order(t.Context(), next, was, k); err != nil {
		t.Fatal(err)
	}
	return string(b), k.ID
}

// A machine with another machine's token could take its name. A token with a long lifetime could be copied later. Each
// repeated order would leave one more valid token.
func TestEachMachineGetsOwnToken(t *testing.T) {
	const pin = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	s, f, e, err := applied(t, "provider: local\nroles:\n  web: {cardinality: 2, replace: {timeout: 20m}}\n", "--servers", "https://pulley.example:8443", "--ca", pin)
	if err != nil {
		t.Fatal(err)
	}
	if all, _, err := access.TokensIn(s).List(t.Context()); err != nil || len(all) > 0 {
		t.Fatalf("before any machine is asked for there are tokens: %+v, %v", all, err)
	}
	_, first := boot(t, f, e, "web1")
	text, second := boot(t, f, e, "web1")
	_, other := boot(t, f, e, "web2")
	if !strings.Contains(text, "plt_"+second+"_") || strings.Contains(text, boots.PlaceholderToken) {
		t.Errorf("its userdata does not have token %s:\n%s", second, text)
	}
	for id, want := range map[string]struct {
		node  string
		ended bool
	}{first: {"web1", true}, second: {"web1", false}, other: {"web2", false}} {
		k, err := access.TokensIn(s).Find(t.Context(), id)
		if err != nil || k == nil {
			t.Fatalf("token %s: %v", id, err)
		}
		if k.Node != want.node || k.Role != "" || k.Environment != "dev" || k.Uses != 1 || k.By != "ann" || k.Expires.Sub(k.Created) != 80*time.Minute || k.Ended(time.Now()) != want.ended {
			t.Errorf("token %s is %+v", id, k)
		}
	}
}

// The settings in the environment's file must reach the machine. A role's setting overrides its environment's.
func TestMachineGetsSettingsOfFile(t *testing.T) {
	s, f, e, err := applied(t, `provider: local
userdata: {schedule: "*/7 * * * *", proxy: "http://proxy.example:3128", pre: ["#!/bin/sh\necho of all\n"]}
roles:
  web: {cardinality: 1}
  db: {cardinality: 1, userdata: {schedule: "*/9 * * * *", pre: ["#!/bin/sh\necho of db\n"]}}
`, "--schedule", "*/3 * * * *", "--puppet-package", "openvox-agent")
	if err != nil {
		t.Fatal(err)
	}
	for node, want := range map[string][]string{
		"web1": {"*/7 * * * *", "http://proxy.example:3128", "openvox-agent", "echo of all", "web1"},
		"db1":  {"*/9 * * * *", "http://proxy.example:3128", "openvox-agent", "echo of all", "echo of db", "db1"},
	} {
		text, token := boot(t, f, e, node)
		for _, word := range want {
			if !strings.Contains(text, word) {
				t.Errorf("the userdata of %s does not say %q:\n%s", node, word, text)
			}
		}
		if token != "" || strings.Contains(text, "plt_") {
			t.Errorf("%s joins nowhere, and has token %q", node, token)
		}
		if !strings.Contains(text, s.Endpoints) {
			t.Errorf("%s does not know the operator's etcd %s:\n%s", node, s.Endpoints, text)
		}
	}
	if all, _, err := access.TokensIn(s).List(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("tokens were made for who joins nowhere: %+v, %v", all, err)
	}
}

// Userdata that cannot boot must be refused before anything is deleted.
func TestUnbootableUserdataIsRefusedFirst(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"servers without a pin": {[]string{"--servers", "https://pulley.example:8443"}, "role web: its machines could not verify their servers"},
		"a missing step":        {[]string{"--steps", "nosuch=off"}, `cannot use --steps: steps has no key "nosuch"`},
		"a refused schedule":    {[]string{"--schedule", "99 99 * * *"}, `cannot use --schedule "99 99 * * *": minute "99"`},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, _, err := applied(t, "provider: local\nroles:\n  web: {cardinality: 1}\n", c.args...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is: %v", err)
			}
			if all, _, err := access.TokensIn(s).List(t.Context()); err != nil || len(all) > 0 {
				t.Errorf("tokens were made: %+v, %v", all, err)
			}
		})
	}
	if _, _, _, err := applied(t, "provider: local\nroles:\n  web: {cardinality: 0}\n", "--servers", "https://pulley.example:8443"); err != nil {
		t.Errorf("where no machine is made: %v", err)
	}
}

// The machines of a role must get the pins of the role's own servers, and no others.
func TestServersOfFileArePinned(t *testing.T) {
	read := func(text string) *environments.Environment {
		e, err := environments.Parse("dev.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	e := read("provider: local\nroles:\n  web: {cardinality: 1, userdata: {servers: ['https://west.example']}}\n  db: {cardinality: 1}\n")
	if err := (boots.Connection{}).Complete(e, boots.Given{}); err == nil || !strings.Contains(err.Error(), "role web") {
		t.Errorf("without pins the error is: %v", err)
	}
	pins := []string{"sha256:" + strings.Repeat("a", 64)}
	if err := (boots.Connection{Pins: pins}).Complete(e, boots.Given{}); err != nil || len(e.Roles[0].Userdata.CA) != 1 || len(e.Roles[1].Userdata.CA)+len(e.Userdata.CA) > 0 {
		t.Errorf("they are %+v, %v", e, err)
	}
	e = read("userdata: {servers: ['https://east.example']}\nroles: {web: {cardinality: 1}, db: {cardinality: 1}}\n")
	if err := (boots.Connection{Pins: pins}).Complete(e, boots.Given{}); err != nil || len(e.Userdata.CA) != 1 || len(e.Roles[0].Userdata.CA) > 0 {
		t.Errorf("they are %+v, %v", e, err)
	}
}

// A new role, or one that loses its own list of signers, must not run unsigned releases.
func TestApplyFindsRoleWithoutSigners(t *testing.T) {
	const all, own = "userdata: {allowed_signers: a ssh-ed25519 AAAAC3NzaC1lZDI1NTE5}\n", ", userdata: {allowed_signers: b ssh-ed25519 AAAAC3NzaC1lZDI1NTE5}"
	for _, c := range []struct{ was, now, want string }{
		{"roles: {web: {cardinality: 1}}", "roles: {web: {cardinality: 1}}", ""},
		{all + "roles: {web: {cardinality: 1}}", all + "roles: {web: {cardinality: 2}, db: {cardinality: 1}}", ""},
		{all + "roles: {web: {cardinality: 1}}", "roles: {web: {cardinality: 1" + own + "}, db: {cardinality: 1}}", "db"},
		{"roles: {web: {cardinality: 1" + own + "}}", "roles: {web: {cardinality: 1}}", "web"},
		{"roles: {web: {cardinality: 1" + own + "}, db: {cardinality: 1}}", "roles: {db: {cardinality: 1}}", ""},
	} {
		was, err := environments.Parse("dev.yaml", []byte(c.was))
		if err != nil {
			t.Fatal(err)
		}
		now, err := environments.Parse("dev.yaml", []byte(c.now))
		if err != nil {
			t.Fatal(err)
		}
		if got := boots.UnsignedRole(was, now); got != c.want {
			t.Errorf("%s\nto %s: %q, want %q", c.was, c.now, got, c.want)
		}
	}
}
