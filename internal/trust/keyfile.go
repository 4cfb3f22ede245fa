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

// maxKeyBytes bounds what is read of a key's file.
const maxKeyBytes = 64 << 10

// Check says, before there is anything to sign, that there is no file to sign with.
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

// Fingerprint is that of the key that Sign uses, as ssh-keygen -l prints it; "" where neither the file nor the one of the
// public key beside it tells. Nobody is asked for a passphrase.
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

// Among returns the key's fingerprint if it made one of the signatures, and "" if it did not or its fingerprint is unknown.
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

// read returns the beginning of a file; nil when it can't be read, which signing will say.
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
