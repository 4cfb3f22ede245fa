package content

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

// Object is one stored value: a single zstd frame, or a delta, named by the hash of the stored bytes.
type Object struct {
	Hash string `json:"hash"` // SHA-256, 64 lower-case hexadecimal digits
	Size int64  `json:"size"` // bytes as stored
	Raw  int64  `json:"raw"`  // bytes once decoded
}

// Record says what a release's tree is and how to get it. Whoever signs a Record vouches for every byte of the tree.
//
// Releases that follow each other form a line: position 0 begins it, and every further one is its predecessor's tree plus
// a delta. From time to time a release has a base, which holds a whole tree. A node that stands further back on the line
// takes the deltas between; any other one takes the base and the deltas since.
type Record struct {
	Tree  string `json:"tree"`  // the tree hash
	Files int    `json:"files"` // regular files
	Bytes int64  `json:"bytes"` // sum of the files' sizes
	Base  Base   `json:"base"`
	Chain Chain  `json:"chain"`
}

// Base is a whole tree in objects: an index, the manifest, and packs, which the index lists.
type Base struct {
	Seq    int64  `json:"seq"`    // the position of the release whose tree it holds: this one, or an earlier one of the line
	Tree   string `json:"tree"`   // that tree's hash
	Index  Object `json:"index"`  //
	Stored int64  `json:"stored"` // bytes of the index and everything that it lists
	Deltas int64  `json:"deltas"` // Chain.Stored at its position
	Weight int64  `json:"weight"` // Chain.Weight at its position
}

// Chain is a release's place among those that were published before it.
type Chain struct {
	Line   string  `json:"line"`            // the version of the release at position 0
	Seq    int64   `json:"seq"`             // the position of this one
	Delta  *Object `json:"delta,omitempty"` // from the position before; nil at position 0
	Stored int64   `json:"stored"`          // bytes of all deltas of the line, up to this one
	Weight int64   `json:"weight"`          // bytes of memory that decoding them takes, up to this one
}

// Check says whether the record is within the caps and does not contradict itself. What was read from elsewhere has to
// pass before anything is allocated by its numbers; Install, OpenView and ReadFiles see to it themselves.
func (r Record) Check() error {
	if err := r.check(); err != nil {
		return fmt.Errorf("cannot accept content record: %w", err)
	}
	return nil
}

// Cold is how many bytes a node fetches that has nothing yet: the base and the deltas since.
func (r Record) Cold() int64 { return r.Base.Stored + r.Chain.Stored - r.Base.Deltas }

func (r Record) check() error {
	c := r.Chain
	switch {
	case !isHash(r.Tree):
		return fmt.Errorf("tree %q is not a SHA-256 in lower-case hexadecimal", r.Tree)
	case r.Files < 0 || r.Files > MaxEntries:
		return fmt.Errorf("%d files, at most %d are allowed", r.Files, MaxEntries)
	case r.Bytes < 0 || r.Bytes > MaxTreeBytes:
		return fmt.Errorf("%d bytes, at most %d are allowed", r.Bytes, MaxTreeBytes)
	case !isHash(r.Base.Tree):
		return fmt.Errorf("base tree %q is not a SHA-256 in lower-case hexadecimal", r.Base.Tree)
	case r.Base.Seq == c.Seq && r.Base.Tree != r.Tree:
		return errors.New("its own base holds another tree")
	case r.Base.Stored < r.Base.Index.Size || r.Base.Stored > 2*maxObjects*MaxStored:
		return fmt.Errorf("a base of %d bytes", r.Base.Stored)
	case c.Line == "" || len(c.Line) > maxLineBytes:
		return fmt.Errorf("line %.64q is not the name of one", c.Line)
	case r.Base.Seq < 0 || r.Base.Seq > c.Seq || c.Seq > maxSeq:
		return fmt.Errorf("position %d with a base at %d", c.Seq, r.Base.Seq)
	case c.Seq-r.Base.Seq > MaxDeltas:
		return fmt.Errorf("%d deltas after its base, at most %d are allowed", c.Seq-r.Base.Seq, MaxDeltas)
	case (c.Delta == nil) != (c.Seq == 0):
		return errors.New("a delta leads to the first position of a line, or none to another")
	case c.Stored < 0 || c.Weight < 0 || c.Stored > maxSum || c.Weight > maxSum:
		return errors.New("its deltas have an impossible size")
	case r.Base.Deltas < 0 || r.Base.Deltas > c.Stored || r.Base.Weight < 0 || c.Weight-r.Base.Weight < 0 || c.Weight-r.Base.Weight > MaxWeight:
		return errors.New("the deltas after its base have an impossible size")
	}
	if _, _, err := sumObjects([]Object{r.Base.Index}); err != nil {
		return fmt.Errorf("index: %w", err)
	}
	if c.Delta == nil {
		return nil
	}
	if err := c.Delta.check(MaxWeight); err != nil {
		return fmt.Errorf("delta: %w", err)
	}
	if c.Delta.Size > c.Stored || c.Delta.Raw > c.Weight {
		return errors.New("its delta is larger than all together")
	}
	return nil
}

func (o Object) check(limit int64) error {
	switch {
	case !isHash(o.Hash):
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

// hashBytes is the opposite of hashOf's spelling; s has passed isHash.
func hashBytes(s string) (hash [sha256.Size]byte) {
	_, _ = hex.Decode(hash[:], []byte(s))
	return hash
}
