package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/content"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
)

// blueFile is an environment that demands statements.
const blueFile = "statement: 24h\nroles: {web: {cardinality: 4}}\n"

// blueFleet stores a fleet with two nodes, a release and two versions of the agent. It returns a folder with a signing key, the
// environment's file and a release to publish.
func blueFleet(t *testing.T, s *etcd.DB) (dir string) {
	t.Helper()
	ctx, dir := t.Context(), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	must(err)
	block, err := ssh.MarshalPrivateKey(key, "")
	must(err)
	must(os.WriteFile(filepath.Join(dir, "key"), pem.EncodeToMemory(block), 0o600))
	must(os.Mkdir(filepath.Join(dir, "live"), 0o700))
	must(os.WriteFile(filepath.Join(dir, "live", "common.yaml"), []byte("a: 1\n"), 0o600))
	must(os.WriteFile(filepath.Join(dir, "blue.yaml"), []byte(blueFile), 0o600))
	must(os.MkdirAll(filepath.Join(dir, "R", "manifests"), 0o700))
	must(os.WriteFile(filepath.Join(dir, "R", "manifests", "site.pp"), []byte("node default { }\n"), 0o600))

	e, err := environments.Parse("blue.yaml", []byte(blueFile))
	must(err)
	must(specs.In(s).PutSpec(ctx, e, 0))
	for _, node := range []string{"web1", "web2"} {
		must(fleet.In(s).Register(ctx, "blue", model.Host{Node: node, Role: "web"}))
	}
	p, err := release.In(s).BeginPublish(ctx, "ann")
	must(err)
	for _, version := range []string{"1.5.0", "1.6.0"} {
		packed, err := content.PackProgram([]byte("agent "+version), func(hash string, b []byte) error {
			_, err := release.In(s).PutObject(ctx, hash, b)
			return err
		})
		must(err)
		_, err = release.In(s).PutAgent(ctx, p, release.AgentRelease{
			Version: version, Platforms: map[string]content.Program{"linux/amd64": packed}, Author: "ann", At: time.Now().UTC(),
		}, nil)
		must(err)
	}
	must(p.Close())
	must(access.FirstBootsIn(s).Put(ctx, e.Ref(), access.FirstBoot{Machine: strings.Repeat("3", 32), Node: "web3", Role: "web", Step: "join"}, 0))
	return dir
}

// With a context, nobody types the environment: who changes the wrong one must see it in the output.
func TestChangesNameTheirEnvironment(t *testing.T) {
	t.Parallel()
	server, ctx := etcdtest.Start(t), t.Context()
	s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	dir := blueFleet(t, s)
	home := filepath.Join(dir, "home")
	run := func(line string) (code int, output string) {
		var out bytes.Buffer
		env := cli.Env{
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out, Now: time.Now, User: "ann",
			Getenv: func(name string) string { return map[string]string{"HOME": home, "EDITOR": "sed -i s/80/81/"}[name] },
		}
		args := strings.Fields(strings.NewReplacer("$DIR", dir, "$URL", server.Endpoint).Replace(line))
		return Main(ctx, env, args), out.String()
	}
	for _, line := range []string{
		"context set blue --endpoints $URL --environment blue", "context use blue",
		"publish $DIR/R --version 1.0.0 --no-puppet --no-validate", "publish $DIR/R --version 1.1.0 --no-puppet --no-validate",
	} {
		if code, out := run(line); code != cli.ExitDone {
			t.Fatalf("%s: %d\n%s", line, code, out)
		}
	}
	changes := []struct{ verb, rest string }{
		{"promote", "1.0.0"}, {"promote", "1.0.0"}, {"promote", "1.1.0 --sign-key $DIR/key"},
		{"rollback", "--yes --dry-run"}, {"rollback", "--yes"}, {"sign", "--sign-key $DIR/key"}, {"sign", "--sign-key $DIR/key --off"}, {"recover", ""},
		{"data set", "port 80"}, {"data set", "port 80"}, {"data edit", ""}, {"data unset", "port"}, {"data revert", "1"}, {"data import", "$DIR/live"},
		{"hold", "--why x --for 1h"}, {"hold", "--why y --for 2h --stop"}, {"unhold", ""},
		{"nodes add", "web4"}, {"nodes run", "web1"}, {"nodes run", "web1 --dry-run"}, {"nodes unlock", "web3 -m x --yes"}, {"nodes pause", "-m x"}, {"nodes resume", ""}, {"nodes remove", "web2 --yes"},
		{"agents promote", "1.5.0"}, {"agents promote", "1.5.0"}, {"agents promote", "1.6.0 --node web1"}, {"agents unpin", "--node web1"}, {"agents unpin", "--node web1"},
		{"agents retry", ""}, {"token create", "--role web"}, {"userdata", "web1 --new-token --servers https://10.0.0.1:8443 --ca sha256:" + strings.Repeat("a", 64)},
		{"env apply", "$DIR/blue.yaml"}, {"env apply", "$DIR/blue.yaml --set web.cardinality=5"}, {"env destroy", "$DIR/blue.yaml --dry-run --forget-hosts"},
		{"env destroy", "$DIR/blue.yaml --yes --forget-hosts"},
	}
	named := regexp.MustCompile(`\bblue\b`)
	// needs a fleet with certificates: cmd/testdata/script/secret_reaches_one_role.txtar
	tested := map[string]bool{"secret set": true, "secret rotate": true}
	for _, act := range []string{"start", "pause", "resume", "retry", "abort", "approve", "skip", "revert"} { // cmd/testdata/script/rollout_stops_by_itself.txtar
		tested["rollout "+act] = true
	}
	for _, act := range []string{"run", "retry", "abort"} { // cmd/testdata/script/job_run.txtar
		tested["job "+act] = true
	}
	for _, c := range changes {
		tested[c.verb] = true
		code, out := run(c.verb + " " + c.rest)
		out = strings.ReplaceAll(out, dir, "") // the file's name is not the environment
		if code != cli.ExitDone || !named.MatchString(out) {
			t.Errorf("%s %s: exit %d, and it names blue: %t\n%s", c.verb, c.rest, code, named.MatchString(out), out)
		}
	}
	for _, verb := range changing(newRoot(&options{})) {
		if !tested[verb] {
			t.Errorf("`pulley %s` changes an environment, and this test does not run it", verb)
		}
	}
}

// changing lists the verbs that change an environment: those with --dry-run that take -e, or an environment's file.
func changing(c *cobra.Command) (verbs []string) {
	of := c.Flags().Lookup("environment") != nil || c.InheritedFlags().Lookup("environment") != nil || strings.Contains(c.Use, "ENVIRONMENT")
	if of && c.Flags().Lookup("dry-run") != nil {
		verbs = append(verbs, strings.TrimPrefix(c.CommandPath(), program+" "))
	}
	for _, sub := range c.Commands() {
		verbs = append(verbs, changing(sub)...)
	}
	return verbs
}
