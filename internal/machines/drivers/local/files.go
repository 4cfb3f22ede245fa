package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// fileDeadline bounds a read or write of a file: sh in the machine does it.
const fileDeadline = time.Minute

// Exit codes of the scripts.
const (
	exitMissing    = 3
	exitNotRegular = 4
)

// ReadFile reads a file in the machine. Errors wrap os.ErrNotExist where the file is missing.
func (m *Machine) ReadFile(path string) ([]byte, error) {
	text, err := m.sh(nil, `[ -e "$1" ] || exit 3; [ -f "$1" ] || exit 4; exec cat "$1"`, path)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s in machine %s: %w", path, m.hostname, err)
	}
	return text, nil
}

// WriteFile writes a file in the machine, completely or not at all, owned by root, and creates its folders. It replaces a link at the
// path.
func (m *Machine) WriteFile(path string, data []byte, mode os.FileMode) error {
	_, err := m.sh(data, `[ ! -d "$1" ] || exit 4; umask 022; mkdir -p "$(dirname "$1")"; umask 077; cat >"$1.new"; chmod "$2" "$1.new"; mv -T "$1.new" "$1"`,
		path, fmt.Sprintf("%o", mode))
	if err != nil {
		return fmt.Errorf("cannot write %s in machine %s: %w", path, m.hostname, err)
	}
	return nil
}

// sh runs a script in the machine.
func (m *Machine) sh(stdin []byte, script string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), fileDeadline)
	defer cancel()
	cmd := m.Command(ctx, "sh", append([]string{"-euc", script, "sh"}, args...)...)
	var stderr strings.Builder
	cmd.Stdin, cmd.Stderr = bytes.NewReader(stdin), &stderr
	out, err := cmd.Output()
	switch {
	case err == nil:
		return out, nil
	case cmd.ProcessState == nil: // the machine has ended
		return nil, err
	case cmd.ProcessState.ExitCode() == exitMissing:
		return nil, os.ErrNotExist
	case cmd.ProcessState.ExitCode() == exitNotRegular:
		return nil, errors.New("not a regular file")
	}
	return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
}
