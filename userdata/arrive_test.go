package userdata

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// A value that a shell or YAML reads differently than it was written is a broken machine at best, a command run as root
// at worst.
func TestValuesArrive(t *testing.T) {
	const alphabet = "a1 /'\"`$(){};&|<>\\!*?#~%:,[]-_=@^äπ\u2028"
	random := rand.New(rand.NewPCG(42, 1))
	hostile := func() string {
		letters := []rune(alphabet)
		out := make([]rune, random.IntN(24))
		for i := range out {
			out[i] = letters[random.IntN(len(letters))]
		}
		return string(out)
	}
	rendered := 0
	for range 120 {
		o := full(t)
		o.Prefix = hostile()
		o.AllowedSigners = append(o.AllowedSigners, "carol@"+hostile()+" ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICVc "+hostile()+"\n"...)
		o.Mirrors = []string{"https://mirror.example/" + strings.NewReplacer(" ", "+", "?", "", "#", "", "%", "").Replace(hostile())}
		o.PackageRepo = "deb " + hostile()
		o.AgentURL = "https://downloads.example/" + strings.ReplaceAll(hostile(), " ", "+")
		if valuesArrive(t, o) {
			rendered++
		}
	}
	if rendered < 60 {
		t.Errorf("only %d of 120 sets of values were rendered: this test has lost its grip", rendered)
	}
}

func FuzzRender(f *testing.F) {
	f.Add("controller1", "controller1", "controller", "dev", "http://127.0.0.1:2379", "/pulley", "https://d.example/a", "puppet-agent", "7.34", "deb https://apt.example a b", "http://proxy:3128", "*/5 * * * *", "a@* ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICVc", "https://m.example")
	f.Add("a'; reboot; '", "a$(reboot)", "`reboot`", "dev@$(id)", "http://h:1/';reboot;'", "'\nPULLEY\nreboot\n", "https://d.example/'$(reboot)`reboot`\\", "--reinstall", "1'", "deb '\"$(reboot)\\", "http://p'q:1", "* * * * *;reboot", "PULLEY\nreboot\n\ta@* ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICVc PULLEY\nPULLEY", "https://m'$(reboot)")
	f.Add("1e3", "", "null", "y", "[::1]:2379", "~", "", "", "", "", "", "", "", "")
	f.Add("0x1f", "", "true", "no", "h:1", "!!binary x: {y # z", "", "", "", "deb \u0085\u2028\ufeff", "", "", "-----BEGIN", "https://m/\u2028")
	f.Fuzz(func(t *testing.T, node, host, role, environment, endpoint, prefix, agentURL, pkg, version, repo, proxy, schedule, signers, mirror string) {
		o := Options{
			Node: node, Hostname: host, Role: role, Environment: environment, Endpoints: []string{endpoint}, Prefix: prefix,
			AgentURL: agentURL, PuppetPackage: pkg, PuppetVersion: version, PackageRepo: repo, Proxy: proxy, Schedule: schedule,
			AllowedSigners: []byte(signers),
		}
		if mirror != "" {
			o.Mirrors = []string{mirror}
		}
		if agentURL != "" {
			o.AgentSHA256 = checksum(nil)
		}
		valuesArrive(t, o)
	})
}

// seams replaces, in a rendered script, all that would touch the machine by writing down what it was given. What is
// left is the script's own flow and quoting.
const seams = `
one_at_a_time() { :; }
keep_log() { :; }
id() { echo 0; }
uname() { echo another; }
hostnamectl() { printf '%s' "$2" >"$out/hostname.arg"; }
hostname() { printf '%s' "$1" >"$out/hostname.arg"; }
mkdir() { :; }
put() { cat >"$out/${1##*/}"; }
finish() { :; }
sleep() { :; }
command() { :; }
timeout() { printf '%s\0' "$@" >"$out/fetch"; }
genuine() { [ -e "$out/fetch" ]; }
agent=$out/agent
main
`

// fakeAgent writes down its arguments, and what it knows of a proxy.
const fakeAgent = `#!/bin/sh
printf '%s\0' "$@" >"$out/args"
printf '%s\0' "${http_proxy-}" "${HTTPS_PROXY-}" "${no_proxy-}" >"$out/proxy"
`

// valuesArrive renders o and, where that is accepted, compares what a shell makes of the script with o. It reports
// whether o was accepted.
func valuesArrive(t *testing.T, o Options) bool {
	t.Helper()
	script, err := Render(o)
	if err != nil {
		return false
	}
	if len(script) > MaxSizeBytes {
		t.Fatalf("%d bytes were rendered", len(script))
	}
	functions, ok := bytes.CutSuffix(script, []byte("\nmain\n"))
	if !ok {
		t.Fatalf("the script does not end by calling main:\n%s", script)
	}
	out := t.TempDir()
	if err := os.WriteFile(filepath.Join(out, "agent"), []byte(fakeAgent), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh")
	cmd.Stdin = strings.NewReader(string(functions) + seams)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "out=" + out}
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, text, script)
	}

	want := append([]string{"bootstrap", "--config", "/etc/pulley/agent.yaml"}, bootstrapFlags(o)...)
	if got := words(t, out, "args"); !slices.Equal(got, want) {
		t.Errorf("pulley-agent would get %q, should get %q", got, want)
	}
	if o.AgentURL != "" {
		if got := words(t, out, "fetch"); got[len(got)-1] != o.AgentURL {
			t.Errorf("the download would be %q, should be of %q", got, o.AgentURL)
		}
	}
	if o.Hostname != "" {
		if got := read(t, out, "hostname.arg"); got != o.Hostname {
			t.Errorf("the hostname would be %q, should be %q", got, o.Hostname)
		}
	}
	proxy := words(t, out, "proxy")
	if proxy[0] != o.Proxy || proxy[1] != o.Proxy {
		t.Errorf("the proxy would be %q, should be %q", proxy, o.Proxy)
	}
	if o.Proxy != "" && !strings.HasSuffix(proxy[2], noProxy(o.Endpoints)) {
		t.Errorf("etcd would be reached through the proxy: no_proxy is %q", proxy[2])
	}
	var config struct {
		Node, Environment, Role, Prefix, CACert string
		Endpoints, Mirrors                      []string
		Signers                                 string `yaml:"allowed_signers"`
	}
	decoder := yaml.NewDecoder(strings.NewReader(read(t, out, "agent.yaml")))
	decoder.KnownFields(true)
	if err := decoder.Decode(&config); err != nil {
		t.Fatalf("agent.yaml: %v\n%s", err, read(t, out, "agent.yaml"))
	}
	role := o.Role
	if roleInName(o.Role, o.Node, o.Environment) {
		role = ""
	}
	if config.Node != o.Node || config.Environment != o.Environment || config.Role != role || config.Prefix != o.Prefix ||
		!slices.Equal(config.Endpoints, o.Endpoints) || !slices.Equal(config.Mirrors, o.Mirrors) {
		t.Errorf("agent.yaml holds %+v, should hold %+v", config, o)
	}
	if len(o.CACert) > 0 && read(t, out, "ca.pem") != string(o.CACert) {
		t.Errorf("ca.pem is %s", read(t, out, "ca.pem"))
	}
	if len(o.AllowedSigners) > 0 {
		if config.Signers != "/etc/pulley/allowed_signers" {
			t.Errorf("a node that lost its signers would take what nobody signed: agent.yaml says %q", config.Signers)
		}
		if got, want := read(t, out, "allowed_signers"), signerLines(o.AllowedSigners); got != want {
			t.Errorf("allowed_signers is %q, should be %q", got, want)
		}
	}
	return true
}

// signerLines are the lines of an allowed_signers file that say something.
func signerLines(text []byte) string {
	var kept string
	for _, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			kept += line + "\n"
		}
	}
	return kept
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// words reads what was written with printf '%s\0'.
func words(t *testing.T, dir, name string) []string {
	t.Helper()
	return strings.Split(strings.TrimSuffix(read(t, dir, name), "\x00"), "\x00")
}
