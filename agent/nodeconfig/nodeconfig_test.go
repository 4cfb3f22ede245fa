package nodeconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/cli"
)

// People and machines write the settings: for any content, the agent must report the error and not panic.
func FuzzParseFile(f *testing.F) {
	for _, s := range []string{
		"node: controller1\nenvironment: dev\n", "", "node: [", "nodes: x\n", "enforce_interval: 5\n", "puppet: {deadline: 1h}\n",
		"endpoints: http://x\n", "\tnode: x\n", "a: &a [*a]\n", "node: \xff\n", "max_attempts: -1\n", "---\nnode: a\n---\nnode: b\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := ParseFile("agent.yaml", b); err != nil && !strings.HasPrefix(err.Error(), "cannot read agent.yaml: ") {
			t.Error(err)
		}
	})
}

func load(t *testing.T, text string, vars map[string]string, change func(*Flags)) (Config, error) {
	t.Helper()
	root := t.TempDir()
	if text != "" {
		if err := os.MkdirAll(filepath.Join(root, "etc/pulley"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "etc/pulley/agent.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := &Flags{Root: root}
	if change != nil {
		change(o)
	}
	return o.Load(cli.Env{Getenv: func(k string) string { return vars[k] }})
}

// A node with the wrong identity applies another node's catalog.
func TestIdentityOfNode(t *testing.T) {
	for name, c := range map[string]struct {
		text   string
		vars   map[string]string
		change func(*Flags)
		want   string // node, certname, role, environment, Puppet's environment; or part of an error
	}{
		"from the file":                 {"node: controller1\nenvironment: dev\n", nil, nil, "controller1 controller1 controller dev dev"},
		"of a stack":                    {"node: controller1_t42\nenvironment: dev\n", nil, nil, "controller1_t42 controller1-t42 controller dev@t42 dev"},
		"of a stack, said twice":        {"node: controller1_t42\nenvironment: dev@t42\n", nil, nil, "controller1_t42 controller1-t42 controller dev@t42 dev"},
		"of two stacks":                 {"node: controller1_t42\nenvironment: dev@t43\n", nil, nil, "t43"},
		"a flag wins over the file":     {"node: controller1\nenvironment: dev\n", nil, func(o *Flags) { o.Node = "compute2" }, "compute2 compute2 compute dev dev"},
		"a variable wins over the file": {"node: controller1\nenvironment: dev\n", map[string]string{"PULLEY_NODE": "compute3", "PULLEY_ENVIRONMENT": "prod"}, nil, "compute3 compute3 compute prod prod"},
		"another name with its role":    {"node: db.example.com\nrole: database\nenvironment: dev\n", nil, nil, "db.example.com db.example.com database dev dev"},
		"another name without one":      {"node: db.example.com\nenvironment: dev\n", nil, nil, "give its role"},
		"no environment":                {"node: controller1\n", nil, nil, "missing the environment"},
		"an unknown key":                {"node: controller1\nenvironment: dev\nintervall: 5m\n", nil, nil, "line 3: field intervall not found"},
		"two documents":                 {"node: controller1\n---\nenvironment: dev\n", nil, nil, "second document"},
		"a number without a unit":       {"node: controller1\nenvironment: dev\nheartbeat: 5x\n", nil, nil, "line 3"},
		"a mirror without TLS":          {"node: controller1\nenvironment: dev\nmirrors: ['http://mirror.example']\n", nil, nil, "cannot use mirror http://mirror.example"},
		"a mirror that is none":         {"node: controller1\nenvironment: dev\nmirrors: [mirror.example]\n", nil, nil, "cannot use mirror mirror.example"},
		"one mirror as a word":          {"node: controller1\nenvironment: dev\nmirrors: https://mirror.example\n", nil, nil, "line 3"},
		"signers as a list":             {"node: controller1\nenvironment: dev\nallowed_signers: [a]\n", nil, nil, "line 3"},
		"a negative interval":           {"node: controller1\nenvironment: dev\nenforce_interval: -5m\n", nil, nil, "enforce_interval is -5m0s"},
	} {
		got, err := load(t, c.text, c.vars, c.change)
		id := got.Identity
		says := strings.Join([]string{id.Node, id.Certname, id.Role, id.Environment, id.PuppetEnvironment}, " ")
		if err != nil {
			says = err.Error()
		}
		if err == nil && says != c.want || err != nil && !strings.Contains(says, c.want) {
			t.Errorf("%s: %s; want %s", name, says, c.want)
		}
	}
}

// A limit that silently falls back to its default would be found only in an outage.
func TestLimitsOfFile(t *testing.T) {
	c, err := load(t, "node: controller1\nenvironment: dev\nenforce_interval: 10m\nheartbeat: 1m\nmax_attempts: 2\nverify_timeout: 9s\ntimeout: 3s\npuppet: {deadline: 2h, grace: 5s, program: /opt/p}\n", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Settings.EnforceInterval != 10*time.Minute || c.Settings.Heartbeat != time.Minute || c.Settings.MaxAttempts != 2 ||
		c.VerifyTimeout != 9*time.Second || c.Store.Timeout != 3*time.Second || c.Puppet.Deadline != 2*time.Hour || c.Puppet.Program != "/opt/p" {
		t.Errorf("%+v", c)
	}
	if c, err = load(t, "node: controller1\nenvironment: dev\n", nil, nil); err != nil || c.Settings.EnforceInterval != 30*time.Minute || c.VerifyTimeout != defaultVerifyTimeout {
		t.Errorf("defaults: %+v, %v", c.Settings, err)
	}
}

// A node that reads its signers from the wrong path verifies no signature, or refuses every release.
func TestSignersAndMirrors(t *testing.T) {
	const text = "node: controller1\nenvironment: dev\nallowed_signers: /a\nrevoked_signers: /r\nmirrors: ['https://m1.example', 'https://m2.example/x/']\n"
	flags := func(o *Flags) {
		o.AllowedSigners, o.RevokedSigners, o.Mirrors = "/b", "/s", []string{"https://m3.example"}
	}
	type place struct {
		path  string // below the root unless it begins with /
		named bool
	}
	for name, c := range map[string]struct {
		text             string
		change           func(*Flags)
		allowed, revoked place
		mirror           string
	}{
		"by default":     {"node: controller1\nenvironment: dev\n", nil, place{"etc/pulley/allowed_signers", false}, place{"etc/pulley/revoked_signers", false}, ""},
		"in the file":    {text, nil, place{"/a", true}, place{"/r", true}, "https://m1.example https://m2.example/x/"},
		"flag wins":      {text, flags, place{"/b", true}, place{"/s", true}, "https://m3.example"},
		"only the flags": {"node: controller1\nenvironment: dev\n", flags, place{"/b", true}, place{"/s", true}, "https://m3.example"},
	} {
		got, err := load(t, c.text, nil, c.change)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []*place{&c.allowed, &c.revoked} {
			if !filepath.IsAbs(want.path) {
				want.path = filepath.Join(got.Root, want.path)
			}
		}
		var allowed, revoked place
		allowed.path, allowed.named = got.AllowedSignersFile()
		revoked.path, revoked.named = got.RevokedSignersFile()
		if allowed != c.allowed || revoked != c.revoked || strings.Join(got.Mirrors, " ") != c.mirror {
			t.Errorf("%s: allowed %+v, revoked %+v, mirrors %v", name, allowed, revoked, got.Mirrors)
		}
	}
}

// A node that has joined must use its identity: etcd refuses it otherwise. An etcd in plain text needs none.
func TestIdentityOfJoinIsUsed(t *testing.T) {
	for say, c := range map[string]struct {
		text   string
		joined bool
		cert   string // the certificate if none is configured
	}{
		"joined":                     {"endpoints: [https://e:2379]", true, ""},
		"in plain text":              {"endpoints: [http://e:2379]", false, ""},
		"with files of its own":      {"endpoints: [https://e:2379]\ncert: /a.pem\nkey: /a.key\ncacert: /ca.pem", false, "/a.pem"},
		"with a CA of its own":       {"endpoints: [https://e:2379]\ncacert: /ca.pem", false, ""},
		"with an endpoint of either": {"endpoints: [http://e:2379, https://e:2379]", true, ""},
	} {
		t.Run(say, func(t *testing.T) {
			for _, there := range []bool{true, false} {
				got, err := load(t, "node: web1\nenvironment: dev\n"+c.text+"\n", nil, func(o *Flags) {
					file := filepath.Join(o.Root, "var/lib/pulley/identity/node.pem")
					if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
						t.Fatal(err)
					}
					if !there {
						return
					}
					if err := os.WriteFile(file, nil, 0o600); err != nil {
						t.Fatal(err)
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				joined := there && c.joined
				if got.Joined() != joined || !joined && got.Store.Cert != c.cert || joined && (got.Store.Key != got.IdentityFile() || got.Store.CACert != got.BundleFile()) {
					t.Errorf("with an identity on the disk: %t; it goes to etcd with %+v", there, got.Store)
				}
			}
		})
	}
}
