package firstboot

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const fingerprint = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// A key of the plan that is lost or read as another would make a wrong machine.
func TestPlansRoundTrip(t *testing.T) {
	full := Plan{
		Node: "controller1_t42", Role: "controller", Environment: "dev@t42", Token: "plt_0123_abc", Hostname: NodeHostname, Leave: LeavePoweroff, Prefix: "/fleets/north",
		Settings: Settings{
			Servers: []string{"https://10.0.0.1:8443"}, CA: []string{fingerprint}, Endpoints: []string{"https://10.0.0.1:2379"},
			AllowedSigners: "/etc/pulley/allowed_signers", Mirrors: []string{"https://m.example"}, Proxy: "http://proxy:3128", NoProxy: []string{".example.net"},
			PuppetPackage: "openvox-agent", PuppetVersion: "8.1", PackageRepo: "deb https://apt.example a b",
			Schedule: "*/5 * * * *", Steps: map[string]string{"hostname": Off, "puppet": "/usr/local/sbin/install-puppet"},
			AgentURLs: []string{"https://m.example/a"}, AgentSHA256: map[string]string{AnyArch: strings.Repeat("0", 64)}, Pre: []string{"#!/bin/sh\n"}, Post: []string{"#!/bin/sh\n"},
		},
	}
	for _, f := range full.Fields() {
		if reflect.ValueOf(f.Value).Elem().IsZero() && f.Name != "cacert" { // cacert is for machines that do not join
			t.Errorf("this test leaves out %s", f.Name)
		}
	}
	for _, p := range []Plan{full, {Node: "controller1", CACert: "/etc/pulley/ca.pem"}, {}} {
		text, err := p.Encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParsePlan("first-boot.yaml", text)
		if err != nil || !reflect.DeepEqual(p, back) {
			t.Errorf("%+v\nbecame %+v, %v, by way of\n%s", p, back, err, text)
		}
	}
}

// For a mistake in a plan, this sentence is all that an operator gets from a machine that does not start.
func TestInvalidPlansAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "cannot read f: it is empty",
		"node: a\nnodes: b\n":             "cannot read f: line 2: key nodes not found",
		"node: a\n---\nnode: b\n":         "a second document",
		"node: [a]\n":                     "line 1",
		"puppet_pakage: x\n":              "line 1: key puppet_pakage not found",
		"steps: off\n":                    "line 1: cannot unmarshal",
		"node: a\nsteps:\n  hostnme: off": "cannot use f: line 3: steps.hostnme: steps has no key \"hostnme\"\nits keys are network, lock, pre,",
		"steps: {puppet: ./install}":      "line 1: steps.puppet \"./install\": it is not off, or the absolute path",
		"node: a\nservers: [http://a]":    "line 2: servers.0 \"http://a\": it is not like https://pulley.example:8443",
		"servers: [https://a]":            "line 1: servers: there are servers without the pin of their CA",
		"ca: [" + fingerprint + "]":       "there is the pin of a CA, and no server",
		"ca: ['sha256:12']":               "is not sha256:… with 64 hex digits",
		"token: plt_1":                    "there is a token, and no server to join at",
		"node: a\n\nleave: reboot":        "line 3: leave \"reboot\": it may be poweroff",
		"leave: poweroff":                 "a machine leaves at a server, and there is none",
		"hostname: a b":                   "hostname \"a b\": it is not like",
		"schedule: '*/5 * * *'":           "line 1: schedule \"*/5 * * *\": it has 4 fields",
		"node: a\nschedule: 99 99 * * *":  "line 2: schedule \"99 99 * * *\": minute \"99\": \"99\" is not from 0 to 59",
		"allowed_signers: |\n  a\n":       "line 1: allowed_signers: it is not the absolute path of a file",
		"cacert: /a\nservers: [https://a]\nca: [" + fingerprint + "]": "line 1: cacert: a join returns",
		"node: \x00": "cannot read f",
	} {
		p, err := ParsePlan("f", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is read as %+v, %v; want an error with %q", text, p, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "firstboot.") {
			t.Errorf("%q: a name of Go's is no help: %v", text, err)
		}
	}
}

func FuzzPlan(f *testing.F) {
	f.Add("node: a\nrole: b\n")
	f.Add("steps: {puppet: /a, lock: off}")
	f.Add("a: &a [*a]")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePlan("f", []byte(text))
		if err != nil {
			return
		}
		again, err := p.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParsePlan("f", again); err != nil {
			t.Errorf("%q is a plan, and what is written of it is none: %v\n%s", text, err, again)
		}
	})
}

// A state that a power cut emptied must not stop a first boot forever. The state of a newer agent must not be
// overwritten.
func TestInvalidStatesAreRefused(t *testing.T) {
	d := Disk{t.TempDir()}
	for text, bad := range map[string]bool{"": false, "{": false, `{"v":1,"steps":{"pre":{"state":"done"}}}`: false, `{"v":2}`: true} {
		if err := os.WriteFile(filepath.Join(d.Dir, "first-boot.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := d.Load(); (err != nil) != bad {
			t.Errorf("%q is read as %+v, %v", text, s, err)
		}
	}
}
