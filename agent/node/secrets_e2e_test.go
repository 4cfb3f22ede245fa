//go:build e2e

package node

import (
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/agent/nodeconfig"
	"pulley/hieradata"
	"pulley/internal/model"
	"pulley/internal/puppet"
	"pulley/internal/secrets"
)

const plaintext = "s3cret %{facts.kernel} 'plain'"

// A manifest must receive the secret as a Sensitive, and only the managed file may contain it after the run. A node of
// another role must not decrypt it.
func TestSecretArrivesAsSensitive(t *testing.T) {
	dir := t.TempDir()
	mine, recipient, err := secrets.NewIdentity()
	must(t, err)
	other, _, err := secrets.NewIdentity()
	must(t, err)
	text, err := secrets.Seal(recipient, secrets.Place{Environment: "dev", Layer: hieradata.ForRole("web"), Key: "profile::password"}, plaintext)
	must(t, err)
	layer, err := hieradata.Set(nil, "profile::password", "'"+text+"'")
	must(t, err)
	managed := filepath.Join(dir, "managed")
	for name, content := range map[string]string{
		"data/node.yaml": "{}\n", "data/role.yaml": string(layer), "data/environment.yaml": "{}\n", "data/common.yaml": "{}\n",
		"tree/manifests/site.pp": `class profile(Sensitive[String] $password) {
  notify { "the password is ${password}": }
  file { '` + managed + `': content => $password, backup => '.old' }
}
include profile
`,
		"managed": "before\n",
	} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	run := func(identity string, noop bool) model.Result {
		t.Helper()
		return runWithSecrets(t, dir, identity, noop)
	}
	if r := run(other, false); r.Problem.Code != model.SecretsUnusable || r.Kind != model.Untouched || !strings.Contains(r.Problem.String(), "no identity on this machine decrypts it") {
		t.Errorf("a node of another role: %+v", r)
	}
	if r := run(mine, true); r.Outcome == model.Failed {
		t.Errorf("noop: %+v", r)
	}
	r := run(mine, false)
	if b, err := os.ReadFile(managed); err != nil || string(b) != plaintext {
		t.Errorf("the managed file has %q, %v; %+v", b, err, r)
	}
	if !strings.Contains(logOf(r), "the password is Sensitive [value redacted]") {
		t.Errorf("the value is no Sensitive: %s", logOf(r))
	}
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || path == managed {
			return err
		}
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), "s3cret") {
			t.Errorf("%s contains the secret", path)
		}
		return err
	}))
}

// runWithSecrets runs Puppet as web1 with the identity, on the folders tree and data of dir.
func runWithSecrets(t *testing.T, dir, identity string, noop bool) model.Result {
	t.Helper()
	n := &Node{Setup: Setup{Config: nodeconfig.Under(filepath.Join(dir, "root")), Log: slog.New(slog.DiscardHandler), Now: time.Now}}
	must(t, os.MkdirAll(filepath.Join(n.StateDir(), "identity"), 0o700))
	must(t, n.SaveSecrets([]string{identity}))
	p := &puppet.Puppet{Dir: n.StateDir(), Deadline: time.Minute, StateDirs: []string{filepath.Join(dir, "absent")}, Reveal: n.reveal}
	r, err := p.Apply(t.Context(), model.Job{
		Identity: model.Identity{Node: "web1", Certname: "web1", Role: "web", Environment: "dev", PuppetEnvironment: "dev"},
		ID:       "1", Target: model.Target{Release: "1.0.0", Tree: "00"}, Tree: filepath.Join(dir, "tree"), Data: filepath.Join(dir, "data"), Noop: noop,
	})
	must(t, err)
	for _, parent := range memoryFolders {
		if _, err := os.Lstat(filepath.Join(parent, secretsFolder(n.Config))); err == nil {
			t.Error("the decrypted data is still there after the run")
		}
	}
	return r
}

// The secret pulley::eyaml must let a run decrypt the eyaml values of the release. Without it, the run changes nothing.
func TestSecretOpensEyaml(t *testing.T) {
	dir := t.TempDir()
	identity, recipient, err := secrets.NewIdentity()
	must(t, err)
	eyaml := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("eyaml", args...)
		cmd.Dir = dir
		text, err := cmd.Output()
		must(t, err)
		return strings.TrimSpace(string(text))
	}
	pair := []string{"--pkcs7-private-key=" + filepath.Join(dir, "web.pem"), "--pkcs7-public-key=" + filepath.Join(dir, "web.crt")}
	eyaml(append([]string{"createkeys"}, pair...)...)
	value := eyaml(append([]string{"encrypt", "-q", "-o", "string", "-s", "decrypted"}, pair...)...)
	both := ""
	for _, name := range []string{"web.pem", "web.crt"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		both += string(b)
		must(t, os.Remove(filepath.Join(dir, name)))
	}
	text, err := secrets.Seal(recipient, secrets.Place{Environment: "dev", Layer: hieradata.ForRole("web"), Key: hieradata.EyamlKey}, strings.TrimSuffix(both, "\n"))
	must(t, err)
	layer, err := hieradata.Set(nil, hieradata.EyamlKey, "'"+text+"'")
	must(t, err)
	managed := filepath.Join(dir, "managed")
	for name, content := range map[string]string{
		"data/node.yaml": "{}\n", "data/role.yaml": "{}\n", "data/environment.yaml": "{}\n", "data/common.yaml": "{}\n",
		"tree/hiera.yaml": `version: 5
defaults: {datadir: data}
hierarchy:
  - name: encrypted
    lookup_key: eyaml_lookup_key
    path: encrypted.yaml
    options: {pkcs7_private_key: "%{facts.pulley.data}/eyaml.pem", pkcs7_public_key: "%{facts.pulley.data}/eyaml.pem"}
`,
		"tree/data/encrypted.yaml": "word: " + value + "\n",
		"tree/manifests/site.pp":   "file { '" + managed + "': content => lookup('word') }\n",
	} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	if r := runWithSecrets(t, dir, identity, false); r.Kind != model.Untouched || r.Problem.Code != model.NotDecrypted {
		t.Errorf("without the secret: %+v", r)
	}
	must(t, os.WriteFile(filepath.Join(dir, "data/role.yaml"), layer, 0o600))
	r := runWithSecrets(t, dir, identity, false)
	if b, err := os.ReadFile(managed); err != nil || string(b) != "decrypted" {
		t.Errorf("the managed file has %q, %v; %+v", b, err, r)
	}
}

func logOf(r model.Result) string {
	var b strings.Builder
	for _, l := range r.Log {
		b.WriteString(l.Message + "\n")
	}
	return b.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
