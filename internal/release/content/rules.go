package content

import (
	"crypto/sha256"
	"fmt"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// refusedError reports that one entry of a tree prevents its publication or installation.
type refusedError struct {
	Path string
	Why  string
	Hint string // remedy for the owner of the tree
}

func (e *refusedError) Error() string {
	what := strconv.Quote(e.Path)
	if e.Path == "." {
		what = "the tree"
	}
	return fmt.Sprintf("cannot accept %s: %s\n%s", what, e.Why, e.Hint)
}

const (
	hintRename = "rename it, or leave it out, and publish again"
	hintLink   = "replace the link by what it points at"
	hintShrink = "leave it out (.pulleyignore), and let Puppet fetch it from a package or a file server"
	hintBroken = "publish the release again"
)

func tooManyEntries() error {
	return &refusedError{".", fmt.Sprintf("it has more than %d files, folders and links", MaxEntries), "leave out what nodes do not need (.pulleyignore)"}
}

func tooManyBytes(p string) error {
	return &refusedError{p, fmt.Sprintf("with it the tree has more than %d MiB", MaxTreeBytes>>20), hintShrink}
}

// checkPath applies the rules for a single path.
func checkPath(p string) error {
	refuse := func(format string, args ...any) error {
		return &refusedError{Path: p, Why: fmt.Sprintf(format, args...), Hint: hintRename}
	}
	if why := badText(p); why != "" {
		return refuse("its path %s", why)
	}
	if len(p) > maxPathBytes {
		return refuse("its path has %d bytes, at most %d are allowed", len(p), maxPathBytes)
	}
	components := strings.Split(p, "/")
	if slices.ContainsFunc(components, func(c string) bool { return c == "" || c == "." || c == ".." }) {
		return refuse("its path is not a plain path below the root of the tree")
	}
	if len(components) > maxDepth {
		return refuse("it lies %d levels deep, at most %d are allowed", len(components), maxDepth)
	}
	for _, c := range components {
		if len(c) > maxComponentBytes {
			return refuse("a part of its path has %d bytes, at most %d are allowed", len(c), maxComponentBytes)
		}
		if c == ".git" {
			return refuse("Git's own files are not part of a release")
		}
	}
	return nil
}

// badText describes the fault in the text of a path or target, or returns "". A name may have all bytes that Linux and
// git accept.
func badText(s string) string {
	switch {
	case s == "":
		return "is empty"
	case strings.Contains(s, "\x00"):
		return "has a NUL byte"
	}
	return ""
}

// checkEntries applies all rules for a tree. The publisher calls it to report errors early. The node calls it because
// it does not trust the publisher.
func checkEntries(entries []Entry) error {
	if len(entries) > MaxEntries {
		return tooManyEntries()
	}
	t := tree(entries)
	var total int64
	folder := "." // found already: most neighbours lie in the same one
	for i, e := range entries {
		if err := checkPath(e.Path); err != nil {
			return err
		}
		if i > 0 && e.Path <= entries[i-1].Path {
			return &refusedError{e.Path, "it is listed twice or out of order", hintBroken}
		}
		if parent := path.Dir(e.Path); parent != "." && parent != folder {
			if t.kind(parent) != KindDirectory {
				return &refusedError{e.Path, fmt.Sprintf("%q is not listed as a folder", parent), hintBroken}
			}
			folder = parent
		}
		if err := t.checkKind(e); err != nil {
			return err
		}
		if e.regular() {
			if total += e.Size; total > MaxTreeBytes {
				return tooManyBytes(e.Path)
			}
		}
	}
	return nil
}

// tree finds entries by path. The entries must be sorted.
type tree []Entry

func (t tree) find(p string) (Entry, bool) {
	i := sort.Search(len(t), func(i int) bool { return t[i].Path >= p })
	if i == len(t) || t[i].Path != p {
		return Entry{}, false
	}
	return t[i], true
}

func (t tree) kind(p string) Kind {
	e, _ := t.find(p)
	return e.Kind
}

var emptyHash = sha256.Sum256(nil)

func (t tree) checkKind(e Entry) error {
	switch e.Kind {
	case KindFile, KindExecutable:
		if e.Size < 0 || e.Size > MaxFileBytes {
			return &refusedError{e.Path, fmt.Sprintf("it has %d bytes, at most %d are allowed", e.Size, MaxFileBytes), hintShrink}
		}
		if (e.Size == 0) != (e.Hash == emptyHash) || e.Target != "" {
			return &refusedError{e.Path, "its size contradicts its hash", hintBroken}
		}
	case KindDirectory:
		if e.Size != 0 || e.Hash != [sha256.Size]byte{} || e.Target != "" {
			return &refusedError{e.Path, "it is a folder with content", hintBroken}
		}
	case KindLink:
		if e.Size != int64(len(e.Target)) || e.Hash != sha256.Sum256([]byte(e.Target)) {
			return &refusedError{e.Path, "its target contradicts its hash", hintBroken}
		}
		why := badText(e.Target)
		if len(e.Target) > maxTargetBytes {
			why = fmt.Sprintf("has %d bytes, at most %d are allowed", len(e.Target), maxTargetBytes)
		}
		if why != "" {
			return &refusedError{e.Path, "its target " + why, hintLink}
		}
	default:
		return &refusedError{e.Path, "it is neither a file, a folder nor a symbolic link", hintRename}
	}
	return nil
}

// The limits of a tree. Publishers and nodes refuse a larger tree. Nodes do this before they allocate memory.
//
// The compression ratio has no limit, because a valid file of zeros would exceed it. Every frame declares its raw size,
// which is limited, so a small object can't cause a large allocation.
const (
	MaxEntries   = 100_000
	MaxTreeBytes = 1 << 30
	MaxFileBytes = 64 << 20

	maxPathBytes      = 1024
	maxTargetBytes    = 4095 // of a link, Linux's limit
	maxComponentBytes = 255
	maxDepth          = 32
)

// The limits of stored values. MaxStored is well below etcd's limit of one request (1.5 MiB), so that reads stay fast.
const (
	MaxStored = 512 << 10

	maxRaw           = 1 << 20  // of one frame; larger frames compress little better and cost nodes memory
	maxManifestBytes = 16 << 20 // encoded; 100,000 entries with paths of 120 bytes
	maxObjects       = 4096     // packs or pieces of a manifest in one index, which must fit one value
	maxWindow        = 8 << 20  // of a zstd frame
)

// The limits of deltas.
const (
	maxDeltas = 256      // after a base
	maxWeight = 24 << 20 // bytes of memory for decoding the deltas after a base; keeps nodes small

	maxDeltaWeight = 8 << 20 // of one delta
	maxDictionary  = 2 << 20 // earlier contents used to compress the contents of a delta
	maxSeq         = 999_999_999
	maxSum         = 1 << 50 // of sizes along a line
	maxLineBytes   = 128
)
