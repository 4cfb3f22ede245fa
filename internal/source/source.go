package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Options say how a folder is read.
type Options struct {
	Ref      string            // publish this commit's tree; "": the folder as it lies there
	Modules  Resolver          // what resolves a Puppetfile; "" is Auto
	Deadline time.Duration     // of resolving a Puppetfile; 0 is DefaultDeadline
	CacheDir string            // where g10k keeps what it downloads, and copies are made; "": nothing is kept
	Progress func(line string) // may be nil
}

// DefaultDeadline is how long resolving a Puppetfile may take.
const DefaultDeadline = 10 * time.Minute

// Facts are what is known of where a tree comes from.
type Facts struct {
	Commit       string   // whose tree it is, or that the work tree is on; "" outside of git
	Ref          string   // Options.Ref
	CommitAuthor string   // name and address of the commit's author
	Subject      string   // first line of the commit's message
	Dirty        bool     // what is published differs from what the commit holds, modules of a Puppetfile aside
	Modules      Resolver // what resolved the Puppetfile; "" when nothing did
}

// Folder is what a release is read from.
type Folder struct {
	Root  string // for content.ReadTree, with Ignore
	Facts Facts
	Notes []string // what its operator should know, each a sentence

	rules rules
	work  string // what Close removes; "" when nothing was made
}

// Open makes the folder dir ready. The caller closes it.
func Open(ctx context.Context, dir string, o Options) (*Folder, error) {
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Deadline == 0 {
		o.Deadline = DefaultDeadline
	}
	f := &Folder{Root: dir}
	if err := f.open(ctx, dir, o); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *Folder) open(ctx context.Context, dir string, o Options) error {
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is no folder", dir)
	}
	if err != nil {
		return fmt.Errorf("cannot read what to publish: %w", err)
	}
	repo, found := findRepository(ctx, dir)
	switch {
	case o.Ref != "" && found != nil:
		return fmt.Errorf("cannot publish ref %q of %s: %w", o.Ref, dir, found)
	case o.Ref != "":
		return f.openRef(ctx, repo, o)
	case found == nil && repo.bare:
		return fmt.Errorf("cannot publish %s: it is a git repository without a work tree\nsay what of it: --git-ref main", dir)
	}
	if f.rules, err = readRules(dir); err != nil {
		return err
	}
	changes, err := f.describe(ctx, repo, found)
	if err != nil {
		return err
	}
	return f.resolveCopy(ctx, o, changes)
}

// openRef checks a commit out into a folder of its own.
func (f *Folder) openRef(ctx context.Context, repo *repository, o Options) error {
	o.Progress("reading " + o.Ref)
	commit, err := repo.commit(ctx, o.Ref)
	if err != nil {
		return fmt.Errorf("cannot publish ref %q of %s: %w", o.Ref, repo.dir, err)
	}
	f.Facts = commit
	f.Facts.Ref = o.Ref
	if err := f.makeWork(o.CacheDir); err != nil {
		return err
	}
	links, err := repo.checkOut(ctx, commit.Commit, f.work)
	if err != nil {
		return fmt.Errorf("cannot check out ref %q of %s: %w", o.Ref, repo.dir, err)
	}
	f.Root = filepath.Join(f.work, treeFolder, filepath.FromSlash(repo.prefix))
	if f.rules, err = readRules(f.Root); err != nil {
		return err
	}
	for _, link := range links {
		if f.Why(link, true) == "" {
			return fmt.Errorf("cannot publish ref %q of %s: %s is a submodule, whose files are in another repository\n"+
				"check it out and publish the work tree: git submodule update --init; or leave it out by a line in %s",
				o.Ref, repo.dir, link, IgnoreFile)
		}
	}
	return f.resolve(ctx, o)
}

// describe records what git knows of a work tree, and returns what in it is not as in the commit.
func (f *Folder) describe(ctx context.Context, repo *repository, found error) (changes, error) {
	switch {
	case errors.Is(found, errNoRepository):
		return changes{}, nil
	case ctx.Err() != nil:
		return changes{}, ctx.Err()
	case found != nil:
		f.Notes = append(f.Notes, "the commit is not recorded: "+firstLine(cause(found)))
		return changes{}, nil
	}
	commit, err := repo.commit(ctx, "HEAD")
	if err != nil {
		f.Notes = append(f.Notes, "the commit is not recorded: there is none yet")
		return changes{}, nil
	}
	changes, err := repo.changes(ctx)
	if err != nil {
		return changes, fmt.Errorf("cannot compare %s with its commit: %w", repo.dir, err)
	}
	for _, link := range changes.submodules {
		if f.Why(link, true) == "" && isEmpty(filepath.Join(repo.dir, link)) {
			return changes, fmt.Errorf("cannot publish %s: its submodule %s is not checked out\nrun: git -C %s submodule update --init; or leave it out by a line in %s",
				repo.dir, link, repo.dir, IgnoreFile)
		}
	}
	f.Facts = commit
	return changes, nil
}

// treeFolder and asideFolder are below Folder.work: what is published, and what was moved out of a resolver's way.
const (
	treeFolder  = "tree"
	asideFolder = "aside"
)

// workPrefix begins the names of folders that are made for one Folder; one that is older than workAge was left by a process
// that was killed.
const (
	workPrefix = "publish-"
	workAge    = 24 * time.Hour
)

// makeWork makes a private folder, beside g10k's cache where that can be written: g10k makes hard links from there, which
// don't reach other file systems.
func (f *Folder) makeWork(cacheDir string) error {
	if f.work != "" {
		return nil
	}
	parent := ""
	if cacheDir != "" && os.MkdirAll(filepath.Join(cacheDir, "work"), 0o700) == nil {
		parent = filepath.Join(cacheDir, "work")
		sweep(parent)
	}
	work, err := os.MkdirTemp(parent, workPrefix)
	if err != nil && parent != "" {
		work, err = os.MkdirTemp("", workPrefix)
	}
	if err != nil {
		return fmt.Errorf("cannot make a folder to publish from: %w", err)
	}
	f.work = work
	return os.Mkdir(filepath.Join(work, treeFolder), 0o755)
}

// sweep removes what killed processes left; what can't be removed does no harm.
func sweep(parent string) {
	left, err := filepath.Glob(filepath.Join(parent, workPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range left {
		if info, err := os.Lstat(dir); err == nil && time.Since(info.ModTime()) > workAge {
			os.RemoveAll(dir)
		}
	}
}

// Close removes what Open made.
func (f *Folder) Close() error {
	if f.work == "" {
		return nil
	}
	if err := os.RemoveAll(f.work); err != nil {
		return fmt.Errorf("cannot remove the folder that was published from: %w", err)
	}
	return nil
}

func isEmpty(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err != nil || len(entries) == 0
}
