package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Options configure Open.
type Options struct {
	Ref      string        // publish the tree of this commit; "": the folder as it is on disk
	Branch   string        // branch of the control repository for a Puppetfile; "": that of the folder or of Ref
	Modules  Resolver      // resolver of the Puppetfile; "" is Auto
	Deadline time.Duration // for resolving a Puppetfile; 0 is DefaultDeadline
	Overlays []Overlay     // in this order
	// Classifier is an external node classifier; without a command, there is none.
	Classifier Classifier
	CacheDir   string            // for downloads of g10k and temporary copies; "": keep nothing
	Progress   func(line string) // may be nil
	// Unread reports whether nodes do without a folder of the tree in root. A submodule there need not be checked out. Nil:
	// they need all folders.
	Unread func(root, folder string) bool
}

// DefaultDeadline limits the time to resolve a Puppetfile.
const DefaultDeadline = 10 * time.Minute

// Facts describe the origin of a tree.
type Facts struct {
	Commit       string // commit of the tree or of the work tree; "" outside of git
	First        string // first commit of its history; "" if unknown: of a shallow clone, and for Unresolved
	Ref          string // Options.Ref
	CommitAuthor string // name and address
	Subject      string // first line of the commit message
	CommittedAt  time.Time
	Dirty        bool     // the published tree differs from the commit, apart from modules of a Puppetfile
	Modules      Resolver // resolver that was used; "" for none
}

// Folder is the prepared folder of a release.
type Folder struct {
	Root  string            // for content.ReadTree, with Ignore
	Added map[string][]byte // files to publish that are not in Root: for content.Manifest.Add
	Facts Facts
	Notes []string // sentences for the operator

	Overlays []Overlaid
	Resolved []Module // modules that the Puppetfile was resolved to

	rules      rules
	puppetfile *puppetfile     // nil: there is none, or it is ignored
	branch     string          // of the control repository; "" if unknown
	differs    map[string]bool // paths that git does not have as they are
	ignored    []string        // paths that git ignores
	made       []string        // modules, by path, that a tool installed
	replaced   []string        // those in whose place the folder has other files
	cacheDir   string
	work       string // removed by Close; "" if there is none
}

// Open prepares the folder dir. The caller must close the result.
func Open(ctx context.Context, dir string, o Options) (*Folder, error) {
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Deadline == 0 {
		o.Deadline = DefaultDeadline
	}
	f := &Folder{Root: dir, cacheDir: o.CacheDir}
	err := f.open(ctx, dir, o)
	if err == nil {
		err = f.overlay(ctx, o)
	}
	if err == nil {
		err = f.classify(ctx, o)
	}
	if err == nil {
		err = f.describeDeploy()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *Folder) open(ctx context.Context, dir string, o Options) error {
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a folder", dir)
	}
	if err != nil {
		return fmt.Errorf("cannot read what to publish: %w", err)
	}
	repo, found := findRepository(ctx, dir)
	f.branch = repo.branch(ctx, o)
	switch {
	case errors.As(found, new(*pipeError)):
		return fmt.Errorf("cannot read the git repository of %s: %w", dir, found)
	case o.Ref != "" && found != nil:
		return fmt.Errorf("cannot publish ref %q of %s: %w", o.Ref, dir, found)
	case o.Ref != "":
		return f.openRef(ctx, repo, o)
	case found == nil && repo.bare:
		return fmt.Errorf("cannot publish %s: it is a git repository without a work tree\ngive a branch, a tag or a commit, as in --git-ref main", dir)
	}
	if f.rules, err = readRules(dir); err != nil {
		return err
	}
	changes, err := f.describe(ctx, repo, found, o)
	if err != nil {
		return err
	}
	return f.resolveCopy(ctx, o, changes)
}

// openRef checks out a commit to a temporary folder.
func (f *Folder) openRef(ctx context.Context, repo *repository, o Options) error {
	o.Progress("reading " + o.Ref)
	commit, err := repo.commit(ctx, o.Ref)
	if err != nil {
		return fmt.Errorf("cannot publish ref %q of %s: %w", o.Ref, repo.dir, err)
	}
	f.Facts = commit
	f.Facts.Ref = o.Ref
	if f.Facts.First, err = repo.first(ctx, o, commit.Commit); err != nil {
		return fmt.Errorf("cannot read the history of %s: %w", repo.dir, err)
	}
	if err := f.makeWork(); err != nil {
		return err
	}
	links, err := repo.checkOut(ctx, commit.Commit, f.work)
	if err == nil {
		err = repo.link(ctx, f)
	}
	if err != nil {
		return fmt.Errorf("cannot check out ref %q of %s: %w", o.Ref, repo.dir, err)
	}
	f.Root = filepath.Join(f.work, treeFolder, filepath.FromSlash(repo.prefix))
	if f.rules, err = readRules(f.Root); err != nil {
		return err
	}
	for _, link := range links {
		if f.why(link, true) == "" && !f.doWithout(o, link) {
			return fmt.Errorf("cannot publish ref %q of %s: %s is a submodule, whose files are in another repository\n"+
				"check it out and publish the work tree: git submodule update --init --recursive; or leave it out by a line in %s",
				o.Ref, repo.dir, link, ignoreFile)
		}
	}
	return f.resolve(ctx, o)
}

// describe records the facts that git has about a work tree. It returns the differences between the work tree and the
// commit.
func (f *Folder) describe(ctx context.Context, repo *repository, found error, o Options) (changes, error) {
	switch {
	case errors.Is(found, errNoRepository):
		return changes{}, nil
	case ctx.Err() != nil:
		return changes{}, ctx.Err()
	case found != nil && strings.Contains(cause(found), "dubious ownership"):
		_, dir, _ := strings.Cut(cause(found), "safe.directory ") // of the repository, which git names
		return changes{}, fmt.Errorf("cannot read the commit of %s: git refuses a repository of another user\nrun: git config --global --add safe.directory %s", f.Root, firstLine(cmp.Or(dir, f.Root)))
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
	if len(changes.tracked) == 0 { // a repository around it that ignores it, for example
		f.branch = o.Branch
		f.Notes = append(f.Notes, "the commit is not recorded: git tracks no file of this folder")
		changes.changed, changes.ignored = nil, nil
		return changes, nil
	}
	for i := 0; i < len(changes.submodules); i++ {
		link := changes.submodules[i]
		dir := filepath.Join(repo.dir, link)
		if f.why(link, true) != "" {
			continue
		}
		if !isEmpty(dir) {
			if err := (&repository{dir: dir}).index(ctx, &changes, link); err != nil {
				return changes, fmt.Errorf("cannot read the submodule %s of %s: %w", link, repo.dir, err)
			}
		} else if !f.doWithout(o, link) {
			return changes, fmt.Errorf("cannot publish %s: its submodule %s is not checked out\nrun: git -C %s submodule update --init --recursive; or leave it out by a line in %s",
				repo.dir, link, repo.dir, ignoreFile)
		}
	}
	f.Facts, f.differs, f.ignored = commit, changes.differences(), changes.ignored
	if f.Facts.First, err = repo.first(ctx, o, commit.Commit); err != nil {
		err = fmt.Errorf("cannot read the history of %s: %w", repo.dir, err)
	}
	return changes, err
}

// doWithout reports whether nodes need no files of a submodule that is not checked out, and notes it.
func (f *Folder) doWithout(o Options, link string) bool {
	if o.Unread == nil || !o.Unread(f.Root, link) {
		return false
	}
	f.Notes = append(f.Notes, fmt.Sprintf("the submodule %s is published without its files: it is not checked out, and Puppet reads none of them", link))
	return true
}

// The folders below Folder.work. treeFolder is published; asideFolder holds files moved out of a tool's way; copyFolder
// holds the results of Copy.
const (
	treeFolder  = "tree"
	asideFolder = "aside"
	copyFolder  = "copy"
)

// workPrefix is the prefix of temporary folders. A folder older than workAge belongs to a killed process.
const (
	workPrefix = "publish-"
	workAge    = 24 * time.Hour
)

// makeWork creates a private folder, next to g10k's cache if possible: g10k makes hard links from its cache, which must
// be on the same file system.
func (f *Folder) makeWork() error {
	if f.work != "" {
		return nil
	}
	parent := ""
	if f.cacheDir != "" && os.MkdirAll(filepath.Join(f.cacheDir, "work"), 0o700) == nil {
		parent = filepath.Join(f.cacheDir, "work")
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

// Copy makes a copy of all that is published, in a folder with this name. Close removes it.
func (f *Folder) Copy(ctx context.Context, name string) (dir string, err error) {
	if err := f.makeWork(); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot copy %s: %w", f.Root, err)
		}
	}()
	dir = filepath.Join(f.work, copyFolder, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := copyTree(ctx, f.Root, dir, f.Ignore); err != nil {
		return "", err
	}
	for added, text := range f.Added {
		if err := os.WriteFile(filepath.Join(dir, added), text, 0o644); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// sweep removes folders of killed processes. It ignores errors.
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

// Close removes the temporary files of Open.
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
