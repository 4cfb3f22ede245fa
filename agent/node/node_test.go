package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/agent"
	"pulley/agent/nodeconfig"
)

// Only a run in progress may be reported as one. Another failure of the lock must be an error.
func TestLockOfEndedRunIsTaken(t *testing.T) {
	dir := t.TempDir()
	disk, err := agent.OpenDisk(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	lock, err := disk.Lock()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	c := Setup{Config: nodeconfig.Under("/"), Log: slog.New(slog.DiscardHandler)}
	p := c.NewPuppet()
	p.Dir = dir
	stopped, cancel := context.WithCancel(t.Context())
	cancel() // keeps Reap from killing this process, which the record names as a Puppet past its deadline
	for name, c := range map[string]struct {
		deadline time.Duration
		locked   bool
	}{"at work": {1 << 62, true}, "past its deadline, and can't be ended": {0, false}} {
		recordSelf(t, dir, c.deadline)
		_, err := TakeLock(stopped, disk, p)
		if errors.Is(err, agent.ErrLocked) != c.locked || err == nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.locked && !strings.Contains(err.Error(), fmt.Sprint("pid ", os.Getpid())) {
			t.Errorf("%s: it does not say who: %v", name, err)
		}
	}
}

// recordSelf writes the record of a running Puppet with this process's pid.
func recordSelf(t *testing.T, dir string, deadline time.Duration) {
	t.Helper()
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	text := fmt.Sprintf(`{"pid":%d,"start":%s,"boot":%q,"deadline":%d}`, os.Getpid(), fields[19], strings.TrimSpace(string(boot)), deadline)
	if err := os.MkdirAll(filepath.Join(dir, "puppet"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "puppet", "running.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
