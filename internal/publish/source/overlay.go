package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"pulley/internal/release/content"
)

// Overlay is a second source of a release: a folder or a git repository whose files are put on the folder to publish.
type Overlay struct {
	Folder string // of the release, for the overlay's root; "" is the root
	Source string // a folder, or the URL of a git repository
	Ref    string // of the repository; "" is its HEAD, or the folder as it is on disk
}

// String returns the overlay as ParseOverlay reads it.
func (o Overlay) String() string {
	s := o.Source
	if o.Folder != "" {
		s = o.Folder + "=" + s
	}
	if o.Ref != "" {
		s += "#" + o.Ref
	}
	return s
}

// Overlaid is an overlay of a release.
type Overlaid struct {
	Folder, Source string // Source has no user and password
	Commit, Ref    string
	Dirty          bool
	Files          int
	Shadows        []string // files and links of the release that it replaced
}

// gitSource matches the sources that are cloned: URLs, and the short form of SSH as in git@example.com:hiera.git.
var gitSource = regexp.MustCompile(`^(\w[\w+.-]*://|[\w.-]+@[\w.-]+:)`)

// ParseOverlay reads [FOLDER=]SOURCE[#REF] from the command line.
func ParseOverlay(s string) (Overlay, error) {
	o := Overlay{Source: s}
	if folder, rest, ok := strings.Cut(s, "="); ok && !gitSource.MatchString(folder) {
		o.Folder, o.Source = path.Clean(folder), rest
		if !filepath.IsLocal(folder) {
			return o, fmt.Errorf("cannot use overlay %q: %q is not a folder of the release\ngive a folder such as hieradata", s, folder)
		}
		if o.Folder == "." {
			o.Folder = ""
		}
	}
	if at := strings.LastIndexByte(o.Source, '#'); at >= 0 {
		o.Source, o.Ref = o.Source[:at], o.Source[at+1:]
		if o.Ref == "" {
			return o, fmt.Errorf("cannot use overlay %q: the ref after # is empty\ngive a branch, a tag or a commit", s)
		}
	}
	if o.Source == "" {
		return o, fmt.Errorf("cannot use overlay %q: give a folder, or the URL of a git repository, as in hieradata=../private-data", s)
	}
	return o, nil
}

// overlay puts the overlays on the tree, in order. The operator's folder is copied first.
func (f *Folder) overlay(ctx context.Context, o Options) error {
	if len(o.Overlays) == 0 {
		return nil
	}
	if err := f.ownCopy(ctx, o); err != nil {
		return err
	}
	for i, one := range o.Overlays {
		o.Progress("reading overlay " + withoutUser(one.Source))
		done, err := f.put(ctx, o, one, filepath.Join(f.work, fmt.Sprintf("overlay%d", i)))
		if err != nil {
			return fmt.Errorf("cannot use overlay %s: %w", withoutUser(one.Source), err)
		}
		f.Overlays = append(f.Overlays, done)
	}
	return nil
}

// ownCopy makes f.Root a copy that may change.
func (f *Folder) ownCopy(ctx context.Context, o Options) error {
	if f.work != "" && strings.HasPrefix(f.Root, f.work+"/") {
		return nil
	}
	if err := f.makeWork(); err != nil {
		return err
	}
	o.Progress("copying " + f.Root)
	tree := filepath.Join(f.work, treeFolder)
	if err := copyTree(ctx, f.Root, tree, f.Ignore); err != nil {
		return fmt.Errorf("cannot copy %s to put overlays on it: %w", f.Root, err)
	}
	f.Root, f.rules.root = tree, tree
	return nil
}

// put opens one overlay and puts it on the tree.
func (f *Folder) put(ctx context.Context, o Options, from Overlay, work string) (done Overlaid, err error) {
	dir, ref := from.Source, from.Ref
	if gitSource.MatchString(from.Source) {
		clone := command{args: []string{"git", "clone", "--quiet", "--bare", "--", from.Source, work}, env: []string{"LC_ALL=C"}}
		if _, err := clone.run(ctx, o.Deadline); err != nil {
			var ended *commandError
			if errors.As(err, &ended) {
				ended.name, ended.said = "git clone", strings.ReplaceAll(ended.said, from.Source, withoutUser(from.Source))
			}
			return done, err
		}
		if dir = work; ref == "" {
			ref = "HEAD"
		}
		if _, err := (&repository{dir: work}).commit(ctx, ref); err != nil {
			return done, fmt.Errorf("it has no branch, tag or commit %q\n`git ls-remote %s` lists them", ref, withoutUser(from.Source))
		}
	}
	over := &Folder{Root: dir, cacheDir: f.cacheDir}
	defer func() { err = errors.Join(err, over.Close()) }()
	if err := over.open(ctx, dir, Options{Ref: ref, Modules: NoTool, Deadline: o.Deadline, Progress: o.Progress}); err != nil {
		return done, err
	}
	f.Notes = append(f.Notes, over.Notes...)
	done = Overlaid{Folder: from.Folder, Source: withoutUser(from.Source), Commit: over.Facts.Commit, Ref: from.Ref, Dirty: over.Facts.Dirty}
	if done.Shadows, done.Files, err = merge(ctx, over, f, from.Folder); err != nil {
		return done, err
	}
	if done.Files == 0 {
		return done, errors.New("it contains no files")
	}
	return done, nil
}

// merge copies a folder into a folder of a tree, and returns the files that it replaced. It writes through no link.
func merge(ctx context.Context, over, tree *Folder, folder string) (shadows []string, files int, err error) {
	src, err := os.OpenRoot(over.Root)
	if err != nil {
		return nil, 0, err
	}
	defer src.Close()
	dst, err := os.OpenRoot(tree.Root)
	if err != nil {
		return nil, 0, err
	}
	defer dst.Close()
	if err := makeFolders(dst, folder); err != nil {
		return nil, 0, err
	}
	err = content.Walk(src, func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		switch {
		case err != nil, name == ".":
			return err
		case over.Ignore(name, d.IsDir()) && d.IsDir():
			return fs.SkipDir
		case over.Ignore(name, d.IsDir()):
			return nil
		}
		if files++; files > content.MaxEntries {
			return fmt.Errorf("it has more than %d files, folders and links", content.MaxEntries)
		}
		to := name
		if folder != "" {
			to = folder + "/" + name
		}
		if why := tree.why(to, d.IsDir()); why != "" {
			return fmt.Errorf("%s is left out of the release (%s)\nremove that line, or leave the file out of the overlay by its own %s", to, why, ignoreFile)
		}
		there, err := dst.Lstat(to)
		exists := err == nil
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		case d.IsDir() && exists && there.IsDir():
			return nil
		case exists && (d.IsDir() || there.IsDir()):
			return fmt.Errorf("%s is a folder in one of both, and a file or link in the other\nremove one of them", to)
		case d.IsDir():
			return dst.Mkdir(to, 0o755)
		case exists:
			shadows = append(shadows, to)
			if err := dst.Remove(to); err != nil {
				return err
			}
		}
		_, err = copyEntry(src, dst, name, to, d)
		return err
	})
	slices.Sort(shadows)
	return shadows, files, err
}

// makeFolders creates a folder of a tree with its parents. None of them may be a link or a file.
func makeFolders(dst *os.Root, folder string) error {
	if folder == "" {
		return nil
	}
	at := ""
	for _, c := range strings.Split(folder, "/") {
		at = path.Join(at, c)
		info, err := dst.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			err = dst.Mkdir(at, 0o755)
		case err == nil && !info.IsDir():
			err = fmt.Errorf("%s in the folder to publish is not a folder (%s)\ngive another folder", at, info.Mode().Type())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// withoutUser removes user and password from a URL.
func withoutUser(source string) string {
	u, err := url.Parse(source)
	if err != nil || u.User == nil || u.Host == "" {
		return source
	}
	u.User = nil
	return u.String()
}
