package puppet_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pulley/internal/model"
	"pulley/internal/puppet"
	"pulley/internal/testbed/puppettest"
)

func TestMain(m *testing.M) {
	puppettest.RunAsPuppet()
	if dir := os.Getenv("PULLEY_TEST_AGENT"); dir != "" { // an agent that tests may kill
		p, job := fixture(dir)
		result, err := p.Apply(context.Background(), job)
		fmt.Println(result, err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fixture returns a Puppet whose program, release and folders are under dir.
func fixture(dir string) (*puppet.Puppet, model.Job) {
	return &puppet.Puppet{
			Program: filepath.Join(dir, "puppet"), Dir: filepath.Join(dir, "agent"), Deadline: time.Minute, Grace: 300 * time.Millisecond,
			StateDirs: []string{filepath.Join(dir, "absent"), filepath.Join(dir, "var", "state")},
		}, model.Job{
			Identity: model.Identity{Node: "web1", Certname: "web1.example", Role: "web", PuppetEnvironment: "dev"},
			ID:       "1", Target: model.Target{Release: "1.0.0", Tree: "00"}, Tree: filepath.Join(dir, "tree"),
		}
}

// machine creates a machine with a fake Puppet and a release with the given manifest.
func machine(t *testing.T, manifest string) (dir string, p *puppet.Puppet, job model.Job) {
	t.Helper()
	dir = t.TempDir()
	puppettest.Write(t, dir)
	write(t, filepath.Join(dir, "tree", "manifests", "site.pp"), manifest)
	if err := os.MkdirAll(filepath.Join(dir, "var", "state"), 0o755); err != nil {
		t.Fatal(err)
	}
	p, job = fixture(dir)
	return dir, p, job
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not true: %s", what)
		}
	}
}
