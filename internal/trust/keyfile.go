package trust

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/crypto/ssh"
)

// maxKeyBytes limits the bytes to read from a key file.
const maxKeyBytes = 64 << 10

// Check returns an error if the key file is missing. Call it before preparing a record to sign.
func (k Key) Check() error {
	info, err := os.Stat(k.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("cannot sign with %s: there is no such file\n`pulley key create %s` makes a key", k.File, k.File)
	case err != nil:
		return fmt.Errorf("cannot sign with %s: %w", k.File, err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("cannot sign with %s: it is no file\ngive the file of a private key, or of a public one whose private half an ssh-agent has", k.File)
	}
	return nil
}

// Fingerprint returns the fingerprint of the key that Sign uses, as ssh-keygen -l prints it. It returns "" if neither
// the file nor its .pub file shows the key. It never asks for a passphrase.
func (k Key) Fingerprint() string {
	own := k.read(k.File)
	if key, err := ParsePublicKey(own); err == nil {
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
	if key, err := ParsePublicKey(k.read(k.File + ".pub")); err == nil {
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
	own := k.Fingerprint()
	if slices.ContainsFunc(SignedBy(signatures), func(s Signature) bool { return s.Fingerprint == own }) {
		return own
	}
	return ""
}

// read returns the beginning of a file, or nil if the file is unreadable; signing reports the error.
func (k Key) read(file string) []byte {
	f, err := os.Open(file)
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
