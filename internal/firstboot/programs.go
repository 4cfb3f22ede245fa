package firstboot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"pulley/internal/child"
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

// Run runs one program until it ends. When ctx ends, it gets SIGTERM, and SIGKILL a little later. A service that it started stays.
func (p Programs) Run(ctx context.Context, program string) error {
	last := &clip.Tail{Limit: shownOutput}
	output := io.MultiWriter(p.Output, last)
	p.Log.Info("running a program", "command", fmt.Sprintf("%q", program))
	err := child.Command{
		Path: program, Dir: "/", Stdout: output, Stderr: output, Grace: programEnd,
		Env: append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/puppetlabs/bin",
			"LANG=C.UTF-8", "HOME=/root", "DEBIAN_FRONTEND=noninteractive"}, p.Env...),
		Left: child.KeepServices,
	}.Run(ctx)
	if err == nil {
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
