package firstboot

import (
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

	"pulley/internal/clip"
)

// Programs runs the scripts of a first boot: those of pre.d and post.d, and the replacements of steps.
type Programs struct {
	Env    []string  // PULLEY_… and proxies, as far as known
	Output io.Writer // receives their output
	Log    *slog.Logger
}

// Executables returns the programs of a folder, sorted by name; none for a missing folder.
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
	shownOutput = 600 // last bytes of a failed program's output in its error
	programEnd  = 10 * time.Second
)

// Run runs one program in its own process group until it ends. When ctx ends, the group gets SIGTERM, and SIGKILL a
// little later.
func (p Programs) Run(ctx context.Context, program string) error {
	cmd := exec.CommandContext(ctx, program)
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/puppetlabs/bin",
		"LANG=C.UTF-8", "HOME=/root", "DEBIAN_FRONTEND=noninteractive"}, p.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = programEnd
	last := &clip.Tail{Limit: shownOutput}
	cmd.Stdout = io.MultiWriter(p.Output, last)
	cmd.Stderr = cmd.Stdout
	p.Log.Info("running a program", "command", fmt.Sprintf("%q", program))
	err := cmd.Run()
	if cmd.Process != nil && ctx.Err() != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if err == nil || errors.Is(err, exec.ErrWaitDelay) { // it succeeded, and left a service that holds its output open
		return nil
	}
	if ctx.Err() != nil {
		err = errors.New("it took too long")
		if errors.Is(ctx.Err(), context.Canceled) {
			err = errors.New("the agent received a signal")
		}
	}
	return fmt.Errorf("cannot run %s: %w: %s", program, err, last)
}
