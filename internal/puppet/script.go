package puppet

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"pulley/internal/child"
	"pulley/internal/clip"
)

// maxScriptOutput limits the output of a script to keep, in bytes.
const maxScriptOutput = 4 << 10

// runScript runs a command line of a release and returns its standard output. No process of it outlives the call and
// it can't change the tree, if this process may create namespaces. Otherwise confined is false.
func runScript(ctx context.Context, line, tree string, deadline time.Duration) (out string, confined bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, deadline, fmt.Errorf("it took longer than %s", deadline))
	defer cancel()
	result, said := &clip.Head{Limit: maxScriptOutput}, &clip.Head{Limit: maxScriptOutput}
	cmd := child.Command{Path: "/bin/sh", Args: []string{"-c", line}, Dir: tree, Env: environ(), Stdout: result, Stderr: said, ReadOnly: tree, Bound: true}
	err = cmd.Run(ctx)
	confined = true
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EINVAL) {
		confined, cmd.ReadOnly = false, ""
		err = cmd.Run(ctx)
	}
	if err == nil {
		return result.String(), confined, nil
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		if last := clip.Text(lines[len(lines)-1], maxVersion); last != "" {
			err = fmt.Errorf("%w: %s", err, last)
		}
	}
	return "", confined, err
}
