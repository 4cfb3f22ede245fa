package content

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

// Object is one stored value: a single zstd frame, named by the hash of the stored bytes.
type Object struct {
	Hash string `json:"hash"` // SHA-256, 64 lower-case hexadecimal digits
	Size int64  `json:"size"` // bytes as stored
	Raw  int64  `json:"raw"`  // bytes once decoded
}

// Record says what a release's tree is and which objects hold it. Whoever signs a Record vouches for every byte of the
// tree. The order of both lists matters: decoded one after another, Manifest gives the encoded manifest, and Packs gives
// the contents of the tree's files, in the order of the manifest, each distinct content once.
type Record struct {
	Tree     string   `json:"tree"`   // the tree hash
	Files    int      `json:"files"`  // regular files
	Bytes    int64    `json:"bytes"`  // sum of the files' sizes
	Stored   int64    `json:"stored"` // sum of the objects' sizes
	Manifest []Object `json:"manifest"`
	Packs    []Object `json:"packs"`
}

// Check says whether the record is within the caps and does not contradict itself. What was read from elsewhere has to
// pass before anything is allocated by its numbers; Install and ReadFiles see to it themselves.
func (r Record) Check() error {
	if err := r.check(); err != nil {
		return fmt.Errorf("cannot accept content record: %w", err)
	}
	return nil
}

func (r Record) check() error {
	if !isHash(r.Tree) {
		return fmt.Errorf("tree %q is not a SHA-256 in lower-case hexadecimal", r.Tree)
	}
	if r.Files < 0 || r.Files > MaxEntries {
		return fmt.Errorf("%d files, at most %d are allowed", r.Files, MaxEntries)
	}
	if r.Bytes < 0 || r.Bytes > MaxTreeBytes {
		return fmt.Errorf("%d bytes, at most %d are allowed", r.Bytes, MaxTreeBytes)
	}
	if len(r.Manifest) == 0 {
		return errors.New("no manifest")
	}
	manifest, manifestStored, err := sumObjects(r.Manifest)
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	if manifest > maxManifestBytes {
		return fmt.Errorf("manifest of %d bytes, at most %d are allowed", manifest, maxManifestBytes)
	}
	packs, packsStored, err := sumObjects(r.Packs)
	if err != nil {
		return fmt.Errorf("packs: %w", err)
	}
	if packs > r.Bytes {
		return fmt.Errorf("packs of %d bytes for files of %d", packs, r.Bytes)
	}
	if sum := manifestStored + packsStored; sum != r.Stored {
		return fmt.Errorf("%d bytes stored, but the objects have %d", r.Stored, sum)
	}
	return nil
}

func sumObjects(objects []Object) (raw, stored int64, err error) {
	if len(objects) > maxObjects {
		return 0, 0, fmt.Errorf("%d objects, at most %d are allowed", len(objects), maxObjects)
	}
	for _, o := range objects {
		switch {
		case !isHash(o.Hash):
			return 0, 0, fmt.Errorf("object %q is not named by a SHA-256 in lower-case hexadecimal", o.Hash)
		case o.Size <= 0 || o.Size > MaxStored:
			return 0, 0, fmt.Errorf("object %s of %d bytes, 1 to %d are allowed", o.Hash, o.Size, MaxStored)
		case o.Raw <= 0 || o.Raw > maxRaw:
			return 0, 0, fmt.Errorf("object %s decodes to %d bytes, 1 to %d are allowed", o.Hash, o.Raw, maxRaw)
		}
		raw += o.Raw
		stored += o.Size
	}
	return raw, stored, nil
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func isHash(s string) bool {
	if len(s) != 2*sha256.Size {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
