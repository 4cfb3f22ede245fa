package trust

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
)

// ReadLists reads a list of allowed signers and a list of revoked keys. A path "" stands for an empty file. It also
// returns the bytes of the first list.
func ReadLists(allowed, revoked string) (*Signers, []byte, error) {
	a, err := bounded.ReadFile(allowed, maxListBytes)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read the allowed signers: %w", err)
	}
	var r []byte
	if revoked != "" {
		if r, err = bounded.ReadFile(revoked, maxListBytes); err != nil {
			return nil, nil, fmt.Errorf("cannot read the revoked keys: %w", err)
		}
	}
	signers, err := ParseSigners(a, r)
	return signers, a, err
}

// readOptional reads a file. A missing file is empty.
func readOptional(file string) ([]byte, error) {
	b, err := bounded.ReadFile(file, maxListBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// ReadPublicKey reads a .pub file of ssh-keygen.
func ReadPublicKey(file string) (PublicKey, error) {
	b, err := bounded.ReadFile(file, maxListBytes)
	if err != nil {
		return PublicKey{}, fmt.Errorf("cannot read the public key: %w", err)
	}
	key, err := ParsePublicKey(b)
	if err != nil {
		return PublicKey{}, fmt.Errorf("cannot read the public key in %s: %w", file, err)
	}
	return key, nil
}

// FindPublicKey reads a public key from a file. If key begins with SHA256:, it searches a list of allowed signers for
// this fingerprint.
func FindPublicKey(key, allowed string) (PublicKey, error) {
	if !strings.HasPrefix(key, "SHA256:") {
		return ReadPublicKey(key)
	}
	signers, _, err := ReadLists(allowed, "")
	if err != nil {
		return PublicKey{}, err
	}
	for _, s := range signers.all {
		if s.Fingerprint() == key {
			return PublicKey{PublicKey: s.Key, Comment: s.Comment}, nil
		}
	}
	return PublicKey{}, fmt.Errorf("cannot find key %s in %s\nrun `pulley key list --signers %s` to list its keys, or give the file of the public key", key, allowed, allowed)
}

// AllowInFile adds a key to a file of allowed signers, and creates the file if it is missing.
func AllowInFile(file string, key PublicKey, p Permission) error {
	list, err := readOptional(file)
	if err == nil {
		list, err = Allow(list, key, p)
	}
	if err == nil {
		err = atomicfile.Replace(file, list, 0o644)
	}
	if err != nil {
		return fmt.Errorf("cannot allow %s to sign: %w", p.Name, err)
	}
	return nil
}

// ExpireInFile sets the expiry of a key in a file of allowed signers. The key is given by holder name or fingerprint.
func ExpireInFile(file, who string, at time.Time) (Signer, error) {
	var signer Signer
	list, err := bounded.ReadFile(file, maxListBytes)
	if err == nil {
		list, signer, err = Expire(list, who, at)
	}
	if err == nil {
		err = atomicfile.Replace(file, list, 0o644)
	}
	if err != nil {
		return Signer{}, fmt.Errorf("cannot set the end of the key: %w", err)
	}
	return signer, nil
}

// RevokeInFile adds a key to a file of revoked keys, and creates the file if it is missing. Added is false if the file
// contains the key already.
func RevokeInFile(file string, key PublicKey) (added bool, err error) {
	list, err := readOptional(file)
	if err == nil {
		list, added, err = Revoke(list, key)
	}
	if err == nil && added {
		err = atomicfile.Replace(file, list, 0o644)
	}
	if err != nil {
		return false, fmt.Errorf("cannot revoke the key: %w", err)
	}
	return added, nil
}

// ReadRecord reads a record and its signatures from one file, or from FILE and FILE.sig. It verifies nothing.
func ReadRecord(file string) (record, signatures []byte, err error) {
	value, err := bounded.ReadFile(file, maxRecordBytes+maxSignaturesBytes)
	if err == nil {
		if record, signatures = Split(value); signatures == nil {
			signatures, err = readOptional(file + ".sig")
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read the record: %w", err)
	}
	return record, signatures, nil
}
