// Package trust decides whether a record from etcd is authentic, and whether a node may take a target. It owns the form
// of signed records, the list of allowed signers, the high-water mark and the permits. The mark prevents unnoticed
// downgrades; operators sign permits to allow downgrades.
//
// Signatures have the format of OpenSSH (PROTOCOL.sshsig), and so has the list of signers (ssh-keygen(1), ALLOWED
// SIGNERS). Everything can therefore be checked without Pulley, with `ssh-keygen -Y verify`. Where the two differ, this
// package is stricter: one unreadable line makes a list invalid.
//
// The package must never query etcd or read the clock. It must never accept a record because data is missing: missing,
// damaged or unknown data is a refusal. It runs ssh-keygen to sign, but not to verify: nodes need no ssh-keygen.
package trust

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"

	"pulley/internal/model/refusal"
)

// Namespace is the use of a signature. The signature of a permit is not valid for a release.
type Namespace string

// The namespaces: records of releases, generations of data, permits for a downgrade, releases of pulley-agent,
// statements of the targets in force.
const (
	Release  Namespace = "pulley-release"
	Data     Namespace = "pulley-data"
	Rollback Namespace = "pulley-rollback"
	Agent    Namespace = "pulley-agent"
	Current  Namespace = "pulley-current"
)

// Size limits. A record is a value of etcd, and those are small.
const (
	maxRecordBytes     = 512 << 10
	maxSignaturesBytes = 16 << 10
	maxSignatures      = 8
)

// Join returns the value to store: the record, a newline, the armored signatures. Without signatures, the value is the
// record. The record is one line, without its newline.
func Join(record, signatures []byte) []byte {
	if len(signatures) == 0 {
		return bytes.Clone(record)
	}
	return append(message(record), signatures...)
}

// Split splits a stored value into the record, without its newline, and the signatures, nil if there are none. It
// verifies neither.
func Split(value []byte) (record, signatures []byte) {
	record, signatures, _ = bytes.Cut(value, []byte("\n"))
	if len(signatures) == 0 {
		signatures = nil
	}
	return record, signatures
}

// AddSignatures appends signatures to earlier ones, which may be nil. It removes earlier signatures of the same keys,
// because space is limited. A result that nodes would refuse is an error.
func AddSignatures(earlier, added []byte) ([]byte, error) {
	blocks, err := unarmor(added)
	if err != nil {
		return nil, err
	}
	again := map[string]bool{} // encoded keys
	for _, b := range blocks {
		sig, err := parseSignature(b)
		if err != nil {
			return nil, fmt.Errorf("cannot read the new signature: %w", err)
		}
		again[string(sig.PublicKey.Marshal())] = true
	}
	var all []byte
	if len(earlier) > 0 {
		if blocks, err = unarmor(earlier); err != nil {
			return nil, err
		}
		for i, text := range bytes.SplitAfter(earlier, []byte(endSignature+"\n"))[:len(blocks)] {
			if sig, err := parseSignature(blocks[i]); err != nil || !again[string(sig.PublicKey.Marshal())] {
				all = append(all, text...)
			}
		}
		if blocks, err := unarmor(all); err == nil && len(blocks) == maxSignatures {
			return nil, fmt.Errorf("it already has %d signatures", maxSignatures)
		}
	}
	all = append(all, added...)
	_, err = unarmor(all)
	return all, err
}

// message returns the signed bytes: the line with its newline. `head -n1` of a value prints the same bytes.
func message(record []byte) []byte {
	return append(append(make([]byte, 0, len(record)+1), record...), '\n')
}

// checkRecord refuses a record that Split could not separate from its signatures.
func checkRecord(record []byte) error {
	switch {
	case len(record) == 0:
		return refusal.New(refusal.RecordUnreadable, "detail", "it is empty")
	case len(record) > maxRecordBytes:
		return refusal.New(refusal.RecordUnreadable, "detail", tooLarge(len(record), maxRecordBytes))
	case bytes.ContainsAny(record, "\n\x00"):
		return refusal.New(refusal.RecordUnreadable, "detail", "it is not one line of text")
	}
	return nil
}

func tooLarge(bytes, limit int) string {
	return fmt.Sprintf("it has %d bytes; the limit is %d", bytes, limit)
}

func badSignature(detail string) *Refusal {
	return refusal.New(refusal.SignatureUnreadable, "detail", detail)
}

const (
	beginSignature = "-----BEGIN SSH SIGNATURE-----"
	endSignature   = "-----END SSH SIGNATURE-----"
	maxArmorLine   = 76
)

// unarmor splits signatures into blocks and decodes each. It refuses other text before, between and after the blocks. A
// block has only one valid encoding, apart from the width of its lines. Otherwise the value could be changed unnoticed.
func unarmor(signatures []byte) ([][]byte, error) {
	if len(signatures) > maxSignaturesBytes {
		return nil, badSignature(tooLarge(len(signatures), maxSignaturesBytes))
	}
	text, ended := strings.CutSuffix(string(signatures), "\n")
	if !ended {
		return nil, badSignature("it is cut off")
	}
	var blocks [][]byte
	var body strings.Builder
	inside := false
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case !inside && line == beginSignature:
			inside = true
			body.Reset()
		case inside && line == endSignature:
			inside = false
			// Strict: unused bits of base64 must be zero.
			b, err := base64.StdEncoding.Strict().DecodeString(body.String())
			if err != nil {
				return nil, badSignature("it is not base64")
			}
			if blocks = append(blocks, b); len(blocks) > maxSignatures {
				return nil, badSignature(fmt.Sprintf("there are more than %d", maxSignatures))
			}
		case inside && line != "" && len(line) <= maxArmorLine && !strings.ContainsAny(line, "\r"):
			body.WriteString(line) // the decoder would skip a carriage return
		default:
			return nil, badSignature("bytes after the record are not an SSH signature")
		}
	}
	if inside {
		return nil, badSignature("it is cut off")
	}
	return blocks, nil
}
