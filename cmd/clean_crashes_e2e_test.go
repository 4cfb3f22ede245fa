//go:build e2e

package cmd_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pulley/internal/firstboot"
)

// A machine that left the fleet must not keep a part of Pulley because its removal was interrupted, nor lose a file of its owner.
func TestCleanCrashes(t *testing.T) {
	t.Parallel()
	f := newBootFleet(t, 1)
	root := f.machine("m1")
	const hosts, conf = "127.0.0.1 localhost\n", "[main]\nvardir = /var/cache/puppet\n[agent]\nserver = mine\n"
	stays := map[string]string{
		"etc/hosts": hosts, "etc/puppet/puppet.conf": conf, "etc/pulley/eyaml/key.pem": "mine\n",
		"etc/apt/sources.list.d/pulley-puppet.list": "deb x\n", "var/lib/puppet/ssl/private_keys/another.pem": "mine\n",
	}
	f.boot(root, nil)
	for _, text := range []string{"etc/machine-id", "etc/hostname", "run/systemd/system/.keep", "etc/cloud/cloud.cfg.d/.keep", "etc/pulley/first-boot/pre.d/10-one",
		"etc/pulley/first-boot/post.d/10-one", "schedule", "pre", "post"} {
		b, err := os.ReadFile(filepath.Join(root, text))
		if err != nil {
			t.Fatal(err)
		}
		stays[text] = string(b)
	}
	for path, text := range stays {
		f.write(filepath.Join("m1", path), text)
	}
	// What a first boot for a Puppet server, and one without systemd, write too.
	f.write("m1/etc/hosts", "# Puppet server, by pulley-agent: begin\n10.0.0.1\tpuppet\n# Puppet server, by pulley-agent: end\n"+hosts)
	f.write("m1/etc/puppet/puppet.conf", strings.Replace(conf, "server = mine", "# settings by pulley-agent: begin\nserver = eu1\n# settings by pulley-agent: end\n# replaced by pulley-agent: server = mine", 1))
	f.write("m1/etc/cron.d/pulley-first-boot", "@reboot root true\n")
	f.write("m1/etc/systemd/system/pulley-first-boot.service", "[Unit]\n")
	f.write("m1/var/lib/puppet/ssl/private_keys/controller1.pem", "key\n")
	f.write("m1/etc/pulley/first-boot/pre.d/001", "#!/bin/sh\n")
	state, err := os.ReadFile(filepath.Join(root, "var/lib/pulley/first-boot.json"))
	if err != nil {
		t.Fatal(err)
	}
	f.write("m1/var/lib/pulley/first-boot.json", strings.Replace(string(state), `"steps": {`, `"steps": {"certificate": {"state": "done"},`, 1))

	clean := func(root string, env []string, more ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "pulley-agent"), append([]string{"leave", "--clean", "--root", root}, more...)...)
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	before := tree(t, root)
	said, err := clean(root, nil, "--dry-run")
	if now := tree(t, root); err != nil || !slices.Equal(now, before) || !strings.HasPrefix(said, "controller1 would leave dev\n") {
		t.Fatalf("%v\n%s\n%q\n%q", err, said, before, now)
	}
	places := []string{firstboot.Left}
	for line := range strings.Lines(said) {
		if what, is := strings.CutPrefix(strings.TrimSpace(line), "would be removed: "); is {
			places = append(places, firstboot.Cleaned+strings.TrimPrefix(what, root))
		}
	}
	if len(places) < 12 {
		t.Fatalf("it removes too little:\n%s", said)
	}
	for i, place := range places {
		copied := filepath.Join(f.dir, "copy"+string(rune('a'+i)))
		if out, err := exec.CommandContext(t.Context(), "cp", "-a", root, copied).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if said, err := clean(copied, []string{"PULLEY_FAILPOINT=" + strings.ReplaceAll(place, root, copied)}); !killed(err) {
			t.Fatalf("it was not killed at %s: %v\n%s", place, err, said)
		}
		said, err := clean(copied, nil)
		if err != nil {
			t.Errorf("after %s: %v\n%s", place, err, said)
		}
		for path, text := range stays {
			if b, err := os.ReadFile(filepath.Join(copied, path)); err != nil || string(b) != text {
				t.Errorf("after %s: %s is %q (%v), want %q", place, path, b, err, text)
			}
		}
		for _, path := range tree(t, copied) {
			if _, mine := stays[path]; !mine {
				t.Errorf("after %s: %s is left\n%s", place, path, said)
			}
		}
		if i == 0 && !strings.Contains(said, "\nstays: "+filepath.Join(copied, "etc/pulley/eyaml/key.pem")) {
			t.Errorf("it does not name the files that stay:\n%s", said)
		}
	}
	if nodes := f.quietly("pulley", "nodes", "-o", "json"); strings.Contains(nodes, `"controller1"`) && !strings.Contains(nodes, "removed") {
		t.Errorf("it is still a node: %s", nodes)
	}
}

// tree returns the paths of the files below a folder.
func tree(t *testing.T, root string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			all = append(all, strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
