package firstboot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Programs runs the scripts of a first boot: those of pre.d and post.d, and those that replace a step.
type Programs struct {
	Env    []string  // PULLEY_… and proxies, as they are known by then
	Output io.Writer // gets what they print
	Log    *slog.Logger
}

// Executables lists the programs of a folder in the order of their names; a folder that is not there has none.
func Executables(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			found = append(found, path)
		}
	}
	return found, nil
}

const (
	shownOutput = 600 // bytes of what a failed program printed last
	programEnd  = 10 * time.Second
)

// Run runs one program until it ends, in a process group of its own. When ctx ends all of it gets SIGTERM, and SIGKILL a
// little later.
func (p Programs) Run(ctx context.Context, program string) error {
	cmd := exec.CommandContext(ctx, program)
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/puppetlabs/bin",
		"LANG=C.UTF-8", "HOME=/root", "DEBIAN_FRONTEND=noninteractive"}, p.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = programEnd
	last := &tail{}
	cmd.Stdout = io.MultiWriter(p.Output, last)
	cmd.Stderr = cmd.Stdout
	p.Log.Info("running a program", "command", fmt.Sprintf("%q", program))
	err := cmd.Run()
	if cmd.Process != nil && ctx.Err() != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if err == nil || errors.Is(err, exec.ErrWaitDelay) { // it ended well, and left a service with its output open
		return nil
	}
	if ctx.Err() != nil {
		err = errors.New("it took too long")
		if errors.Is(ctx.Err(), context.Canceled) {
			err = errors.New("the agent received a signal")
		}
	}
	return fmt.Errorf("cannot run %s: %w: %s", program, err, bytes.TrimSpace(last.bytes))
}

// tail keeps the last bytes that are written to it.
type tail struct{ bytes []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.bytes = append(t.bytes, p...)
	if extra := len(t.bytes) - shownOutput; extra > 0 {
		t.bytes = append(t.bytes[:0], t.bytes[extra:]...)
	}
	return len(p), nil
}
