package boots

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/firstboot"
	"pulley/internal/model"
)

const signer = "alice@dev ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm8Y7cAjAOJKk1UyHSV1vTM9WKTVQkTNBXEdUDX9LBb\n"

var (
	now          = time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	oldPin       = "sha256:" + strings.Repeat("a", 64)
	newPin       = "sha256:" + strings.Repeat("b", 64)
	noStack      = model.Ref{Environment: "dev"}
	serverOnly   = firstboot.Settings{Servers: []string{"https://s.example"}}
	pinnedServer = firstboot.Settings{Servers: serverOnly.Servers, CA: []string{newPin}}
)

// fails reports an error that does not contain want; want "" means no error.
func fails(t *testing.T, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v, want one with %q", err, want)
	}
}

// A machine with another name, role or stack than its operator meant would get the settings of other nodes.
func TestForNode(t *testing.T) {
	for name, c := range map[string]struct {
		ref        model.Ref
		node, role string
		keep       bool
		want       firstboot.Plan
		problem    string
	}{
		"a node":                  {noStack, "web1", "", false, firstboot.Plan{Node: "web1", Role: "web", Hostname: "web1", Environment: "dev"}, ""},
		"a node of a stack":       {noStack, "web1_t42", "", false, firstboot.Plan{Node: "web1_t42", Role: "web", Hostname: "web1-t42", Environment: "dev@t42"}, ""},
		"a node and its role":     {noStack, "web1", "web", true, firstboot.Plan{Node: "web1", Role: "web", Hostname: "web1", Environment: "dev"}, ""},
		"the next node":           {noStack, "", "web", false, firstboot.Plan{Role: "web", Hostname: firstboot.NodeHostname, Environment: "dev"}, ""},
		"a machine":               {noStack, "old.example.com", "web", false, firstboot.Plan{Node: "old.example.com", Role: "web", Environment: "dev"}, ""},
		"a machine like a node":   {noStack, "db1", "web", true, firstboot.Plan{Node: "db1", Role: "web", Environment: "dev"}, ""},
		"another role":            {noStack, "db1", "web", false, firstboot.Plan{}, "db1 is of role db, not of web\nfor a machine that exists"},
		"no role":                 {noStack, "old.example.com", "", false, firstboot.Plan{}, "give its role: --role ROLE"},
		"neither":                 {noStack, "", "", false, firstboot.Plan{}, "cannot use role name"},
		"a node of another stack": {model.Ref{Environment: "dev", Stack: "t1"}, "web1_t42", "", false, firstboot.Plan{}, "it is not of stack t1"},
	} {
		t.Run(name, func(t *testing.T) {
			got, ref, err := ForNode(c.ref, c.node, c.role, c.keep)
			fails(t, err, c.problem)
			if err == nil && (!reflect.DeepEqual(got, c.want) || ref.String() != c.want.Environment) {
				t.Errorf("got %+v of %s, want %+v", got, ref, c.want)
			}
		})
	}
}

// A machine without a pin could join at a foreign server; one without a valid signer accepts no release.
func TestForMachine(t *testing.T) {
	connection := Connection{Prefix: "/p", Endpoints: []string{"https://etcd:2379"}, CACert: "certificates", Pins: []string{newPin}}
	base := firstboot.Plan{Node: "web1", Role: "web", Hostname: "web1", Environment: "dev", Prefix: "/p"}
	with := func(change func(*firstboot.Plan)) firstboot.Plan {
		p := base
		change(&p)
		return p
	}
	for name, c := range map[string]struct {
		of       Connection
		settings firstboot.Settings
		want     firstboot.Plan
		problem  string
	}{
		"without a join": {connection, firstboot.Settings{}, with(func(p *firstboot.Plan) {
			p.Endpoints, p.CACert = connection.Endpoints, "certificates"
		}), ""},
		"own endpoints": {connection, firstboot.Settings{Endpoints: []string{"e:1"}}, with(func(p *firstboot.Plan) {
			p.Endpoints, p.CACert = []string{"e:1"}, "certificates"
		}), ""},
		"pins of both": {connection, firstboot.Settings{Servers: serverOnly.Servers, CA: []string{newPin, oldPin}}, with(func(p *firstboot.Plan) {
			p.Servers, p.CA, p.Token = serverOnly.Servers, []string{oldPin, newPin}, PlaceholderToken
		}), ""},
		"no pin":           {Connection{}, serverOnly, firstboot.Plan{}, "could not verify its servers\n" + howToPin},
		"a foreign signer": {connection, firstboot.Settings{AllowedSigners: strings.Replace(signer, "@dev", "@prod", 1)}, firstboot.Plan{}, "none of its keys may sign a release for dev now"},
		"no signer":        {connection, firstboot.Settings{AllowedSigners: "nonsense"}, firstboot.Plan{}, "cannot use the allowed signers"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &environments.Environment{Name: "dev", Userdata: c.settings}
			got, err := c.of.ForMachine(e, environments.Role{Name: "web"}, "web1", "web1", now)
			fails(t, err, c.problem)
			if err == nil && !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// Flags must reach the machines that Pulley creates, and pins all machines that join.
func TestComplete(t *testing.T) {
	flags := firstboot.Settings{Proxy: "http://proxy:3128", CA: []string{oldPin}}
	for name, c := range map[string]struct {
		driver    string
		settings  firstboot.Settings
		pins      []string
		wantProxy string
		wantCA    []string
	}{
		"machines of Pulley":       {"local", serverOnly, []string{newPin}, flags.Proxy, []string{oldPin}},
		"machines of another tool": {"none", serverOnly, []string{newPin}, "", []string{oldPin}},
		"a pin in the file":        {"none", pinnedServer, nil, "", []string{newPin}},
		"no server, and no pin":    {"none", firstboot.Settings{}, []string{newPin}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			e := &environments.Environment{Name: "dev", Provider: environments.Provider{Driver: c.driver}, Userdata: c.settings,
				Roles: []environments.Role{{Name: "web", Cardinality: 1}}}
			if err := (Connection{Pins: c.pins}).Complete(e, Given{Flags: flags}); err != nil {
				t.Fatal(err)
			}
			if e.Userdata.Proxy != c.wantProxy || !reflect.DeepEqual(e.Userdata.CA, c.wantCA) {
				t.Errorf("proxy %q, pins %v", e.Userdata.Proxy, e.Userdata.CA)
			}
		})
	}
}

// The second apply of a file must need no flag that the first one did not. What the file or a new flag sets must win, and what an
// empty flag removes must not return.
func TestCompleteKeepsEarlierFlags(t *testing.T) {
	apply := func(file firstboot.Settings, g Given) *environments.Environment {
		t.Helper()
		e := &environments.Environment{Name: "dev", Provider: environments.Provider{Driver: "local"}, Userdata: file,
			Roles: []environments.Role{{Name: "web", Cardinality: 1}}}
		if err := (Connection{Pins: []string{newPin}}).Complete(e, g); err != nil {
			t.Fatal(err)
		}
		return e
	}
	sums := map[string]string{"any": strings.Repeat("a", 64)}
	first := apply(firstboot.Settings{Schedule: "@hourly"}, Given{Servers: []string{"https://127.0.0.1:8443"},
		Flags: firstboot.Settings{AgentSHA256: sums, AllowedSigners: "", Proxy: "http://one:1", Schedule: "@daily", Pre: []string{"a"}}})
	if u := first.Userdata; u.Schedule != "@hourly" || u.Proxy != "http://one:1" || !reflect.DeepEqual(u.AgentSHA256, sums) ||
		!reflect.DeepEqual(u.Servers, []string{"https://127.0.0.1:8443"}) || !reflect.DeepEqual(u.CA, []string{newPin}) {
		t.Fatalf("first: %+v", u)
	}
	second := apply(firstboot.Settings{Schedule: "@hourly"}, Given{Stored: first, Servers: []string{"https://127.0.0.2:8443"}})
	if !reflect.DeepEqual(second, first) {
		t.Errorf("the second apply changes\n%+v\nto\n%+v", first, second)
	}
	again := apply(firstboot.Settings{Schedule: "@hourly"}, Given{Stored: first, Flags: firstboot.Settings{Pre: []string{"a"}}, Replaced: []string{"pre"}})
	if !reflect.DeepEqual(again, first) {
		t.Errorf("a repeated flag changes\n%+v\nto\n%+v", first, again)
	}
	third := apply(firstboot.Settings{Proxy: "http://two:2"}, Given{Stored: second})
	if third.Userdata.Proxy != "http://two:2" || third.Given.Proxy != "" || third.Userdata.Schedule != "" {
		t.Errorf("the file does not win: %+v", third)
	}
	fourth := apply(firstboot.Settings{}, Given{Stored: third, Replaced: []string{"agent_sha256"}})
	if fourth.Userdata.Proxy != "" || fourth.Userdata.AgentSHA256 != nil || len(fourth.Userdata.Servers) == 0 {
		t.Errorf("removed settings are back: %+v", fourth.Userdata)
	}
}

// Machines elsewhere would wait in vain for a server on their own loopback, and machines with a way of their own would join.
func TestCompleteTakesServersOfContextOnlyWhereTheyHelp(t *testing.T) {
	here, there := []string{"https://127.0.0.1:8443"}, []string{"https://pulley.example:8443"}
	for name, c := range map[string]struct {
		driver  string
		file    firstboot.Settings
		role    firstboot.Settings
		servers []string
		want    []string
	}{
		"local":               {"local", firstboot.Settings{}, firstboot.Settings{}, here, here},
		"a cloud":             {"openstack", firstboot.Settings{}, firstboot.Settings{}, there, there},
		"a cloud on loopback": {"openstack", firstboot.Settings{}, firstboot.Settings{}, here, nil},
		"of the file":         {"openstack", serverOnly, firstboot.Settings{}, there, serverOnly.Servers},
		"own certificates":    {"openstack", firstboot.Settings{Endpoints: []string{"https://e:1"}}, firstboot.Settings{}, there, nil},
		"of a role":           {"openstack", firstboot.Settings{}, firstboot.Settings{Endpoints: []string{"https://e:1"}}, there, nil},
		"an own join":         {"openstack", firstboot.Settings{Steps: map[string]string{"join": "/j"}}, firstboot.Settings{}, there, nil},
		"driver none":         {"none", firstboot.Settings{}, firstboot.Settings{}, there, nil},
	} {
		e := &environments.Environment{Name: "dev", Provider: environments.Provider{Driver: c.driver}, Userdata: c.file,
			Roles: []environments.Role{{Name: "web", Cardinality: 1, Userdata: c.role}}}
		if err := (Connection{Pins: []string{newPin}}).Complete(e, Given{Servers: c.servers}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(e.Userdata.Servers, c.want) {
			t.Errorf("%s: %v, want %v", name, e.Userdata.Servers, c.want)
		}
	}
}

func TestNeedsJoin(t *testing.T) {
	for want, of := range map[bool][]firstboot.Settings{
		true:  {{}, {Steps: map[string]string{"puppet": "off"}}},
		false: {serverOnly, {Endpoints: []string{"e:1"}}, {Steps: map[string]string{"join": "/usr/local/bin/join"}}},
	} {
		for _, settings := range of {
			e := &environments.Environment{Roles: []environments.Role{{Name: "web", Userdata: settings}}}
			if NeedsJoin(e, "web") != want || NeedsJoin(e, "db") {
				t.Errorf("%+v: not %t", settings, want)
			}
		}
	}
}

// A wrong checksum would let no machine start its agent.
func TestChecksums(t *testing.T) {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	own, text := filepath.Join(dir, "pulley-agent"), filepath.Join(dir, "notes")
	for file, content := range map[string][]byte{own: program, text: []byte("not a program")} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sum := sha256.Sum256(program)
	digest, other := hex.EncodeToString(sum[:]), strings.Repeat("0", 64)
	got, err := Checksums(nil, []string{own})
	if err != nil || len(got) != 1 || got["amd64"]+got["arm64"] != digest {
		t.Errorf("of a program: %v, %v", got, err)
	}
	got, err = Checksums([]string{"sha256:" + strings.ToUpper(digest), "arm64=" + other}, nil)
	if err != nil || !reflect.DeepEqual(got, map[string]string{"any": digest, "arm64": other}) {
		t.Errorf("as written: %v, %v", got, err)
	}
	_, err = Checksums([]string{digest, other}, nil)
	fails(t, err, "there is a second one for architecture any")
	_, err = Checksums(nil, []string{text})
	fails(t, err, "it is not a program for Linux")
	_, err = Checksums(nil, []string{filepath.Join(dir, "missing")})
	fails(t, err, "cannot read the agent")
	if got, err := Checksums(nil, nil); got != nil || err != nil {
		t.Errorf("of nothing: %v, %v", got, err)
	}
}

func TestReadSigners(t *testing.T) {
	file := filepath.Join(t.TempDir(), "allowed_signers")
	if err := os.WriteFile(file, []byte(signer), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadSigners(file, "dev", now); got != signer || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	_, err := ReadSigners(file, "prod", now)
	fails(t, err, "none of its keys may sign a release for prod now\nrun `pulley key list`")
	_, err = ReadSigners(file+"x", "dev", now)
	fails(t, err, "cannot read the allowed signers")
}
