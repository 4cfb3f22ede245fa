package firstboot

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const fingerprint = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// A key of the plan that is read as another, or lost on the way, makes a machine that nobody meant.
func TestPlansRoundTrip(t *testing.T) {
	full := Plan{
		Node: "controller1_t42", Role: "controller", Environment: "dev@t42", Servers: []string{"https://10.0.0.1:8443"},
		CA: []string{fingerprint}, Token: "plt_0123_abc", Endpoints: []string{"https://10.0.0.1:2379"}, Prefix: "/fleets/north",
		AllowedSigners: "/etc/pulley/allowed_signers", Mirrors: []string{"https://m.example"}, Hostname: NodeHostname,
		Proxy: "http://proxy:3128", Puppet: PuppetPlan{"openvox-agent", "8.1", "deb https://apt.example a b"},
		Schedule: "*/5 * * * *", Leave: LeavePoweroff, Steps: Replacements{Hostname: Off, Puppet: "/usr/local/sbin/install-puppet"},
	}
	if v := reflect.ValueOf(full); true {
		for i := range v.NumField() {
			if v.Field(i).IsZero() && v.Type().Field(i).Name != "CACert" { // which is for machines that join nowhere
				t.Errorf("this test leaves out %s", v.Type().Field(i).Name)
			}
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

// Whoever mistyped a plan has a machine that does not come up, and only this sentence.
func TestPlansThatMakeNoSense(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "cannot read f: it is empty",
		"node: a\nnodes: b\n":             "cannot read f: line 2: key nodes not found",
		"node: a\n---\nnode: b\n":         "a second document",
		"node: [a]\n":                     "line 1",
		"puppet:\n  pakage: x\n":          "line 2: key pakage not found in puppet",
		"steps: off\n":                    "steps: {NAME: off or /a/program}",
		"node: a\nsteps:\n  hostnme: off": "cannot use f: line 3: there is no step \"hostnme\"; the steps are network, lock, pre,",
		"steps: {puppet: ./install}":      "line 1: step puppet is \"./install\"; it may be \"off\", or the absolute path",
		"node: a\nservers: [http://a]":    "line 2: server \"http://a\" is not like https://pulley.example:8443",
		"servers: [https://a]":            "there are servers to join at, and no pin of their CA",
		"ca: [" + fingerprint + "]":       "there is a pin of a CA, and no server",
		"ca: ['sha256:12']":               "is not like sha256:… with 64 hex digits",
		"token: plt_1":                    "there is a token, and no server to join at",
		"node: a\n\nleave: reboot":        "line 3: leave is \"reboot\"; it may be \"poweroff\"",
		"leave: poweroff":                 "a machine leaves at a server, and there is none",
		"hostname: a b":                   "\"a b\" cannot be a hostname",
		"schedule: '*/5 * * *'":           "is not five fields of a crontab",
		"cacert: /a\nservers: [https://a]\nca: [" + fingerprint + "]": "line 1: cacert is what etcd is checked against where nothing is joined",
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

// A state that a power cut emptied must not stop a first boot for ever; one of a newer agent must not be overwritten.
func TestStatesThatMakeNoSense(t *testing.T) {
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
