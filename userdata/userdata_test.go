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
	"flag"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// minimal is what an image with the agent inside needs; full has every option.
func minimal() Options {
	return Options{Node: "controller1", Environment: "dev", Role: "controller", Endpoints: []string{"http://127.0.0.1:2379"}}
}

func full(t testing.TB) Options {
	ca, err := os.ReadFile("testdata/ca.pem")
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Node:        "controller1_t42",
		Hostname:    "controller1-t42",
		Role:        "controller",
		Environment: "dev@t42",
		Endpoints:   []string{"https://etcd1.example:2379", "https://etcd2.example:2379"},
		Prefix:      "/fleets/north",
		CACert:      ca,
		AllowedSigners: []byte("# who may sign what this node runs\n\n" +
			"alice@* ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm8Y7cAjAOJKk1UyHSV1vTM9WKTVQkTNBXEdUDX9LBb alice's laptop\n" +
			"bob@dev namespaces=\"pulley-data\",valid-before=\"20300101\" ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICVcb9hHdGv0sqfRO6ql5CzLmEGbiF6bz9NLAaqfN9Pl\n"),
		Mirrors:       []string{"https://pulley.example:8443", "https://mirror.example/pulley"},
		AgentURLs:     []string{"https://downloads.example/pulley-agent?arch=amd64"},
		AgentSHA256:   map[string]string{"": strings.Repeat("5e", 32)},
		PuppetPackage: "openvox-agent",
		PuppetVersion: "8.19.2-1+debian12",
		PackageRepo:   "https://apt.example/openvox8-release-debian12.deb",
		Proxy:         "http://proxy.example:3128",
		Schedule:      "*/5 * * * *",
		Pre:           []Step{{"10-disks", []byte("#!/bin/sh\nmount /srv\n")}},
		Post:          []Step{{"10-tell", []byte("#!/bin/sh\ncat <<'PULLEY'\nit's \"done\"\nPULLEY\n")}},
		Steps:         map[string]string{"hostname": "off", "puppet": "/usr/local/sbin/install-puppet"},
	}
}

// joining is what a machine gets that claims a number of its role: what most machines get.
func joining() Options {
	return Options{
		Role: "compute", Environment: "dev", Hostname: "node",
		Servers:        []string{"https://10.0.0.1:8443", "https://10.0.0.2:8443"},
		CA:             []string{"sha256:" + strings.Repeat("ab", 32), "sha256:" + strings.Repeat("cd", 32)},
		Token:          "plt_01234567_" + strings.Repeat("ef", 32),
		AllowedSigners: []byte("operator@dev ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICVcb9hHdGv0sqfRO6ql5CzLmEGbiF6bz9NLAaqfN9Pl\n"),
		AgentSHA256:    map[string]string{"amd64": strings.Repeat("5e", 32)},
	}
}

// group is what the machines of an autoscaling group get, of either architecture.
func group() Options {
	o := joining()
	o.Leave = "poweroff"
	o.AgentSHA256["arm64"] = strings.Repeat("5f", 32)
	return o
}

func samples(t testing.TB) map[string]Options {
	return map[string]Options{"minimal": minimal(), "joining": joining(), "group": group(), "full": full(t)}
}

// endings are the forms as files.
var endings = map[Form]string{Script: "sh", CloudConfig: "yaml", Multipart: "mime"}

// A change of what runs as root on machines that nobody watches must be seen by whoever reviews it.
func TestGolden(t *testing.T) {
	for name, o := range samples(t) {
		for _, form := range Forms {
			if form != Script && name != "joining" {
				continue // the other forms are made of the same parts
			}
			got := mustRender(t, o, form)
			golden := filepath.Join("testdata", name+".golden."+endings[form])
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
				t.Errorf("it is not %s (see what changed: go test ./userdata -update && git diff):\n%s", golden, got)
			}
		}
	}
}

// Whoever picks a form for a cloud must be able to trust the sizes that docs/userdata.md lists.
func TestSizesAreAsDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "userdata.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		o    Options
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

// A script that no shell can read would leave a machine that nobody can reach.
func TestShellReadsIt(t *testing.T) {
	for name, o := range samples(t) {
		cmd := exec.Command("sh", "-n")
		cmd.Stdin = bytes.NewReader(mustRender(t, o, Script))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: sh -n: %v\n%s", name, err, out)
		}
	}
}

// A value that can't work is told to the operator, not to a machine's console.
func TestRefuses(t *testing.T) {
	_, key := selfSigned(t)
	ca := string(full(t).CACert)
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no node, no server":      {func(o *Options) { o.Node = "" }, "claims a node of its role by joining"},
		"neither node nor role":   {func(o *Options) { o.Node, o.Role = "", "" }, "neither a node nor a role"},
		"node with a line break":  {func(o *Options) { o.Node = "a\nreboot" }, `node "a\nreboot" is not like`},
		"node with a path":        {func(o *Options) { o.Node = "../a" }, `node "../a"`},
		"no environment":          {func(o *Options) { o.Environment = "" }, `environment ""`},
		"environment with dash":   {func(o *Options) { o.Environment = "pre-prod" }, "is not like dev or dev@t42"},
		"hostname with _":         {func(o *Options) { o.Hostname = "controller1_t42" }, "hostname"},
		"hostname too long":       {func(o *Options) { o.Hostname = strings.Repeat("a.", 40) + "a" }, "longer than 64"},
		"role with a command":     {func(o *Options) { o.Role = "$(reboot)" }, "role"},
		"no endpoint":             {func(o *Options) { o.Endpoints = nil }, "no etcd endpoint"},
		"endpoint without port":   {func(o *Options) { o.Endpoints = []string{"etcd1"} }, `endpoint "etcd1" is not like`},
		"endpoint with password":  {func(o *Options) { o.Endpoints = []string{"https://u:p@etcd1:2379"} }, "endpoint"},
		"endpoints in one word":   {func(o *Options) { o.Endpoints = []string{"http://a:1,http://b:1"} }, "endpoint"},
		"prefix with a tab":       {func(o *Options) { o.Prefix = "/a\tb" }, "control character"},
		"prefix not UTF-8":        {func(o *Options) { o.Prefix = "/\xff" }, "not UTF-8"},
		"agent without checksum":  {func(o *Options) { o.AgentSHA256 = nil }, "without the agent's checksum"},
		"checksum without agent":  {func(o *Options) { o.AgentURLs, o.Mirrors = nil, nil }, "without a URL"},
		"checksum cut short":      {func(o *Options) { o.AgentSHA256[""] = o.AgentSHA256[""][:63] }, "64 lower-case hex"},
		"checksum of an s390x":    {func(o *Options) { o.AgentSHA256["s390x"] = o.AgentSHA256[""] }, "neither amd64 nor arm64"},
		"agent from a file":       {func(o *Options) { o.AgentURLs = []string{"file:///tmp/agent"} }, "agent URL"},
		"agent with a password":   {func(o *Options) { o.AgentURLs = []string{"https://u:secret@d.example/a"} }, "user or password"},
		"server without TLS":      {func(o *Options) { join(o).Servers = []string{"http://10.0.0.1:8443"} }, `server "http://10.0.0.1:8443" is not like`},
		"server without a pin":    {func(o *Options) { join(o).CA = nil }, "without the pin"},
		"pin cut short":           {func(o *Options) { join(o).CA = []string{"sha256:ab"} }, `pin "sha256:ab"`},
		"server without a token":  {func(o *Options) { join(o).Token = "" }, "without a token"},
		"token of two lines":      {func(o *Options) { join(o).Token = "plt_secret\nPULLEY" }, "one word"},
		"token without a server":  {func(o *Options) { o.Token = "plt_secret" }, "no server to join at"},
		"pin without a server":    {func(o *Options) { o.CA = joining().CA }, "no server to join at"},
		"join with certificates":  {func(o *Options) { join(o).CACert = []byte(ca) }, "its pin is enough"},
		"leaving without a join":  {func(o *Options) { o.Leave = "poweroff" }, "leaves at a server"},
		"leaving at another time": {func(o *Options) { join(o).Leave = "reboot" }, `time of leaving "reboot"`},
		"step of two words":       {func(o *Options) { o.Steps["a b"] = "off" }, "not the name of a step"},
		"step replaced by a word": {func(o *Options) { o.Steps["pre"] = "reboot" }, "absolute path"},
		"step of two lines":       {func(o *Options) { o.Steps["pre"] = "/a\nb" }, "line break"},
		"own step with a path":    {func(o *Options) { o.Pre[0].Name = "../a" }, `step "../a"`},
		"own steps of one name":   {func(o *Options) { o.Post = append(o.Post, o.Post[0]) }, "two steps are called 10-tell"},
		"own step no program":     {func(o *Options) { o.Pre[0].Text = []byte("reboot\n") }, "begin with #!"},
		"own step from Windows":   {func(o *Options) { o.Pre[0].Text = []byte("#!/bin/sh\r\n") }, "line ends of Windows"},
		"own step with a NUL":     {func(o *Options) { o.Pre[0].Text = []byte("#!/bin/sh\n\x00") }, "no text"},
		"own step larger":         {func(o *Options) { o.Pre[0].Text = []byte("#!/bin/sh\n" + strings.Repeat(": \n", 6<<10)) }, "own steps 18"},
		"package that is a flag":  {func(o *Options) { o.PuppetPackage = "--reinstall" }, "Puppet package"},
		"version with a space":    {func(o *Options) { o.PuppetVersion = "7 8" }, "Puppet version"},
		"repo of another kind":    {func(o *Options) { o.PackageRepo = "https://apt.example/key.gpg" }, ".deb or .rpm"},
		"repo of two lines":       {func(o *Options) { o.PackageRepo = "deb https://a b\ndeb https://c d" }, "line break"},
		"repo with a password":    {func(o *Options) { o.PackageRepo = "deb https://u:secret@apt.example stable main" }, "user or password"},
		"proxy with a password":   {func(o *Options) { o.Proxy = "http://u:secret@proxy:3128" }, "user or password"},
		"proxy of another kind":   {func(o *Options) { o.Proxy = "socks5://proxy:1080" }, "proxy"},
		"schedule of four":        {func(o *Options) { o.Schedule = "* * * *" }, "schedule"},
		"schedule with a command": {func(o *Options) { o.Schedule = "* * * * * root reboot" }, "schedule"},
		"CA that is none":         {func(o *Options) { o.CACert = []byte("hello") }, "not made of whole PEM"},
		"CA that is a key":        {func(o *Options) { o.CACert = key }, "only certificates"},
		"CA cut in the middle":    {func(o *Options) { o.CACert = []byte(ca + ca[:200]) }, "not made of whole PEM"},
		"CA with other bytes":     {func(o *Options) { o.CACert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte{1}}) }, "cannot read the CA"},
		"mirror without TLS":      {func(o *Options) { o.Mirrors = []string{"http://mirror.example"} }, `mirror "http://mirror.example" is not like`},
		"mirror with a password":  {func(o *Options) { o.Mirrors = []string{"https://u:secret@mirror.example"} }, "user or password"},
		"mirror with a query":     {func(o *Options) { o.Mirrors = []string{"https://mirror.example/?a=b"} }, "mirror"},
		"mirror with a space":     {func(o *Options) { o.Mirrors = []string{"https://mirror.example/a b"} }, "mirror"},
		"signers that are a key":  {func(o *Options) { o.AllowedSigners = key }, "line 1 of the allowed signers is not like"},
		"signers of one word":     {func(o *Options) { o.AllowedSigners = append(o.AllowedSigners, "PULLEY\nreboot\n"...) }, "line 5 of the allowed signers"},
		"signers with a BEL":      {func(o *Options) { o.AllowedSigners = append(o.AllowedSigners[:len(o.AllowedSigners)-1], " \a\n"...) }, "control character"},
		"signers that are none":   {func(o *Options) { o.AllowedSigners = []byte("# later\n") }, "names none"},
		"more signers than fit":   {func(o *Options) { o.AllowedSigners = bytes.Repeat(o.AllowedSigners, 60) }, "clouds take at most 16384"},
		"more than a cloud takes": {func(o *Options) { o.CACert = []byte(strings.Repeat(ca, 40)) }, "clouds take at most 16384"},
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

// What is right must not be refused: each of these is in use somewhere.
func TestAccepts(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"joins":            func(o *Options) { *o = joining() },
		"joins as a group": func(o *Options) { *o = group() },
		"joins, knows etcd": func(o *Options) {
			*o = joining()
			o.Node, o.Endpoints = "compute7", []string{"https://etcd1:2379"}
		},
		"existing machine": func(o *Options) { o.Node, o.Hostname = "db.example.com", "" },
		"bare endpoint":    func(o *Options) { o.Endpoints = []string{"etcd1:2379", "[::1]:2379", "http://[fd00::1]:2379/"} },
		"apt line": func(o *Options) {
			o.PackageRepo = "deb [signed-by=/usr/share/keyrings/o.gpg] https://apt.example bookworm main"
		},
		"signers from Windows": func(o *Options) { o.AllowedSigners = bytes.ReplaceAll(o.AllowedSigners, []byte("\n"), []byte("\r\n")) },
		"rpm":                  func(o *Options) { o.PackageRepo = "https://yum.example/o-el-9.noarch.rpm?x=1" },
		"version with epoch":   func(o *Options) { o.PuppetVersion = "1:7.34.0~rc1-1" },
		"schedule with names":  func(o *Options) { o.Schedule = "0-59/10 8,20 * JAN-MAR mon" },
		"certificates with text between": func(o *Options) {
			o.CACert = []byte("subject=one\n" + string(o.CACert) + "\nsubject=two\n" + string(o.CACert))
		},
	} {
		o := full(t)
		change(&o)
		if _, err := Render(o, Script); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A node that derives another role than the one it was made for would become a different machine.
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
		{"web2", "web21", "dev", false}, // as well number 21 of web
		{"db", "db.example.com", "dev", false},
		{"", "controller1", "dev", false},
	} {
		if got := roleInName(c.role, c.node, c.environment); got != c.want {
			t.Errorf("roleInName(%q, %q, %q) = %v", c.role, c.node, c.environment, got)
		}
	}
}

// join makes o join, so that a test can spoil how.
func join(o *Options) *Options {
	j := joining()
	o.CACert, o.Servers, o.CA, o.Token = nil, j.Servers, j.CA, j.Token
	return o
}

func mustRender(t testing.TB, o Options, form Form) []byte {
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
