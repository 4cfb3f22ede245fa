package content

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Object describes one stored value, a single zstd frame or a delta. Its name is the hash of the stored bytes.
type Object struct {
	Hash string `json:"hash"` // SHA-256, 64 lower-case hexadecimal digits
	Size int64  `json:"size"` // bytes as stored
	Raw  int64  `json:"raw"`  // bytes after decoding
}

// Record names the tree of a release and the objects to build it from. A signature on a Record vouches for every byte
// of the tree.
//
// Consecutive releases form a line. Position 0 begins the line; every later release is its predecessor's tree plus a
// delta. Some releases have a base, which holds the complete tree. A node that has an earlier release of the line
// fetches the deltas in between. Any other node fetches the base and the deltas after it.
type Record struct {
	Tree  string `json:"tree"`  // the tree hash
	Files int    `json:"files"` // regular files
	Bytes int64  `json:"bytes"` // sum of the files' sizes
	Base  Base   `json:"base"`
	Chain Chain  `json:"chain"`
}

// Base is a complete tree stored as objects: an index, and the manifest and packs that the index lists.
type Base struct {
	Seq    int64  `json:"seq"`    // the position of the base on the line: this release or an earlier one
	Tree   string `json:"tree"`   // the tree hash at that position
	Index  Object `json:"index"`  //
	Stored int64  `json:"stored"` // bytes of the index and of everything it lists
	Deltas int64  `json:"deltas"` // Chain.Stored at its position
	Weight int64  `json:"weight"` // Chain.Weight at its position
}

// Chain is the position of a release on its line.
type Chain struct {
	Line   string  `json:"line"`            // the version of the release at position 0
	Seq    int64   `json:"seq"`             // the position of this release
	Delta  *Object `json:"delta,omitempty"` // from the position before; nil at position 0
	Stored int64   `json:"stored"`          // bytes of all deltas of the line, up to this release
	Weight int64   `json:"weight"`          // bytes of memory for decoding these deltas
}

// Check verifies that the record is within the limits and consistent. Call it on a record from outside before
// allocating memory by its sizes. Install, OpenView and ReadFiles call it themselves.
func (r Record) Check() error {
	if err := r.check(); err != nil {
		return fmt.Errorf("cannot accept content record: %w", err)
	}
	return nil
}

// Cold returns the number of bytes that a node without any tree fetches: the base and the deltas after it.
func (r Record) Cold() int64 { return r.Base.Stored + r.Chain.Stored - r.Base.Deltas }

func (r Record) check() error {
	c := r.Chain
	switch {
	case !IsHash(r.Tree):
		return fmt.Errorf("tree %q is not a SHA-256 in lower-case hexadecimal", r.Tree)
	case r.Files < 0 || r.Files > MaxEntries:
		return fmt.Errorf("%d files, at most %d are allowed", r.Files, MaxEntries)
	case r.Bytes < 0 || r.Bytes > MaxTreeBytes:
		return fmt.Errorf("%d bytes, at most %d are allowed", r.Bytes, MaxTreeBytes)
	case !IsHash(r.Base.Tree):
		return fmt.Errorf("base tree %q is not a SHA-256 in lower-case hexadecimal", r.Base.Tree)
	case r.Base.Seq == c.Seq && r.Base.Tree != r.Tree:
		return errors.New("its own base holds another tree")
	case r.Base.Stored < r.Base.Index.Size || r.Base.Stored > 2*maxObjects*MaxStored:
		return fmt.Errorf("a base of %d bytes", r.Base.Stored)
	case c.Line == "" || len(c.Line) > maxLineBytes:
		return fmt.Errorf("%.64q is not the name of a line", c.Line)
	case r.Base.Seq < 0 || r.Base.Seq > c.Seq || c.Seq > maxSeq:
		return fmt.Errorf("position %d with a base at %d", c.Seq, r.Base.Seq)
	case c.Seq-r.Base.Seq > maxDeltas:
		return fmt.Errorf("%d deltas after its base, at most %d are allowed", c.Seq-r.Base.Seq, maxDeltas)
	case (c.Delta == nil) != (c.Seq == 0):
		return errors.New("the first position of a line has a delta, or a later position has none")
	case c.Stored < 0 || c.Weight < 0 || c.Stored > maxSum || c.Weight > maxSum:
		return errors.New("its deltas have an impossible size")
	case r.Base.Deltas < 0 || r.Base.Deltas > c.Stored || r.Base.Weight < 0 || c.Weight-r.Base.Weight < 0 || c.Weight-r.Base.Weight > maxWeight:
		return errors.New("the deltas after its base have an impossible size")
	}
	if _, _, err := sumObjects([]Object{r.Base.Index}); err != nil {
		return fmt.Errorf("index: %w", err)
	}
	if c.Delta == nil {
		return nil
	}
	if err := c.Delta.check(maxWeight); err != nil {
		return fmt.Errorf("delta: %w", err)
	}
	if c.Delta.Size > c.Stored || c.Delta.Raw > c.Weight {
		return errors.New("its delta is larger than all deltas together")
	}
	return nil
}

func (o Object) check(limit int64) error {
	switch {
	case !IsHash(o.Hash):
		return fmt.Errorf("object %q is not named by a SHA-256 in lower-case hexadecimal", o.Hash)
	case o.Size <= 0 || o.Size > MaxStored:
		return fmt.Errorf("object %s of %d bytes, 1 to %d are allowed", o.Hash, o.Size, MaxStored)
	case o.Raw <= 0 || o.Raw > limit:
		return fmt.Errorf("object %s decodes to %d bytes, 1 to %d are allowed", o.Hash, o.Raw, limit)
	}
	return nil
}

// sumObjects checks frames and adds up their sizes.
func sumObjects(objects []Object) (raw, stored int64, err error) {
	if len(objects) > maxObjects {
		return 0, 0, fmt.Errorf("%d objects, at most %d are allowed", len(objects), maxObjects)
	}
	for _, o := range objects {
		if err := o.check(maxRaw); err != nil {
			return 0, 0, err
		}
		raw += o.Raw
		stored += o.Size
	}
	return raw, stored, nil
}

// HashOf returns the name of an object: the hash of its bytes.
func HashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// IsHash reports whether s is a SHA-256 in lower-case hexadecimal. Other names must not become paths.
func IsHash(s string) bool {
	return len(s) == 2*sha256.Size && strings.Trim(s, "0123456789abcdef") == ""
}

// hashBytes decodes a hexadecimal hash. s must have passed IsHash.
func hashBytes(s string) (hash [sha256.Size]byte) {
	_, _ = hex.Decode(hash[:], []byte(s))
	return hash
}
