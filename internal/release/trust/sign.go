package trust

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"pulley/internal/bounded"
	"pulley/internal/child"
	"pulley/internal/clip"
)

// Key is the signing key of an operator.
type Key struct {
	File    string // private key, or the public key if an agent or a hardware token holds the private one
	Program string // "" is ssh-keygen

	patience time.Duration // 0 is signingTime
}

// The time for a passphrase or a touch, and the time for ssh-keygen to restore the terminal after a signal.
const (
	signingTime = 2 * time.Minute
	endingTime  = 2 * time.Second
)

// Sign signs a record, which is one line without its newline, with `ssh-keygen -Y sign`. Agents, hardware keys and
// passphrases therefore work as in git. It returns the armored signature for Join, after checking that Verify accepts
// its form.
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
	// Use a file: ssh-keygen asks for a passphrase only if standard input is a terminal.
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

// checkOwn checks a new signature like a node does, except the list of signers.
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

// Create creates an ed25519 key in k.File and k.File.pub with `ssh-keygen`, which asks for a passphrase. With bare, the
// key has no passphrase. Create does not replace an existing file.
func (k Key) Create(ctx context.Context, bare bool) error {
	for _, file := range []string{k.File, k.File + ".pub"} {
		if _, err := os.Lstat(file); err == nil {
			return fmt.Errorf("cannot create key %s: file %s exists\ngive another name", k.File, file)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot create key %s: %w", k.File, err)
		}
	}
	if _, err := exec.LookPath(k.program()); err == nil { // run names a missing one
		if err := os.MkdirAll(filepath.Dir(k.File), 0o700); err != nil { // a new user has no ~/.ssh
			return fmt.Errorf("cannot create key %s: %w", k.File, err)
		}
	}
	args := []string{"-q", "-t", "ed25519", "-f", k.File}
	if bare {
		args = append(args, "-N", "")
	}
	return k.run(ctx, "create key", args...)
}

func (k Key) program() string { return cmp.Or(k.Program, "ssh-keygen") }

// run runs ssh-keygen on the terminal of this process. It stays in the process group of its parent, unlike other child
// processes, because a background process may not read a passphrase. The verb is for errors.
func (k Key) run(ctx context.Context, verb string, args ...string) error {
	program := k.program()
	path, err := exec.LookPath(program)
	if err != nil {
		return fmt.Errorf("cannot %s %s: %s is not installed\n"+
			"install OpenSSH's client: package openssh-client on Debian and Ubuntu, openssh-clients on Fedora and RHEL", verb, k.File, program)
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(k.patience, signingTime))
	defer cancel()
	said := &clip.Tail{Limit: 64 << 10}
	// A gentle signal first: ssh-keygen then turns the terminal's echo on again.
	cmd := child.Command{Path: path, Args: args, Env: child.WithoutOwn(os.Environ()), Stdin: os.Stdin, Stderr: said, Grace: endingTime, Terminal: true}
	if terminal(os.Stderr) { // for prompts such as "touch your key"
		cmd.Stderr = os.Stderr
	}
	cmd.Stdout = cmd.Stderr
	err = cmd.Run(ctx)
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

// explain converts output of ssh-keygen to an error with a remedy.
func (k Key) explain(verb string, err error, said string) error {
	info, statErr := os.Stat(k.File)
	head := k.read(k.File)
	_, notPublic := parsePublicKey(head)
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

// CanAsk reports whether Create can ask for a passphrase. ssh-keygen asks only if standard input is a terminal;
// otherwise it makes a key without a passphrase.
func CanAsk() bool { return terminal(os.Stdin) }

// terminal reports whether a file is a terminal. The null device is a device but not a terminal.
func terminal(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err == nil && !os.SameFile(info, null)
}

// maxKeyBytes limits the bytes to read from a key file.
const maxKeyBytes = 64 << 10

// Check returns an error if the key file is missing. Call it before preparing a record to sign.
func (k Key) Check() error {
	info, err := os.Stat(k.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if path, err := filepath.Abs(k.File); err == nil && path != k.File {
			return fmt.Errorf("cannot sign with %s: the file does not exist in %s\ngive its absolute path, or set it for all folders: `pulley context set --sign-key FILE`", k.File, filepath.Dir(path))
		}
		return fmt.Errorf("cannot sign with %s: the file does not exist\nfor a new key, run `pulley key create %s`; nodes accept it when their allowed signers have it", k.File, k.File)
	case err != nil:
		return fmt.Errorf("cannot sign with %s: %w", k.File, err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("cannot sign with %s: it is not a file\ngive the file of a private key, or of a public one whose private half an ssh-agent has", k.File)
	}
	return nil
}

// fingerprint returns the fingerprint of the key that Sign uses, as ssh-keygen -l prints it. It returns "" if neither
// the file nor its .pub file shows the key. It never asks for a passphrase.
func (k Key) fingerprint() string {
	own := k.read(k.File)
	if key, err := parsePublicKey(own); err == nil {
		return key.Fingerprint()
	}
	private, err := ssh.ParsePrivateKey(own)
	var locked *ssh.PassphraseMissingError
	switch {
	case err == nil:
		return ssh.FingerprintSHA256(private.PublicKey())
	case errors.As(err, &locked) && locked.PublicKey != nil:
		return ssh.FingerprintSHA256(locked.PublicKey)
	}
	if key, err := parsePublicKey(k.read(k.File + ".pub")); err == nil {
		return key.Fingerprint()
	}
	return ""
}

// Among returns the key's fingerprint if the key made one of the signatures. Otherwise, or if the fingerprint is
// unknown, it returns "".
func (k Key) Among(signatures []byte) string {
	if len(signatures) == 0 {
		return ""
	}
	own := k.fingerprint()
	if slices.ContainsFunc(SignedBy(signatures), func(s Signature) bool { return s.Key == own }) {
		return own
	}
	return ""
}

// read returns the beginning of a file, or nil if the file is unreadable; signing reports the error.
func (k Key) read(file string) []byte {
	f, err := bounded.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxKeyBytes))
	if err != nil {
		return nil
	}
	return b
}
