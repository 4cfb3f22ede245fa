// Package publish owns releases and the programs of the agent, from a folder to etcd and back. It builds, publishes,
// compares, verifies, exports, mirrors and prunes them. It must never decide which release an environment wants.
package publish

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/release/content"
)

// Step is the current step of a long operation.
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

// Progress is the progress of a long operation.
type Progress struct {
	Step    Step
	Subject string // a folder or a version
	Values  int    // objects, deltas or files up to now
	Bytes   int64  // read or written up to now
}

// NoteCode is the code of a note that does not stop the operation.
type NoteCode string

// The notes.
const (
	SourceNote          NoteCode = "source_note"     // Detail: about the folder, its git repository or its Puppetfile
	NewLine             NoteCode = "new_line"        // a new line begins: Subject, or another release, is unreadable
	MarkNotRemoved      NoteCode = "mark_not_closed" // the key that blocks prunes could not be removed
	CacheNotKept        NoteCode = "cache_not_trimmed"
	Warnings            NoteCode = "warnings"             // Count warnings; Subject: the arguments with which validate lists them
	BrokenModule        NoteCode = "broken_module"        // Detail: a finding about a module of the Puppetfile
	MoreBroken          NoteCode = "more_broken_modules"  // Count more of them; Subject as of Warnings
	NoVersion           NoteCode = "no_config_version"    // the release's config_version does not work on a node
	OddVersion          NoteCode = "odd_config_version"   // its config_version prints more than a version: Detail; runs show Subject
	OddEntry            NoteCode = "odd_entry"            // Oddity
	MoreOddEntries      NoteCode = "more_odd_entries"     // Detail: how many
	Shadowed            NoteCode = "shadowed"             // Subject: a file that the overlay Detail replaces
	ShadowedEnvironment NoteCode = "shadowed_environment" // Subject: an environment file that the overlay Detail replaces
	MovedModules        NoteCode = "moved_modules"        // Detail: modules of the Puppetfile whose tag or branch leads to another commit than in release Subject
	MoreShadowed        NoteCode = "more_shadowed"        // Subject: how many
)

// Note is a code with its details, for the operator.
type Note struct {
	Code    NoteCode
	Subject string // version; may be ""
	Cause   error
	Detail  string
	Oddity  content.Oddity
	Count   int
}

// String returns the note as a sentence.
func (n Note) String() string {
	switch {
	case n.Code == NewLine && n.Subject != "":
		return fmt.Sprintf("a new line begins: cannot build upon %s: %v", n.Subject, n.Cause)
	case n.Code == NewLine:
		return fmt.Sprintf("a new line begins: %v", n.Cause)
	case n.Code == OddEntry:
		return fmt.Sprintf("%s: %s", ShownName(n.Oddity.Path), oddity(n.Oddity))
	case n.Code == MoreOddEntries:
		return fmt.Sprintf("%s more links and names like these", n.Detail)
	case n.Code == Warnings && n.Count == 1:
		return fmt.Sprintf("validation found 1 warning: run `pulley validate %s` to list it", n.Subject)
	case n.Code == Warnings:
		return fmt.Sprintf("validation found %d warnings: run `pulley validate %s` to list them", n.Count, n.Subject)
	case n.Code == MoreBroken:
		return fmt.Sprintf("%d more findings like these about modules: run `pulley validate %s -o json` to list them", n.Count, n.Subject)
	case n.Code == Shadowed:
		return fmt.Sprintf("overlay %s replaces %s", n.Detail, ShownName(n.Subject))
	case n.Code == ShadowedEnvironment:
		return fmt.Sprintf("overlay %s replaces %s: roles, node settings and trusted extensions are those of the overlay", n.Detail, ShownName(n.Subject))
	case n.Code == MoreShadowed:
		return fmt.Sprintf("overlay %s replaces %s more files", n.Detail, n.Subject)
	case n.Code == MovedModules:
		return fmt.Sprintf("tags or branches of modules moved since %s: %s", n.Subject, n.Detail)
	case n.Code == NoVersion:
		return fmt.Sprintf("config_version fails on this machine; runs on nodes where it fails report the version and the commit of the release: %v", n.Cause)
	case n.Code == OddVersion:
		return fmt.Sprintf("config_version prints %s: runs show one line of it, %q", n.Detail, n.Subject)
	case n.Cause != nil:
		return n.Cause.Error()
	}
	return n.Detail
}

// oddity says why an entry may not be read as its author meant.
func oddity(o content.Oddity) string {
	switch o.Code {
	case content.LinkOutside:
		return fmt.Sprintf("the link leads out of the release, to %s: each node reads its own file there", ShownName(o.Other))
	case content.LinkDangling:
		return fmt.Sprintf("the link leads to %s, which the release does not contain", ShownName(o.Other))
	case content.LinkLoop:
		return fmt.Sprintf("the link leads to itself (%s)", ShownName(o.Other))
	case content.LinkAround:
		return fmt.Sprintf("the link leads to a folder that contains it, or that leads back to it (%s): a program that follows links never ends", ShownName(o.Other))
	case content.NameControl:
		return "the name has a line break or another control character, or white space at an end: it is hard to see and to write"
	case content.NameNotUTF8:
		return "the name is not UTF-8: Puppet code cannot name the file"
	case content.NameAmbiguous:
		return fmt.Sprintf("some file systems cannot tell it from %s: a clone there lacks one of both", ShownName(o.Other))
	}
	return string(o.Code)
}

// ShownName returns a name of a tree for people, quoted if it is not plain text.
func ShownName(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}

// Reporter receives the progress and notes of a long operation. All its functions must be set.
type Reporter struct {
	Progress func(Progress)
	Note     func(Note)
	Pause    func() // called before a program that may prompt on the terminal, like ssh-keygen
}

// fatal reports whether the connection or the caller caused an error, and not the content.
func fatal(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || errors.Is(err, model.ErrUnreachable))
}

// damaged adds the remedy to an error about content in etcd.
func damaged(ctx context.Context, err error) error {
	if fatal(ctx, err) {
		return err
	}
	return fmt.Errorf("%w\nrun `pulley releases verify` to list damaged keys", err)
}

// maxTries limits the attempts of an operation that loses races against other operators.
const maxTries = 5

// retry repeats an operation that lost a race against another operator. Each attempt reads again.
func retry(do func() error) error {
	for range maxTries - 1 {
		if err := do(); !errors.Is(err, etcd.ErrConflict) {
			return err
		}
	}
	return do()
}
