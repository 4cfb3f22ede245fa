package source

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"pulley/internal/clip"
	"pulley/internal/shellquote"
)

// gitDeadline limits the time of one git query.
const gitDeadline = 2 * time.Minute

// maxFactBytes is the number of bytes of a commit's subject or author to record.
const maxFactBytes = 200

// errNoRepository is wrapped if a folder is in no repository, or git is not installed.
var errNoRepository = errors.New("it is in no git repository")

// repository is the git repository of a folder.
type repository struct {
	dir    string // the folder
	gitDir string // absolute
	prefix string // path of the folder in the work tree, with slashes; "" for the root
	bare   bool   // it has no work tree, or the folder is outside of it
}

func findRepository(ctx context.Context, dir string) (*repository, error) {
	if err := noPipes(dir); err != nil {
		return nil, err
	}
	r := &repository{dir: dir}
	out, err := r.ask(ctx, "rev-parse", "--is-inside-work-tree")
	var said *commandError
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, fmt.Errorf("%w that can be read: git is not installed", errNoRepository)
	case errors.As(err, &said) && strings.Contains(said.said, "not a git repository"):
		return nil, errNoRepository
	case err != nil:
		return nil, err
	}
	r.bare = out != "true"
	if r.gitDir, err = r.ask(ctx, "rev-parse", "--absolute-git-dir"); err != nil {
		return nil, err
	}
	if r.bare {
		if !sameFile(dir, r.gitDir) {
			return nil, fmt.Errorf("%w: it is a folder inside a repository's own files", errNoRepository)
		}
		return r, nil
	}
	prefix, err := r.ask(ctx, "rev-parse", "--show-prefix")
	r.prefix = strings.TrimSuffix(prefix, "/")
	return r, err
}

// pipeError names a pipe in the place of a file that git reads: git would wait for it.
type pipeError struct{ path string }

func (e *pipeError) Error() string {
	return e.path + " is a named pipe, which git would wait for\nremove it: rm " + shellquote.Join([]string{e.path})
}

// noPipes returns a *pipeError for a pipe that git would read in a folder, in those above it up to the root of the repository, or in
// the files of the repository.
func noPipes(dir string) error {
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return err
	}
	if err := pipeIn(dir, isGitDir(dir)); err != nil {
		return err
	}
	for up := dir; ; up = filepath.Dir(up) {
		for _, name := range []string{".git", ".gitignore", ".gitattributes"} {
			if err := pipeIn(filepath.Join(up, name), true); err != nil {
				return err
			}
		}
		link, err := readIn(up, ".git", 4<<10) // of a worktree or a submodule; fails for a folder
		if target, ok := strings.CutPrefix(strings.TrimSpace(link), "gitdir: "); ok && err == nil {
			if !filepath.IsAbs(target) {
				target = filepath.Join(up, target)
			}
			target, _, _ = strings.Cut(target, "/worktrees/") // the repository that it shares
			return pipeIn(target, true)
		}
		if isGitDir(filepath.Join(up, ".git")) || up == filepath.Dir(up) {
			return nil
		}
	}
}

func isGitDir(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, "objects"))
	_, noHead := os.Lstat(filepath.Join(dir, "HEAD"))
	return err == nil && info.IsDir() && noHead == nil
}

// pipeIn finds a pipe in a folder, or at a path: any if the folder is git's own, else those with a name that git reads.
func pipeIn(at string, own bool) error {
	return filepath.WalkDir(at, func(name string, d fs.DirEntry, err error) error {
		base := filepath.Base(name)
		switch {
		case err != nil: // git reports it
		case d.IsDir() && own && base == "objects":
			return fs.SkipDir
		case d.IsDir() && !own && base == ".git":
			return cmp.Or(pipeIn(name, true), fs.SkipDir)
		case own || base == ".git" || base == ".gitignore" || base == ".gitattributes" || base == ".gitmodules":
			if info, err := os.Stat(name); err == nil && info.Mode()&fs.ModeNamedPipe != 0 {
				return &pipeError{name}
			}
		}
		return nil
	})
}

func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// git returns a git command in the folder. The command takes no optional locks, which could block git commands of the
// operator.
func (r *repository) git(args ...string) command {
	return command{dir: r.dir, env: []string{"LC_ALL=C"}, args: append([]string{"git", "--no-optional-locks"}, args...)}
}

// ask runs a git command whose output is one line.
func (r *repository) ask(ctx context.Context, args ...string) (string, error) {
	out, err := r.git(args...).run(ctx, gitDeadline)
	return strings.TrimSuffix(string(out), "\n"), err
}

// commit finds a commit by any name that git accepts.
func (r *repository) commit(ctx context.Context, ref string) (Facts, error) {
	if ref == "" || strings.HasPrefix(ref, "-") || strings.ContainsFunc(ref, unicode.IsControl) {
		return Facts{}, errors.New("that is not the name of a commit\ngive a branch, a tag, a commit, or something like HEAD~3")
	}
	hash, err := r.ask(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", ref+"^{commit}")
	if err != nil || !isObjectName(hash) {
		var said *commandError
		if errors.As(err, &said) && said.said != "" {
			return Facts{}, err
		}
		return Facts{}, fmt.Errorf("git knows no such commit\n`git -C %s branch -a` and `git -C %s tag` list those with a name; `git fetch` gets what is missing", r.dir, r.dir)
	}
	out, err := r.ask(ctx, "-c", "i18n.logOutputEncoding=UTF-8", "show", "-s", "--no-show-signature", "--no-color", "--format=%an <%ae>%x00%ct%x00%s", hash, "--")
	if err != nil {
		return Facts{}, err
	}
	author, rest, _ := strings.Cut(out, "\x00")
	at, subject, _ := strings.Cut(rest, "\x00")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return Facts{}, fmt.Errorf("git shows no time of the commit: %w", err)
	}
	return Facts{
		Commit: hash, CommitAuthor: clip.Text(author, maxFactBytes), Subject: clip.Text(subject, maxFactBytes), CommittedAt: time.Unix(seconds, 0).UTC(),
	}, nil
}

// first returns the first commit of a history. Clones and forks of a repository have it, and no other repository. If several histories
// were merged, it is that with the lowest hash.
func (r *repository) first(ctx context.Context, o Options, commit string) (string, error) {
	if o.Modules == Unresolved {
		return "", nil
	}
	if shallow, err := r.ask(ctx, "rev-parse", "--is-shallow-repository"); err != nil || shallow == "true" {
		return "", err
	}
	all, err := r.ask(ctx, "rev-list", "--max-parents=0", commit)
	if err != nil {
		return "", err
	}
	return slices.Min(strings.Fields(all)), nil
}

// isObjectName reports whether s is a commit hash: SHA-1 or SHA-256.
func isObjectName(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

// changes lists the differences between a folder of the work tree and its commit, by path from the folder. A path that
// ends with a slash is a folder that git does not read.
type changes struct {
	changed    []string // compared with the commit, or untracked
	ignored    []string // untracked and listed in .gitignore
	tracked    []string // by git, also those of submodules
	submodules []string // tracked submodules
}

// changes runs git, which reads the work tree and writes nothing. Files that git is configured to skip (sparse
// checkouts, assume-unchanged) count as changed, because their state is unknown.
func (r *repository) changes(ctx context.Context) (changes, error) {
	var c changes
	out, err := r.git("status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all", "--ignored=matching",
		"--ignore-submodules=none", "--", ".").run(ctx, gitDeadline)
	if err != nil {
		return c, err
	}
	for _, line := range records(out) {
		if len(line) < 4 {
			continue
		}
		name, ok := r.below(line[3:])
		switch {
		case !ok:
		case line[:2] == "!!":
			c.ignored = append(c.ignored, name)
		default:
			c.changed = append(c.changed, name)
		}
	}
	return c, r.index(ctx, &c, "")
}

// index adds what git tracks in a work tree that lies at a path of the folder.
func (r *repository) index(ctx context.Context, c *changes, at string) error {
	out, err := r.git("ls-files", "-z", "-v", "--stage", "--", ".").run(ctx, gitDeadline)
	for _, line := range records(out) { // "H 100644 <hash> 0\t<path>", path relative to the work tree
		about, name, _ := strings.Cut(line, "\t")
		fields := strings.Fields(about)
		if len(fields) != 4 {
			continue
		}
		name = path.Join(at, name)
		c.tracked = append(c.tracked, name)
		if fields[1] == gitlink {
			c.submodules = append(c.submodules, name)
		}
		if unseen := fields[0]; unseen == "S" || strings.ToLower(unseen) == unseen {
			c.changed = append(c.changed, name)
		}
	}
	return err
}

// below converts a path of the repository to a path of the folder.
func (r *repository) below(name string) (string, bool) {
	if r.prefix == "" {
		return name, true
	}
	return strings.CutPrefix(name, r.prefix+"/")
}

func records(out []byte) []string {
	out = bytes.TrimSuffix(out, []byte{0})
	if len(out) == 0 {
		return nil
	}
	return strings.Split(string(out), "\x00")
}

// gitlink is the mode of a submodule.
const gitlink = "160000"

// checkOut writes the folder's part of a commit below work, like a checkout, with a separate index. It returns the
// submodules, by path from the folder; it cannot check them out.
func (r *repository) checkOut(ctx context.Context, commit, work string) (submodules []string, err error) {
	tree := filepath.Join(work, treeFolder)
	git := func(args ...string) command {
		c := r.git(args...)
		c.dir = tree
		c.env = append(c.env, "GIT_DIR="+r.gitDir, "GIT_WORK_TREE="+tree, "GIT_INDEX_FILE="+filepath.Join(work, "index"))
		return c
	}
	// Read the complete commit, not only the folder: attributes above the folder apply to it.
	if _, err := git("-c", "core.sparseCheckout=false", "read-tree", commit).run(ctx, gitDeadline); err != nil {
		return nil, err
	}
	out, err := git("ls-files", "-z", "--stage").run(ctx, gitDeadline)
	if err != nil {
		return nil, err
	}
	var wanted strings.Builder
	var names []string
	for _, line := range records(out) { // "100644 <hash> 0\t<path>"
		about, name, _ := strings.Cut(line, "\t")
		inFolder, ok := r.below(name)
		switch {
		case !ok:
		case strings.HasPrefix(about, gitlink+" "):
			submodules = append(submodules, inFolder)
		default:
			names = append(names, name)
			wanted.WriteString(name + "\x00")
		}
	}
	if len(names)+len(submodules) == 0 {
		return nil, fmt.Errorf("it has no folder %q", r.prefix)
	}
	checkout := git("checkout-index", "-z", "--stdin")
	checkout.in = strings.NewReader(wanted.String())
	if _, err := checkout.run(ctx, DefaultDeadline); err != nil { // long: a filter such as LFS may download files
		return nil, err
	}
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(tree, filepath.FromSlash(name))); err != nil {
			return nil, fmt.Errorf("git left out a file: %w", err)
		}
	}
	return submodules, os.MkdirAll(filepath.Join(tree, filepath.FromSlash(r.prefix)), 0o755)
}

// link makes a git folder for a checked-out tree: the repository's own with another HEAD. A Puppetfile may ask git for its branch.
func (r *repository) link(ctx context.Context, f *Folder) error {
	common, err := r.ask(ctx, "rev-parse", "--git-common-dir") // git before 2.31 has no --path-format=absolute
	if err != nil {
		return err
	}
	if !filepath.IsAbs(common) {
		dir, err := filepath.Abs(r.dir)
		if err == nil {
			dir, err = filepath.EvalSymlinks(dir)
		}
		if err != nil {
			return err
		}
		common = filepath.Join(dir, common)
	}
	head := f.Facts.Commit
	if at, err := r.ask(ctx, "rev-parse", "--verify", "--quiet", "refs/heads/"+f.branch); err == nil && at == head {
		head = "ref: refs/heads/" + f.branch
	}
	dir := filepath.Join(f.work, treeFolder, ".git")
	err = os.Mkdir(dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "HEAD"), []byte(head+"\n"), 0o644)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "commondir"), []byte(common+"\n"), 0o644)
	}
	return err
}
