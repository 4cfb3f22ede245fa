package userdata

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/firstboot"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// minimal is a plan for an image that contains the agent; full has every option.
func minimal() firstboot.Plan {
	return firstboot.Plan{Node: "controller1", Environment: "dev", Role: "controller", Settings: firstboot.Settings{Endpoints: []string{"http://127.0.0.1:2379"}}}
}

func full(t testing.TB) firstboot.Plan {
	ca, err := os.ReadFile("testdata/ca.pem")
	if err != nil {
		t.Fatal(err)
	}
	return firstboot.Plan{
		Node:        "controller1_t42",
		Hostname:    "controller1-t42",
		Role:        "controller",
		Environment: "dev@t42",
		Prefix:      "/fleets/north",
		CACert:      string(ca),
		Settings: firstboot.Settings{
			Endpoints: []string{"https://etcd1.example:2379", "https://etcd2.example:2379"},
			AllowedSigners: "# who may sign what this node runs\n\n" +
				"alice@* ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm8Y7cAjAOJKk1UyHSV1vTM9WKTVQkTNBXEdUDX9LBb alice's laptop\n" +
				"bob@dev namespaces=\"pulley-data\",valid-before=\"20300101Z\" ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICVcb9hHdGv0sqfRO6ql5CzLmEGbiF6bz9NLAaqfN9Pl\n",
			Mirrors:       []string{"https://pulley.example:8443", "https://mirror.example/pulley"},
			AgentURLs:     []string{"https://downloads.example/pulley-agent?arch=amd64"},
			AgentSHA256:   map[string]string{"any": strings.Repeat("5e", 32)},
			PuppetPackage: "openvox-agent",
			PuppetVersion: "8.19.2-1+debian12",
			PackageRepo:   "https://apt.example/openvox8-release-debian12.deb",
			Proxy:         "http://proxy.example:3128",
			NoProxy:       []string{".example.net"},
			Schedule:      "*/5 * * * *",
			Pre:           []string{"#!/bin/sh\nmount /srv\n"},
			Post:          []string{"#!/bin/sh\ncat <<'PULLEY'\nit's \"done\"\nPULLEY\n"},
			Steps:         map[string]string{"hostname": "off", "puppet": "/usr/local/sbin/install-puppet"},
		},
	}
}

// joining is the plan of a machine that claims a number of its role, the most common case.
func joining() firstboot.Plan {
	return firstboot.Plan{
		Role: "compute", Environment: "dev", Hostname: "node", Token: "plt_01234567_" + strings.Repeat("ef", 32),
		Settings: firstboot.Settings{
			Servers:        []string{"https://10.0.0.1:8443", "https://10.0.0.2:8443"},
			CA:             []string{"sha256:" + strings.Repeat("ab", 32), "sha256:" + strings.Repeat("cd", 32)},
			AllowedSigners: "operator@dev ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICVcb9hHdGv0sqfRO6ql5CzLmEGbiF6bz9NLAaqfN9Pl\n",
			AgentSHA256:    map[string]string{"amd64": strings.Repeat("5e", 32)},
		},
	}
}

// group is the plan of an autoscaling group's machines, of either architecture.
func group() firstboot.Plan {
	o := joining()
	o.Leave = "poweroff"
	o.AgentSHA256["arm64"] = strings.Repeat("5f", 32)
	return o
}

func samples(t testing.TB) map[string]firstboot.Plan {
	return map[string]firstboot.Plan{"minimal": minimal(), "joining": joining(), "group": group(), "full": full(t)}
}

// endings are the file extensions of the forms.
var endings = map[Form]string{Script: "sh", CloudConfig: "yaml", Multipart: "mime"}

// A reviewer must see each change of a script that runs as root on unattended machines.
func TestGolden(t *testing.T) {
	for name, o := range samples(t) {
		for _, form := range Forms {
			if form != Script && name != "joining" {
				continue // the other forms have the same parts
			}
			got := mustRender(t, o, form)
			golden := filepath.Join("testdata", name+"."+endings[form])
			if name != "joining" || form != Script { // the others differ from this script in a few lines
				golden += ".diff"
				got = differences(t, form, mustRender(t, joining(), Script), got)
			}
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("userdata differs from %s (go test ./userdata -update && git diff):\n%s", golden, got)
			}
		}
	}
}

// differences returns the output of diff for two texts. It ignores indentation, except in a script.
func differences(t *testing.T, form Form, was, text []byte) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "was")
	if err := os.WriteFile(file, was, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("diff", file, "-")
	if form != Script {
		cmd.Args = append(cmd.Args, "-w")
	}
	cmd.Stdin = bytes.NewReader(text)
	out, err := cmd.Output()
	var differ *exec.ExitError
	if err != nil && (!errors.As(err, &differ) || differ.ExitCode() != 1) {
		t.Fatal(err)
	}
	return out
}

// Operators choose a form for a cloud by the sizes in docs/userdata.md: these must be right.
func TestSizesAreAsDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "userdata.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		o    firstboot.Plan
	}{
		{"a node, the agent in the image", minimal()},
		{"a machine that claims a number", joining()},
		{"a group of two architectures", group()},
	} {
		row := "| " + c.what
		for _, form := range Forms {
			size := len(mustRender(t, c.o, form))
			row += fmt.Sprintf(" | %d", size)
			if most := 4 << 10; size >= most && form == Script {
				t.Errorf("the %s of %s has %d bytes: it should usually stay below %d", form, c.what, size, most)
			}
		}
		if !strings.Contains(string(page), row+" |\n") {
			t.Errorf("docs/userdata.md lacks the line\n%s |", row)
		}
	}
}

// A machine with a script that no shell can read would be unreachable.
func TestShellReadsIt(t *testing.T) {
	for name, o := range samples(t) {
		cmd := exec.Command("sh", "-n")
		cmd.Stdin = bytes.NewReader(mustRender(t, o, Script))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: sh -n: %v\n%s", name, err, out)
		}
	}
}

// An invalid value must be an error for the operator, not a line on a machine's console.
func TestRefuses(t *testing.T) {
	_, key := selfSigned(t)
	ca := full(t).CACert
	for name, c := range map[string]struct {
		change func(*firstboot.Plan)
		want   string
	}{
		"no node, no server":      {func(o *firstboot.Plan) { o.Node = "" }, "claims a node of its role by joining"},
		"neither node nor role":   {func(o *firstboot.Plan) { o.Node, o.Role = "", "" }, "neither a node nor a role"},
		"node with a line break":  {func(o *firstboot.Plan) { o.Node = "a\nreboot" }, `node "a\nreboot": it has a line break`},
		"node with a path":        {func(o *firstboot.Plan) { o.Node = "../a" }, `node "../a"`},
		"no environment":          {func(o *firstboot.Plan) { o.Environment = "" }, "it has no environment"},
		"environment with dash":   {func(o *firstboot.Plan) { o.Environment = "pre-prod" }, "is not like dev or dev@t42"},
		"hostname with _":         {func(o *firstboot.Plan) { o.Hostname = "controller1_t42" }, "hostname"},
		"hostname too long":       {func(o *firstboot.Plan) { o.Hostname = strings.Repeat("a.", 40) + "a" }, "longer than 64"},
		"role with a command":     {func(o *firstboot.Plan) { o.Role = "$(reboot)" }, "role"},
		"no endpoint":             {func(o *firstboot.Plan) { o.Endpoints = nil }, "no endpoint of etcd"},
		"endpoint without port":   {func(o *firstboot.Plan) { o.Endpoints = []string{"etcd1"} }, `endpoints.0 "etcd1": it is not like`},
		"endpoint with password":  {func(o *firstboot.Plan) { o.Endpoints = []string{"https://u:p@etcd1:2379"} }, "endpoint"},
		"endpoints in one word":   {func(o *firstboot.Plan) { o.Endpoints = []string{"http://a:1,http://b:1"} }, "endpoint"},
		"prefix with a tab":       {func(o *firstboot.Plan) { o.Prefix = "/a\tb" }, "control character"},
		"prefix not UTF-8":        {func(o *firstboot.Plan) { o.Prefix = "/\xff" }, "not UTF-8"},
		"agent without checksum":  {func(o *firstboot.Plan) { o.AgentSHA256 = nil }, "without agent_sha256"},
		"checksum without agent":  {func(o *firstboot.Plan) { o.AgentURLs, o.Mirrors = nil, nil }, "no URL to download it from"},
		"checksum cut short":      {func(o *firstboot.Plan) { o.AgentSHA256["any"] = o.AgentSHA256["any"][:63] }, "it is not 64 hex digits"},
		"checksum of an s390x":    {func(o *firstboot.Plan) { o.AgentSHA256["s390x"] = o.AgentSHA256["any"] }, "agent_sha256 has no key \"s390x\""},
		"agent from a file":       {func(o *firstboot.Plan) { o.AgentURLs = []string{"file:///tmp/agent"} }, "agent_urls.0"},
		"agent with a password":   {func(o *firstboot.Plan) { o.AgentURLs = []string{"https://u:secret@d.example/a"} }, "user or password"},
		"server without TLS":      {func(o *firstboot.Plan) { join(o).Servers = []string{"http://10.0.0.1:8443"} }, `servers.0 "http://10.0.0.1:8443": it is not like`},
		"server without a pin":    {func(o *firstboot.Plan) { join(o).CA = nil }, "without the pin"},
		"pin cut short":           {func(o *firstboot.Plan) { join(o).CA = []string{"sha256:ab"} }, `ca.0 "sha256:ab"`},
		"server without a token":  {func(o *firstboot.Plan) { join(o).Token = "" }, "no token"},
		"token of two lines":      {func(o *firstboot.Plan) { join(o).Token = "plt_secret\nPULLEY" }, "one word"},
		"token without a server":  {func(o *firstboot.Plan) { o.Token = "plt_secret" }, "no server to join at"},
		"pin without a server":    {func(o *firstboot.Plan) { o.CA = joining().CA }, "no server to join at"},
		"join with certificates":  {func(o *firstboot.Plan) { join(o).CACert = ca }, "a join returns the certificates"},
		"leaving without a join":  {func(o *firstboot.Plan) { o.Leave = "poweroff" }, "leaves at a server"},
		"leaving at another time": {func(o *firstboot.Plan) { join(o).Leave = "reboot" }, `leave "reboot"`},
		"step of two words":       {func(o *firstboot.Plan) { o.Steps["a b"] = "off" }, "steps has no key \"a b\""},
		"step replaced by a word": {func(o *firstboot.Plan) { o.Steps["pre"] = "reboot" }, "absolute path"},
		"step of two lines":       {func(o *firstboot.Plan) { o.Steps["pre"] = "/a\nb" }, "line break"},
		"own step no program":     {func(o *firstboot.Plan) { o.Pre[0] = "reboot\n" }, "begins with a line such as #!/bin/sh"},
		"own step from Windows":   {func(o *firstboot.Plan) { o.Pre[0] = "#!/bin/sh\r\n" }, "line ends of Windows"},
		"own step with a NUL":     {func(o *firstboot.Plan) { o.Pre[0] = "#!/bin/sh\n\x00" }, "NUL byte"},
		"own step larger": {func(o *firstboot.Plan) {
			o.Pre = []string{"#!/bin/sh\n" + strings.Repeat(": \n", 3<<10), "#!/bin/sh\n" + strings.Repeat(": \n", 3<<10)}
		}, "/etc/pulley/first-boot/pre.d/002: 9226"},
		"package that is a flag":  {func(o *firstboot.Plan) { o.PuppetPackage = "--reinstall" }, "puppet_package"},
		"version with a space":    {func(o *firstboot.Plan) { o.PuppetVersion = "7 8" }, "puppet_version"},
		"repo of another kind":    {func(o *firstboot.Plan) { o.PackageRepo = "https://apt.example/key.gpg" }, "release.deb"},
		"repo of two lines":       {func(o *firstboot.Plan) { o.PackageRepo = "deb https://a b\ndeb https://c d" }, "line break"},
		"repo with a password":    {func(o *firstboot.Plan) { o.PackageRepo = "deb https://u:secret@apt.example stable main" }, "user or password"},
		"proxy with a password":   {func(o *firstboot.Plan) { o.Proxy = "http://u:secret@proxy:3128" }, "user or password"},
		"proxy of another kind":   {func(o *firstboot.Plan) { o.Proxy = "socks5://proxy:1080" }, "proxy"},
		"schedule of four":        {func(o *firstboot.Plan) { o.Schedule = "* * * *" }, "schedule"},
		"schedule with a command": {func(o *firstboot.Plan) { o.Schedule = "* * * * * root reboot" }, "schedule"},
		"CA that is none":         {func(o *firstboot.Plan) { o.CACert = "hello" }, "not consist of complete PEM"},
		"CA that is a key":        {func(o *firstboot.Plan) { o.CACert = string(key) }, "only certificates"},
		"CA cut in the middle":    {func(o *firstboot.Plan) { o.CACert = ca + ca[:200] }, "not consist of complete PEM"},
		"CA with other bytes": {func(o *firstboot.Plan) {
			o.CACert = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte{1}}))
		}, "cannot read a certificate"},
		"mirror without TLS":      {func(o *firstboot.Plan) { o.Mirrors = []string{"http://mirror.example"} }, `mirrors.0 "http://mirror.example": it is not like`},
		"mirror with a password":  {func(o *firstboot.Plan) { o.Mirrors = []string{"https://u:secret@mirror.example"} }, "user or password"},
		"mirror with a query":     {func(o *firstboot.Plan) { o.Mirrors = []string{"https://mirror.example/?a=b"} }, "mirror"},
		"mirror with a space":     {func(o *firstboot.Plan) { o.Mirrors = []string{"https://mirror.example/a b"} }, "mirror"},
		"signers that are a key":  {func(o *firstboot.Plan) { o.AllowedSigners = string(key) }, "allowed_signers: line 1 is not like"},
		"signers of one word":     {func(o *firstboot.Plan) { o.AllowedSigners += "PULLEY\nreboot\n" }, "line 5 is not like"},
		"signers with a BEL":      {func(o *firstboot.Plan) { o.AllowedSigners = o.AllowedSigners[:len(o.AllowedSigners)-1] + " \a\n" }, "line 4 is not like"},
		"signers that are none":   {func(o *firstboot.Plan) { o.AllowedSigners = "# later\n" }, "names no signer"},
		"more signers than fit":   {func(o *firstboot.Plan) { o.AllowedSigners = strings.Repeat(o.AllowedSigners, 60) }, "at most 12288 is allowed"},
		"more than a cloud takes": {func(o *firstboot.Plan) { o.CACert = strings.Repeat(ca, 40) }, "clouds take at most 16384"},
	} {
		t.Run(name, func(t *testing.T) {
			o := full(t)
			c.change(&o)
			for _, form := range Forms {
				if text, err := Render(o, form); err == nil {
					t.Fatalf("rendered as %s:\n%s", form, text)
				}
			}
			_, err := Render(o, Script)
			if !strings.HasPrefix(err.Error(), "cannot render userdata of ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %q, should speak of %q", err, c.want)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error repeats a password: %q", err)
			}
		})
	}
}

// Valid values must not be refused: each of these is in use.
func TestAccepts(t *testing.T) {
	for name, change := range map[string]func(*firstboot.Plan){
		"joins":            func(o *firstboot.Plan) { *o = joining() },
		"joins as a group": func(o *firstboot.Plan) { *o = group() },
		"joins, knows etcd": func(o *firstboot.Plan) {
			*o = joining()
			o.Node, o.Endpoints = "compute7", []string{"https://etcd1:2379"}
		},
		"existing machine": func(o *firstboot.Plan) { o.Node, o.Hostname = "db.example.com", "" },
		"bare endpoint":    func(o *firstboot.Plan) { o.Endpoints = []string{"etcd1:2379", "[::1]:2379", "http://[fd00::1]:2379/"} },
		"apt line": func(o *firstboot.Plan) {
			o.PackageRepo = "deb [signed-by=/usr/share/keyrings/o.gpg] https://apt.example bookworm main"
		},
		"signers from Windows": func(o *firstboot.Plan) { o.AllowedSigners = strings.ReplaceAll(o.AllowedSigners, "\n", "\r\n") },
		"rpm":                  func(o *firstboot.Plan) { o.PackageRepo = "https://yum.example/o-el-9.noarch.rpm?x=1" },
		"version with epoch":   func(o *firstboot.Plan) { o.PuppetVersion = "1:7.34.0~rc1-1" },
		"schedule with names":  func(o *firstboot.Plan) { o.Schedule = "0-59/10 8,20 * JAN-MAR mon" },
		"certificates with text between": func(o *firstboot.Plan) {
			o.CACert = "subject=one\n" + o.CACert + "\nsubject=two\n" + o.CACert
		},
	} {
		o := full(t)
		change(&o)
		if _, err := Render(o, Script); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A node that derives the wrong role from its name would become a different machine.
func TestRoleInName(t *testing.T) {
	for _, c := range []struct {
		role, node, environment string
		want                    bool
	}{
		{"controller", "controller1", "dev", true},
		{"controller", "controller12", "dev", true},
		{"controller", "controller1_t42", "dev@t42", true},
		{"controller", "controller1_t42", "dev@t43", false}, // of another stack
		{"controller", "controller1_t42", "dev", false},
		{"controller", "controller1", "dev@t42", false},
		{"controller", "controller0", "dev", false},
		{"controller", "controller01", "dev", false},
		{"controller", "controller", "dev", false},
		{"controller", "compute1", "dev", false},
		{"web2", "web21", "dev", false}, // also number 21 of web
		{"db", "db.example.com", "dev", false},
		{"", "controller1", "dev", false},
	} {
		if got := roleInName(c.role, c.node, c.environment); got != c.want {
			t.Errorf("roleInName(%q, %q, %q) = %v", c.role, c.node, c.environment, got)
		}
	}
}

// join adds a join to a plan and returns it, for tests that change it further.
func join(o *firstboot.Plan) *firstboot.Plan {
	j := joining()
	o.CACert, o.Servers, o.CA, o.Token = "", j.Servers, j.CA, j.Token
	return o
}

func mustRender(t testing.TB, o firstboot.Plan, form Form) []byte {
	t.Helper()
	script, err := Render(o, form)
	if err != nil {
		t.Fatal(err)
	}
	return script
}

// selfSigned returns a certificate and its key as PEM.
func selfSigned(t testing.TB) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "Pulley test CA"},
		NotAfter:     time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC),
		IsCA:         true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// A machine that Pulley was removed from must not become a node again at its next boot, and one whose first boot was cut at its beginning must.
func TestBoothookResumesOnlyFirstBoots(t *testing.T) {
	for file, starts := range map[string]bool{"": true, "var/lib/pulley/first-boot.json": false, firstboot.CloudMark: false} {
		root := t.TempDir()
		for path, text := range map[string]string{firstboot.CloudScript: "echo started\n", file: ""} {
			path = filepath.Join(root, path)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil && path != root {
				t.Fatal(err)
			}
		}
		out, err := exec.Command("sh", "-c", strings.ReplaceAll(strings.TrimPrefix(boothook, "#cloud-boothook\n"), "/var/lib/", root+"/var/lib/")).CombinedOutput()
		if err != nil || (string(out) == "started\n") != starts {
			t.Errorf("with %q: %v: %q", file, err, out)
		}
		command := strings.ReplaceAll(bootcmd, "cloud-init single --name write_files --frequency always", "echo started")
		command = strings.ReplaceAll(strings.ReplaceAll(command, "sh "+scriptPath, ":"), "/var/lib/", root+"/var/lib/")
		if err := os.MkdirAll(filepath.Join(root, "var/lib/pulley"), 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil || (string(out) == "started\n") != starts {
			t.Errorf("bootcmd with %q: %v: %q", file, err, out)
		}
	}
}
