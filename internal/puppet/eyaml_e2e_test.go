//go:build e2e

package puppet_test

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pulley/internal/model"
	"pulley/internal/puppet"
)

// A node must decrypt what its keys open, and nothing else; without a key it must name the key, and not the secret.
func TestEyamlDecryptsWithKeysOfTheNode(t *testing.T) {
	if err := (&puppet.Installer{}).EnsureEyaml(t.Context()); err != nil {
		t.Fatalf("hiera-eyaml is not installed here, and cannot be: %v", err)
	}
	dir := t.TempDir()
	keys, tree, out := filepath.Join(dir, "keys"), filepath.Join(dir, "tree"), filepath.Join(dir, "word")
	if err := os.Mkdir(keys, 0o700); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("eyaml", args...)
		cmd.Dir = dir
		text, err := cmd.Output()
		if err != nil {
			t.Fatalf("eyaml %q: %v", args, err)
		}
		return strings.TrimSpace(string(text))
	}
	encrypt := func(role, secret string) string {
		t.Helper()
		private, public := filepath.Join(keys, role+".pem"), filepath.Join(keys, role+".crt")
		run("createkeys", "--pkcs7-private-key="+private, "--pkcs7-public-key="+public)
		return run("encrypt", "-q", "-o", "string", "-s", secret, "--pkcs7-public-key="+public, "--pkcs7-private-key="+private)
	}
	web, db := encrypt("web", "of the web"), encrypt("db", "of the database")
	write(t, filepath.Join(tree, "hiera.yaml"), `version: 5
defaults: {datadir: data}
hierarchy:
  - name: secrets of the role
    lookup_key: eyaml_lookup_key
    path: "secrets/%{facts.pulley.role}.yaml"
    options: {pkcs7_private_key: "`+keys+`/%{facts.pulley.role}.pem", pkcs7_public_key: "`+keys+`/%{facts.pulley.role}.crt"}
  - name: live data
    lookup_key: eyaml_lookup_key
    path: "%{facts.pulley.data}/node.yaml"
    options: {pkcs7_private_key: "`+keys+`/web.pem", pkcs7_public_key: "`+keys+`/web.crt"}
  - {name: plain, data_hash: yaml_data, path: common.yaml}
`)
	write(t, filepath.Join(tree, "pulley.yaml"), "live_data: hierarchy\n")
	write(t, filepath.Join(tree, "data/secrets/web.yaml"), "secret: "+web+"\n")
	write(t, filepath.Join(tree, "data/secrets/db.yaml"), "secret: "+db+"\n")
	write(t, filepath.Join(tree, "data/common.yaml"), "plain: plain\nlive: none\n")
	write(t, filepath.Join(dir, "live/node.yaml"), "live: "+web+"\n")
	var log bytes.Buffer
	apply := func(role, manifest string) model.Result {
		t.Helper()
		write(t, filepath.Join(tree, "manifests/site.pp"), manifest)
		log.Reset()
		p, job := fixture(dir)
		p.Program, p.Logger, p.Installer = "", slog.New(slog.NewTextHandler(&log, nil)), &puppet.Installer{}
		job.Role, job.Data = role, filepath.Join(dir, "live")
		r, err := p.Apply(t.Context(), job)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	const both = `file { '%s': content => "${lookup('secret')}, ${lookup('live')}, ${lookup('plain')}" }`
	manifest := strings.Replace(both, "%s", out, 1)
	if r := apply("web", manifest); r.Outcome != model.Changed || read(out) != "of the web, of the web, plain" {
		t.Errorf("%+v: %q", r, read(out))
	}

	// The keys of another role are not on this node.
	if err := os.Rename(filepath.Join(keys, "db.pem"), filepath.Join(dir, "elsewhere.pem")); err != nil {
		t.Fatal(err)
	}
	r := apply("db", manifest)
	text := r.Problem.String()
	t.Log(text)
	if r.Problem.Code != model.NotDecrypted || r.Kind != model.Untouched || !strings.Contains(text, "secret in ") || !strings.Contains(text, keys+"/db.pem") || strings.Contains(text, "ENC[") {
		t.Errorf("without its key: %+v: %s", r.Problem, text)
	}
	if r := apply("db", `file { '`+out+`': content => lookup('plain') }`); r.Outcome != model.Changed || read(out) != "plain" {
		t.Errorf("a node that reads no secret needs no key: %+v", r.Problem)
	}

	// Keys with a plain path are judged before Puppet starts.
	write(t, filepath.Join(tree, "hiera.yaml"), `version: 5
hierarchy: [{name: a, lookup_key: eyaml_lookup_key, path: common.yaml, options: {pkcs7_private_key: `+keys+`/open.pem, pkcs7_public_key: `+keys+`/absent.crt}}]
`)
	write(t, filepath.Join(keys, "open.pem"), "x")
	if r := apply("db", `file { '`+out+`': content => lookup('plain') }`); r.Outcome != model.Unchanged {
		t.Errorf("%+v", r)
	}
	for _, part := range []string{"open.pem can be read by other users than root (mode 0644): run chmod go= ", "absent.crt does not exist"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("the log lacks %q:\n%s", part, log.String())
		}
	}
}

func read(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
