package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"pulley/internal/child"
	"pulley/internal/clip"
	"pulley/internal/model"
)

// scriptTimeout limits one script of a release.
const scriptTimeout = 5 * time.Minute

// scripts runs the programs in a folder of a release: checks, and hooks.
type scripts struct {
	folder  string   // of the release
	env     []string // in addition to the variables for all scripts
	shown   int      // limit for the shown output of a failed script, in bytes
	timeout time.Duration
	log     *slog.Logger

	stdin []byte             // nil: none
	after string             // skip the scripts up to this name
	done  func(string) error // receives the name of each script that succeeded; may be nil
}

// run runs the executables of the folder, ordered by name, until the first failure. A missing folder counts as empty.
func (s scripts) run(ctx context.Context, job model.Job) error {
	dir := filepath.Join(job.Tree, s.folder)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", s.folder, err)
	}
	for _, e := range entries {
		script := filepath.Join(dir, e.Name())
		info, err := os.Stat(script)
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			continue
		}
		if e.Name() <= s.after {
			continue
		}
		err = s.one(ctx, script, job)
		if err == nil && s.done != nil {
			err = s.done(e.Name())
		}
		if err != nil {
			return fmt.Errorf("%s/%s: %w", s.folder, e.Name(), err)
		}
	}
	return nil
}

func (s scripts) one(ctx context.Context, script string, job model.Job) error {
	late := fmt.Errorf("it took longer than %s", s.timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, late)
	defer cancel()
	output := &clip.Tail{Limit: s.shown}
	cmd := child.Command{
		Path: script, Dir: "/", Stdout: output, Stderr: output,
		Env: append([]string{
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/root",
			"PULLEY_NODE=" + job.Node, "PULLEY_ROLE=" + job.Role, "PULLEY_ENVIRONMENT=" + job.Environment,
			"PULLEY_RELEASE=" + job.Target.Release, "PULLEY_TREE=" + job.Tree,
		}, s.env...),
		Left: child.KeepServices, // it may restart a service
	}
	if s.stdin != nil {
		cmd.Stdin = bytes.NewReader(s.stdin)
	}
	s.log.Info("running a script of the release", "command", script)
	err := cmd.Run(ctx)
	if text := output.String(); err != nil && text != "" {
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}
