//go:build e2e

package puppet_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const seenNodes = `
pulley::hosts:
  web:
    - {name: web1_t42, hostname: db1, address: 10.0.0.1, checked: true, addresses: [10.0.0.1, 192.0.2.1], facts: {ssh.ed25519.key: AAAAC3Nza+/c1=}}
    - {name: web2, hostname: web2, address: 'fd00::2', facts: {ssh.ed25519.key: AAAAC3NzaC2}}
    - {name: web3, hostname: web3, facts: {ssh.ed25519.key: 'AAAA evil'}}
`

// A machine must not get the names or the addresses of another one, whatever its entry has. A load balancer that lost its backends, or a machine whose own lines of /etc/hosts are gone, is unreachable.
func TestSeenNodesBecomeFiles(t *testing.T) {
	t.Parallel()
	environments, dir := starter(t), t.TempDir()
	common := filepath.Join(environments, "dev", "hieradata", "common.yaml")
	sample, err := os.ReadFile(common)
	if err != nil {
		t.Fatal(err)
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(common, string(sample)+seenNodes)
	etcHosts := filepath.Join(dir, "hosts")
	write(etcHosts, "127.0.0.1 localhost\n# BEGIN nodes: managed by Puppet\n10.9.9.9 gone\n# END nodes\n10.0.0.99 printer") // without a last newline
	apply := func(node string) (string, int) {
		t.Helper()
		manifest := `class { 'profile::hosts_file': path => '` + dir + `/hosts' }
class { 'profile::known_hosts': path => '` + dir + `/known_hosts' }
class { 'profile::backends': path => '` + dir + `/backends', role => '` + node + `' }`
		out, problems, code := run(t, "apply", "--show_diff", "--detailed-exitcodes", "--environmentpath", environments, "--environment", "dev", "--certname", "lb1", "-e", manifest)
		return out + problems, code
	}
	if problems, code := apply("web"); code != 2 {
		t.Fatalf("exit %d\n%s", code, problems)
	}
	for name, want := range map[string]string{
		"hosts":       "127.0.0.1 localhost\n10.0.0.99 printer\n# BEGIN nodes: managed by Puppet\n10.0.0.1 web1-t42 web1_t42\nfd00::2 web2\n# END nodes\n",
		"known_hosts": "web1-t42,web1_t42,10.0.0.1 ssh-ed25519 AAAAC3Nza+/c1=\nweb2 ssh-ed25519 AAAAC3NzaC2\n",
		"backends":    "backend web\n  server web1_t42 10.0.0.1:443 check\n  server web2 [fd00::2]:443 check\n",
	} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, want)
		}
	}
	if problems, code := apply("web"); code != 0 {
		t.Errorf("a second run changes the files: exit %d\n%s", code, problems)
	}
	if problems, code := apply("db"); code != 1 || !strings.Contains(problems, "does not see role db") {
		t.Errorf("exit %d\n%s", code, problems)
	}
	write(etcHosts, "# BEGIN nodes: managed by Puppet\n127.0.0.1 localhost\n")
	if problems, code := apply("web"); code != 1 || !strings.Contains(problems, "incomplete block") {
		t.Errorf("exit %d\n%s", code, problems)
	}
	if got, _ := os.ReadFile(etcHosts); !strings.Contains(string(got), "localhost") {
		t.Errorf("an incomplete block cost %s", got)
	}
}
