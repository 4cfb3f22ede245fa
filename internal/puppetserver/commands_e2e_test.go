//go:build e2e

package puppetserver_test

import (
	"bytes"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pulley/internal/puppetserver"
	"pulley/internal/testbed/puppetservertest"
)

// An operator's verbs on real servers: what they print, their exit codes, dry runs and confirmations.
func TestCommands(t *testing.T) {
	site := shared.Site(t)
	site.Up(t)
	dir := site.Issue(t, puppetservertest.Client{Name: puppetservertest.Allowed}).Dir
	pulley := filepath.Join(dir, "pulley")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", pulley, "../../cmd/pulley").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	file := filepath.Join(dir, "dev.yaml")
	write := func(bootstrap string) {
		t.Helper()
		text := fmt.Sprintf("roles:\n  web: {cardinality: 1}\npuppet:\n  servers:\n    eu1: {address: %s}\n    us1: {address: %s}\n  ca: {url: \"%s\"}\n%s", site.First.Address, site.Second.Address, site.First.URL(), bootstrap)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	run := func(code int, args []string, want ...string) string {
		t.Helper()
		c := exec.Command(pulley, append([]string{"puppetserver"}, args...)...)
		c.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}
		var out bytes.Buffer
		c.Stdout, c.Stderr = &out, &out
		err := c.Run()
		exited := (*exec.ExitError)(nil)
		switch {
		case err == nil && code != 0, errors.As(err, &exited) && exited.ExitCode() != code, err != nil && exited == nil:
			t.Errorf("%v: %v, want exit code %d\n%s", args, err, code, &out)
		}
		for _, part := range want {
			if !strings.Contains(out.String(), part) {
				t.Errorf("%v lacks %q:\n%s", args, part, &out)
			}
		}
		return out.String()
	}
	with := []string{"--puppet-credentials", dir}
	of := func(verb string, names ...string) []string {
		return append(append([]string{verb, file}, names...), with...)
	}
	c := client(t, site, site.First, puppetservertest.Client{Name: puppetservertest.Allowed})

	run(2, []string{"list", file}, "missing --puppet-credentials")
	run(0, of("list"), "no request is pending")
	run(1, of("sign", "web5.test"), "has no certificate and no request", "pulley puppetserver list --all")
	if err := c.Request(t.Context(), "web5.test", csr(t, pkix.Name{CommonName: "web5.test"})); err != nil {
		t.Fatal(err)
	}
	run(0, of("list"), "web5.test", "requested")
	run(0, append(of("sign", "web5.test"), "--dry-run"), "would sign web5.test, SHA-256")
	run(0, of("sign", "web5.test"), "signed web5.test, SHA-256 ")
	run(1, of("sign", "web5.test"), "no pending request")
	run(0, append(of("list"), "--all"), "web5.test", "signed", puppetservertest.SecondName)
	run(2, of("revoke", "web5.test"), "give --yes")
	run(0, append(of("revoke", "web5.test"), "--dry-run"), "dry run", "would revoke web5.test", "signed")
	run(0, append(of("revoke", "web5.test"), "--yes"), "revoked web5.test at "+site.First.URL())
	run(0, append(of("list"), "--all"), "revoked")
	run(1, append(of("clean", "web5.test", puppetservertest.SecondName), "--yes"), "cleaned web5.test at", `"puppet2.test" is a certificate of Puppet's infrastructure`)
	run(0, append(of("clean", "web5.test"), "--yes"), "has no certificate and no request of web5.test")

	write("  bootstrap: boots\n")
	site.Put(t, "boots", "manifests/site.pp", "notify { 'first': }\n")
	run(0, append(of("check"), "--test-crl"), "us1", "accepts a certificate that the CA revoked at", "copy the list of the CA to that server", "environment boots compiles")
	site.CopyCRL(t)
	eventually(t, "the second server has the list", func() bool {
		c := exec.Command(pulley, append([]string{"puppetserver"}, of("check")...)...)
		out, err := c.CombinedOutput()
		return err == nil && !strings.Contains(string(out), "accepts a certificate")
	})
	var shown struct {
		Worst    string
		Findings []map[string]any
	}
	if err := json.Unmarshal([]byte(run(1, append(of("check"), "-o", "json", "--puppet-environment", "nowhere"), "environment_fails", "crl_arrived")), &shown); err != nil || shown.Worst != "problem" || len(shown.Findings) < 10 {
		t.Errorf("%v: %+v", err, shown)
	}
	page := string(read(t, "../../docs/json.md"))
	for _, verb := range []string{"check", "list"} {
		_, section, _ := strings.Cut(page, "\n## `pulley puppetserver "+verb+"`\n")
		section, _, _ = strings.Cut(section, "\n## ")
		rows, prefix := shown.Findings, "findings."
		if verb == "list" {
			rows, prefix = nil, ""
			if err := json.Unmarshal([]byte(run(0, append(of("list"), "--all", "-o", "json"))), &rows); err != nil || len(rows) < 2 {
				t.Errorf("%v: %v", err, rows)
			}
		}
		for _, row := range rows {
			for field := range row {
				if !strings.Contains(section, "| `"+prefix+field+"` |") {
					t.Errorf("docs/json.md does not describe field %s%s of %s", prefix, field, verb)
				}
			}
		}
	}
	if _, err := puppetserver.LoadCredentials(t.TempDir()); err == nil || !strings.Contains(err.Error(), "docs/puppet-server.md") {
		t.Error(err)
	}
}
