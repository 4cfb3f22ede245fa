package trust

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hiddeco/sshsig"
)

// Key is what an operator signs with.
type Key struct {
	File    string // of the private key, or of the public one when an agent or a hardware token has the private one
	Program string // "" is ssh-keygen

	patience time.Duration // 0 is signingTime
}

// How long a person has for a passphrase or a touch, and then ssh-keygen for putting the terminal back in order.
const (
	signingTime = 2 * time.Minute
	endingTime  = 2 * time.Second
)

// Sign signs a record, which is one line without its newline, by `ssh-keygen -Y sign`: so agents, hardware keys and
// passphrases work as they do with git. It returns the armored signature, ready for Join, and only one that Verify can read.
func (k Key) Sign(ctx context.Context, ns Namespace, record []byte) (armored []byte, err error) {
	if err := checkRecord(record); err != nil {
		return nil, fmt.Errorf("cannot sign: %w", err)
	}
	if err := k.Check(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pulley-sign-")
	if err != nil {
		return nil, fmt.Errorf("cannot sign with %s: %w", k.File, err)
	}
	defer os.RemoveAll(dir)
	// A file, not standard input: ssh-keygen asks for a passphrase only where standard input is a terminal.
	file := filepath.Join(dir, "record")
	if err := os.WriteFile(file, message(record), 0o600); err != nil {
		return nil, fmt.Errorf("cannot sign with %s: %w", k.File, err)
	}
	if err := k.run(ctx, "sign with", "-q", "-Y", "sign", "-n", string(ns), "-f", k.File, file); err != nil {
		return nil, err
	}
	if armored, err = os.ReadFile(file + ".sig"); err != nil {
		return nil, fmt.Errorf("cannot sign with %s: %w", k.File, err)
	}
	if err := checkOwn(ns, record, armored); err != nil {
		return nil, fmt.Errorf("cannot sign with %s: no node would accept it: %w", k.File, err)
	}
	return armored, nil
}

// checkOwn looks at a fresh signature as a node will, but for who may sign.
func checkOwn(ns Namespace, record, armored []byte) error {
	blocks, err := unarmor(armored)
	if err != nil {
		return err
	}
	for _, block := range blocks {
		sig, err := parseSignature(block)
		if err != nil {
			return err
		}
		if err := sshsig.Verify(bytes.NewReader(message(record)), sig, sig.PublicKey, sig.HashAlgorithm, string(ns)); err != nil {
			return err
		}
	}
	return nil
}

// Create makes a new ed25519 key in k.File and k.File.pub by `ssh-keygen`, which asks for a passphrase; with bare it gets
// none. An existing file stays as it is.
func (k Key) Create(ctx context.Context, bare bool) error {
	for _, file := range []string{k.File, k.File + ".pub"} {
		if _, err := os.Lstat(file); err == nil {
			return fmt.Errorf("cannot create key %s: there is a file %s, and a key that is overwritten is gone\ngive another name", k.File, file)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot create key %s: %w", k.File, err)
		}
	}
	args := []string{"-q", "-t", "ed25519", "-f", k.File}
	if bare {
		args = append(args, "-N", "")
	}
	return k.run(ctx, "create key", args...)
}

// run runs ssh-keygen on this process's own terminal. It stays in this process's group, unlike other children: one in the
// background may not read a passphrase. The verb is for errors.
func (k Key) run(ctx context.Context, verb string, args ...string) error {
	program := cmp.Or(k.Program, "ssh-keygen")
	path, err := exec.LookPath(program)
	if err != nil {
		return fmt.Errorf("cannot %s %s: there is no %s on this machine\n"+
			"install OpenSSH's client: package openssh-client on Debian and Ubuntu, openssh-clients on Fedora and RHEL", verb, k.File, program)
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(k.patience, signingTime))
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	// First the gentle signal: it gives the terminal its echo back.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = endingTime
	var said bytes.Buffer
	cmd.Stdin, cmd.Stderr = os.Stdin, &said
	if terminal(os.Stderr) { // where "touch your key" has to appear
		cmd.Stderr = os.Stderr
	}
	cmd.Stdout = cmd.Stderr
	err = cmd.Run()
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("cannot %s %s: %s did not finish in time\nit may have waited for a passphrase or for a touch of the key: ssh-add the key first", verb, k.File, program)
	case ctx.Err() != nil:
		return fmt.Errorf("cannot %s %s: %w", verb, k.File, ctx.Err())
	}
	return k.explain(verb, err, said.String())
}

// explain turns what ssh-keygen said into what to do.
func (k Key) explain(verb string, err error, said string) error {
	info, statErr := os.Stat(k.File)
	head := k.read(k.File)
	_, notPublic := ParsePublicKey(head)
	public := statErr == nil && notPublic == nil
	if statErr == nil && bytes.HasPrefix(head, []byte("-----BEGIN")) && info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("cannot %s %s: others may read it (mode %04o)\nrun: chmod 600 %s", verb, k.File, info.Mode().Perm(), k.File)
	}
	lines := strings.FieldsFunc(said, func(r rune) bool { return r == '\n' || r == '\r' })
	what := err.Error()
	if len(lines) > 0 {
		what = strings.TrimSpace(lines[len(lines)-1])
	}
	hint := ""
	switch {
	case public && verb == "sign with":
		hint = "\nit is a public key, and neither an ssh-agent nor the file beside it has the private one: run ssh-add, or give the private key"
	case strings.Contains(what, "passphrase"):
		hint = "\nrun ssh-add first, or give the passphrase on a terminal"
	}
	return fmt.Errorf("cannot %s %s: %s%s", verb, k.File, what, hint)
}

// CanAsk says whether Create could ask a person for a passphrase: ssh-keygen asks where standard input is a terminal, and
// elsewhere makes a key without one.
func CanAsk() bool { return terminal(os.Stdin) }

// terminal says whether a person may be looking at a file: the null device is no terminal, though it is a device too.
func terminal(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err == nil && !os.SameFile(info, null)
}
