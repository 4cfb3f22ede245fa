// Package publish owns releases, and the programs of the agent, from a folder to etcd and back: building and publishing,
// comparing, verifying, exporting, mirroring and pruning. It must never decide which release an environment wants.
package publish

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"pulley/agent"
	"pulley/internal/store"
)

// Step is what a long operation is doing.
type Step string

// The steps.
const (
	Reading    Step = "reading"
	Validating Step = "validating"
	Comparing  Step = "comparing with"
	Packing    Step = "packing"
	Publishing Step = "publishing"
	Verifying  Step = "verifying"
	Mirroring  Step = "mirroring"
)

// Progress is how far a long operation is.
type Progress struct {
	Step    Step
	Subject string // a folder or a version
	Values  int    // objects, deltas or files so far
	Bytes   int64  // that were read or written so far
}

// NoteCode is something that the operator should know although the operation goes on.
type NoteCode string

// The notes.
const (
	SourceNote     NoteCode = "source_note"     // Detail: about the folder, its git repository or its Puppetfile
	NewLine        NoteCode = "new_line"        // a new line begins: Subject, or another release, cannot be read
	MarkNotRemoved NoteCode = "mark_not_closed" // the key that keeps prunes away could not be removed
	CacheNotKept   NoteCode = "cache_not_trimmed"
)

// Note is one of these with its details.
type Note struct {
	Code    NoteCode
	Subject string // version; may be ""
	Cause   error
	Detail  string
}

// String is the note as a sentence.
func (n Note) String() string {
	switch {
	case n.Code == NewLine && n.Subject != "":
		return fmt.Sprintf("a new line begins: cannot build upon %s: %v", n.Subject, n.Cause)
	case n.Code == NewLine:
		return fmt.Sprintf("a new line begins: %v", n.Cause)
	case n.Cause != nil:
		return n.Cause.Error()
	}
	return n.Detail
}

// Reporter hears of a long operation. All of its functions are set.
type Reporter struct {
	Progress func(Progress)
	Note     func(Note)
	Pause    func() // before a program that may ask on the terminal, like ssh-keygen
}

// fatal reports whether an error is about the connection or the caller, and not about the content that was read.
func fatal(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || errors.Is(err, agent.ErrUnreachable))
}

// damaged adds the remedy to an error about content in etcd.
func damaged(ctx context.Context, err error) error {
	if fatal(ctx, err) {
		return err
	}
	return fmt.Errorf("%w\nrun `pulley releases verify` to list damaged keys", err)
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// maxTries bounds the attempts of an operation that other operators overtake.
const maxTries = 5

// retry repeats an operation that lost a race against another operator, from a fresh read.
func retry(do func() error) error {
	for range maxTries - 1 {
		if err := do(); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return do()
}
