package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"pulley/internal/publish/controlrepo"
	"pulley/internal/publish/source"
	"pulley/internal/puppet"
	"pulley/internal/release/content"
	"pulley/internal/shellquote"
)

// ValidationTime limits the time to validate a control repository, including `puppet parser validate`.
const ValidationTime = 5 * time.Minute

// FolderOptions configure OpenFolder.
type FolderOptions struct {
	Ref        string          // publish the tree of this commit; "" for the work tree
	Branch     string          // branch of the control repository; "": that of the folder or of Ref
	Puppetfile source.Resolver // resolver of the Puppetfile
	Deadline   time.Duration   // for resolving the Puppetfile
	Overlays   []source.Overlay
	Classifier []string // command of an external node classifier; nil: none
	CacheDir   string   // "" keeps nothing
	NoValidate bool
	Puppet     string     // program that parses the manifests; "" does not parse them
	Reference  *Reference // publish a reference release with the environment files and hooks of the folder
	Adopt      bool       // of Check: also make the report for a team that brings the repository
}

// Folder is a folder ready to publish: resolved, listed and validated. The caller must close it.
type Folder struct {
	*source.Folder
	Dir       string
	Manifest  *content.Manifest
	Reference *Reference // nil: the release has its content itself
}

// InvalidError reports a folder with findings that forbid publishing.
type InvalidError struct {
	Dir    string
	Report controlrepo.Report
}

func (e *InvalidError) Error() string {
	errs := "1 error"
	if n := e.Report.Errors(); n != 1 {
		errs = fmt.Sprintf("%d errors", n)
	}
	return fmt.Sprintf("cannot publish %s: it has %s\nto publish it anyway, give --no-validate", e.Dir, errs)
}

// OpenFolder resolves the folder's Puppetfile, lists its files and validates them. It writes nothing into the folder.
func OpenFolder(ctx context.Context, dir string, o FolderOptions, r Reporter) (_ *Folder, err error) {
	r.Progress(Progress{Step: Reading, Subject: dir})
	folder, err := source.Open(ctx, dir, source.Options{
		Ref: o.Ref, Branch: o.Branch, Modules: o.Puppetfile, Deadline: o.Deadline, Overlays: o.Overlays, CacheDir: o.CacheDir,
		Classifier: o.classifier(), Unread: controlrepo.Unread,
		Progress: func(line string) { r.Progress(Progress{Subject: line}) },
	})
	if err != nil {
		return nil, err
	}
	f := &Folder{Folder: folder, Dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, folder.Close())
		}
	}()
	for _, note := range folder.Notes {
		r.Note(Note{Code: SourceNote, Detail: note})
	}
	f.noteShadows(r)
	// List first: the errors name entries that releases cannot contain and that validation cannot read.
	if f.Manifest, err = listed(folder, dir); err != nil {
		return nil, err
	}
	f.noteOddities(r)
	if o.Reference != nil {
		return f, f.refer(*o.Reference, !o.NoValidate)
	}
	for name, text := range folder.Added {
		if err := f.Manifest.Add(name, text); err != nil {
			return nil, err
		}
	}
	if o.NoValidate {
		return f, nil
	}
	r.Progress(Progress{Step: Validating, Subject: dir})
	ctx, cancel := context.WithTimeout(ctx, ValidationTime)
	defer cancel()
	report, err := validate(ctx, folder, o, true)
	if err == nil && report.Errors() > 0 {
		err = &InvalidError{dir, report}
	}
	if err != nil {
		return nil, err
	}
	f.noteWarnings(r, report, o)
	return f, f.tryVersion(ctx, r)
}

// noteWarnings counts the warnings, and shows what is broken in modules of others: validate lists it as JSON only.
func (f *Folder) noteWarnings(r Reporter, report controlrepo.Report, o FolderOptions) {
	args := []string{f.Dir}
	if tool := cmp.Or(f.Facts.Modules, o.Puppetfile); hasPuppetfile(f.Root) && tool != "" {
		args = append(args, "--puppetfile", string(tool))
	}
	if o.Ref != "" {
		args = append(args, "--git-ref", o.Ref)
	}
	for _, over := range o.Overlays {
		args = append(args, "--overlay", over.String())
	}
	own, broken := 0, 0
	for _, w := range report.Findings {
		switch {
		case !w.Vendored:
			own++
		case !slices.Contains([]controlrepo.Rule{controlrepo.UnusedSyntax, controlrepo.LFSPointer, controlrepo.CommittedPrivateKey}, w.Rule):
		default:
			if broken++; broken <= maxOddities {
				r.Note(Note{Code: BrokenModule, Detail: w.String()})
			}
		}
	}
	if broken > maxOddities {
		r.Note(Note{Code: MoreBroken, Subject: shellquote.Join(args), Count: broken - maxOddities})
	}
	if own > 0 {
		r.Note(Note{Code: Warnings, Subject: shellquote.Join(args), Count: own})
	}
}

// listed lists the files of a folder. Its error names dir, the folder of the operator, and not a copy of it.
func listed(folder *source.Folder, dir string) (*content.Manifest, error) {
	m, err := content.ReadTree(folder.Root, folder.Ignore)
	if err != nil && folder.Root != dir {
		err = &ofCopyError{strings.ReplaceAll(err.Error(), folder.Root, dir), err}
	}
	return m, err
}

// ofCopyError is an error about a copy with the name of the folder.
type ofCopyError struct {
	text string
	err  error
}

func (e *ofCopyError) Error() string { return e.text }

func (e *ofCopyError) Unwrap() error { return e.err }

// classifier returns the external node classifier, which is started for the nodes of the folder's environments.
func (o FolderOptions) classifier() source.Classifier {
	return source.Classifier{Command: o.Classifier, Folder: puppet.ExternalNodes, Nodes: controlrepo.Nodes, Check: func(answer []byte) (string, error) {
		n, err := puppet.ParseExternalNode(answer)
		return n.Environment, err
	}}
}

// noteShadows reports files of the folder that an overlay replaces, each environment file and the first of the others.
func (f *Folder) noteShadows(r Reporter) {
	for _, o := range f.Overlays {
		others := 0
		for _, name := range o.Shadows {
			if controlrepo.IsEnvironment(name) {
				r.Note(Note{Code: ShadowedEnvironment, Subject: name, Detail: o.Source})
			} else if others++; others <= maxOddities {
				r.Note(Note{Code: Shadowed, Subject: name, Detail: o.Source})
			}
		}
		if more := others - maxOddities; more > 0 {
			r.Note(Note{Code: MoreShadowed, Subject: strconv.Itoa(more), Detail: o.Source})
		}
	}
}

// maxOddities is the number of odd entries to show one by one.
const maxOddities = 20

// noteOddities reports links and names that are published, and that may not be read as they are meant.
func (f *Folder) noteOddities(r Reporter) {
	all := f.Manifest.Oddities()
	for _, o := range all[:min(len(all), maxOddities)] {
		r.Note(Note{Code: OddEntry, Oddity: o})
	}
	if more := len(all) - maxOddities; more > 0 {
		r.Note(Note{Code: MoreOddEntries, Detail: strconv.Itoa(more)})
	}
}

// tryVersion runs the folder's config_version as a node does, in a copy. A node cannot explain later that it shows
// another version.
func (f *Folder) tryVersion(ctx context.Context, r Reporter) error {
	if set, err := puppet.HasConfigVersion(f.Root); err == nil && !set {
		return nil
	}
	dir, err := f.Copy(ctx, "production")
	if err != nil {
		return err
	}
	v, err := puppet.ConfigVersion(ctx, dir, dir)
	switch odd := v.Odd(); {
	case ctx.Err() != nil:
	case err != nil:
		r.Note(Note{Code: NoVersion, Cause: err})
	case odd != "":
		r.Note(Note{Code: OddVersion, Subject: v.Text, Detail: odd})
	}
	return ctx.Err()
}

// validate checks an open folder, with the modules of its Puppetfile as vendored ones. complete: the folder has all of them. found are findings of the caller.
func validate(ctx context.Context, folder *source.Folder, o FolderOptions, complete bool, found ...controlrepo.Finding) (controlrepo.Report, error) {
	checks := controlrepo.Options{Ignore: folder.Ignore, Committed: folder.Committed, Found: found, Adopt: o.Adopt, Vendored: folder.Vendored, Ignored: folder.Ignored, Complete: complete, Resolver: source.HasResolver()}
	if o.Puppet != "" {
		checks.Puppet = controlrepo.PuppetValidator(o.Puppet)
	}
	for _, over := range folder.Overlays {
		checks.Found = append(checks.Found, controlrepo.Replaced(over.Source, over.Shadows)...)
	}
	return controlrepo.Validate(ctx, folder.Root, checks)
}

// Check reports everything for which OpenFolder would refuse a folder, and all warnings. The error reports a failed read. note gets what
// OpenFolder notes of the Puppetfile, such as modules that it replaces.
func Check(ctx context.Context, dir string, o FolderOptions, note func(Note)) (controlrepo.Report, error) {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return controlrepo.Report{}, fmt.Errorf("cannot validate %s: %w", dir, cmp.Or(err, errors.New("it is not a folder")))
	}
	ctx, cancel := context.WithTimeout(ctx, ValidationTime)
	defer cancel()
	folder, refusal := source.Open(ctx, dir, source.Options{
		Ref: o.Ref, Branch: o.Branch, Modules: o.Puppetfile, Overlays: o.Overlays, Deadline: o.Deadline, CacheDir: o.CacheDir, Unread: controlrepo.Unread,
	})
	if refusal != nil && (ctx.Err() != nil || o.Ref != "" || len(o.Overlays) > 0) {
		return controlrepo.Report{}, refusal
	}
	if refusal != nil { // the findings in its files are still of use
		folder = &source.Folder{Root: dir}
	}
	notes := folder.Notes
	if o.Puppetfile == source.Unresolved {
		notes = []string{folder.Replaced()}
	}
	for _, text := range notes {
		if text != "" {
			note(Note{Code: SourceNote, Detail: text})
		}
	}
	manifest, unpublishable := listed(folder, dir)
	found := controlrepo.Refusals(errors.Join(refusal, unpublishable))
	if unpublishable == nil {
		for _, o := range manifest.Oddities() {
			found = append(found, controlrepo.Odd(ShownName(o.Path), oddity(o)))
		}
	}
	report, err := validate(ctx, folder, o, refusal == nil && (o.Puppetfile != source.Unresolved || !hasPuppetfile(folder.Root)), found...)
	return report, errors.Join(err, folder.Close())
}

func hasPuppetfile(root string) bool {
	_, err := os.Stat(filepath.Join(root, "Puppetfile"))
	return err == nil
}
