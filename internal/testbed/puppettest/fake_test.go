package puppettest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	RunAsPuppet()
	os.Exit(m.Run())
}

// Tests on the fake prove nothing unless the fake satisfies Puppet's contract.
func TestFake(t *testing.T) {
	suite(t, func(t *testing.T, extra ...string) machine {
		dir := t.TempDir()
		m := machine{Program: Write(t, dir), Confdir: filepath.Join(dir, "etc"), Vardir: filepath.Join(dir, "var"), Boot: 300 * time.Millisecond, Grace: 600 * time.Millisecond}
		write(t, filepath.Join(m.Vardir, "state", "keep"), "")
		write(t, filepath.Join(dir, "extra-args"), strings.Join(extra, " "))
		return m
	}, nil, nil)
}
