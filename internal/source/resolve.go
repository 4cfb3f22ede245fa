package source

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// resolveCopy resolves the Puppetfile in a copy of the operator's folder. Without a Puppetfile there is no copy.
func (f *Folder) resolveCopy(ctx context.Context, o Options, changes changes) error {
	p, tool, err := f.choose(o)
	if err != nil {
		return err
	}
	if tool == "" {
		f.Facts.Dirty = f.differsFrom(changes, leftModules{})
		return nil
	}
	old := p.leftModules(f.Root, changes)
	if err := f.makeWork(); err != nil {
		return err
	}
	o.Progress("copying " + f.Root)
	tree := filepath.Join(f.work, treeFolder)
	err = copyTree(ctx, f.Root, tree, func(name string, dir bool) bool {
		return name != puppetfileName && f.Ignore(name, dir) || old.stale[name] != ""
	})
	if err != nil {
		return fmt.Errorf("cannot copy %s to resolve its Puppetfile: %w", f.Root, err)
	}
	f.Root = tree
	f.rules.root = tree
	if err := f.run(ctx, o, p, tool); err != nil {
		return err
	}
	f.Facts.Dirty = f.differsFrom(changes, old)
	f.replaced = slices.DeleteFunc(f.replaced, func(name string) bool { // of an earlier run
		return slices.Contains(old.clones, name) || changes.ignores(name)
	})
	f.noteModules(old)
	return nil
}

// differsFrom reports whether the published folder differs from the commit, apart from modules of the Puppetfile.
func (f *Folder) differsFrom(changes changes, old leftModules) bool {
	for _, name := range slices.Concat(changes.changed, changes.ignored) {
		dir := strings.HasSuffix(name, "/")
		if name = strings.TrimSuffix(name, "/"); !f.leftOut(name, dir) && !within(name, slices.Collect(maps.Keys(old.stale))) && !within(name, f.made) {
			return true
		}
	}
	return false
}

// resolve resolves the Puppetfile of a temporary folder.
func (f *Folder) resolve(ctx context.Context, o Options) error {
	p, tool, err := f.choose(o)
	if err != nil || tool == "" {
		return err
	}
	if err := f.run(ctx, o, p, tool); err != nil {
		return err
	}
	f.noteModules(leftModules{})
	return nil
}

// choose returns the Puppetfile and the tool for it. The tool is "" if there is nothing to resolve.
func (f *Folder) choose(o Options) (*puppetfile, Resolver, error) {
	if o.Modules == NoTool {
		return nil, "", nil
	}
	p, err := readPuppetfile(f.Root)
	if err != nil || p == nil {
		return nil, "", err
	}
	candidates := []Resolver{R10k, G10k}
	if o.Modules != Auto && o.Modules != "" {
		candidates = []Resolver{o.Modules}
	}
	for _, tool := range candidates {
		if _, err := exec.LookPath(string(tool)); err == nil {
			return p, tool, nil
		}
	}
	const hint = "install r10k (apt-get install r10k) or g10k (apt-get install g10k), or publish the modules in the folder: --puppetfile ignore"
	if len(candidates) == 1 {
		return nil, "", fmt.Errorf("cannot resolve the Puppetfile: %s is not installed\n%s", candidates[0], hint)
	}
	if missing := p.missing(f.Root); missing != "" {
		return nil, "", fmt.Errorf("cannot resolve the Puppetfile: neither r10k nor g10k is installed, and %s is not in the folder\n%s", missing, hint)
	}
	f.Notes = append(f.Notes, "the modules of the Puppetfile in the folder are published unchanged: neither r10k nor g10k is installed")
	return nil, "", nil
}

// run installs modules to f.Root with a tool. f.Root is never a folder of the operator. Both tools remove unknown files
// from module folders, and g10k skips a module that declares the right version. Therefore the tools start without these
// folders, and run moves back the files that they did not create.
//
// All moves stay within f.work, enforced by an os.Root. A copy may contain links that lead out of it, as its original
// does. A rename through such a link would remove files of the machine.
func (f *Folder) run(ctx context.Context, o Options, p *puppetfile, tool Resolver) error {
	work, err := os.OpenRoot(f.work)
	if err != nil {
		return err
	}
	defer work.Close()
	rel, err := filepath.Rel(f.work, f.Root)
	if err != nil || !filepath.IsLocal(rel) {
		return fmt.Errorf("cannot resolve the Puppetfile: %s is not a copy", f.Root)
	}
	m := moving{work, filepath.ToSlash(rel), p}
	if err := m.setAside(); err != nil {
		return fmt.Errorf("cannot resolve the Puppetfile: %w", err)
	}
	if err := f.call(ctx, o, p, tool); err != nil {
		hint := "--puppetfile ignore publishes the modules in the folder"
		if tool == G10k {
			hint = "r10k reads any Puppetfile (--puppetfile r10k); " + hint
		}
		return fmt.Errorf("cannot resolve the Puppetfile with %w\n%s", err, hint)
	}
	if f.Resolved, err = f.resolved(ctx, p); err != nil {
		return err
	}
	f.made = p.installed(f.Root)
	f.replaced = slices.DeleteFunc(slices.Clone(f.made), func(module string) bool { return !m.had(module) })
	if err := m.putBack(); err != nil {
		return fmt.Errorf("cannot keep the folder's own modules: %w", err)
	}
	if missing := p.missing(f.Root); missing != "" {
		return fmt.Errorf("cannot resolve the Puppetfile with %s: it reported no error, and %s does not exist\nrun it on the file by hand", tool, missing)
	}
	f.Facts.Modules = tool
	return nil
}

// call runs the tool with the environment of the operator.
func (f *Folder) call(ctx context.Context, o Options, p *puppetfile, tool Resolver) error {
	o.Progress("resolving the Puppetfile with " + string(tool))
	file, err := f.prepared(ctx, p, tool)
	if err != nil {
		return fmt.Errorf("%s: %w", tool, err)
	}
	c := command{dir: f.Root, show: &lineWriter{show: func(line string) {
		o.Progress(string(tool) + ": " + line)
		f.noteWarning(tool, line)
	}}}
	switch tool {
	case G10k:
		c.args = []string{"g10k", "-puppetfile", "-puppetfilelocation", file, "-verbose", "-moduledir", p.moduledir}
		if os.Getenv("g10k_cachedir") == "" { // the default /tmp/g10k may be created by any user
			cache := filepath.Join(f.work, "g10k")
			if filepath.Dir(f.work) == filepath.Join(o.CacheDir, "work") {
				cache = filepath.Join(o.CacheDir, "g10k")
			}
			c.args = append(c.args, "-cachedir", cache)
		}
	case R10k:
		c.args = []string{"r10k", "puppetfile", "install", "--verbose", "--puppetfile", file,
			"--moduledir", filepath.Join(f.Root, filepath.FromSlash(p.moduledir))}
	default:
		return fmt.Errorf("%s: no such tool", tool)
	}
	_, err = c.run(ctx, o.Deadline)
	var ended *commandError
	if errors.As(err, &ended) {
		ended.name = string(tool)
		ended.said = f.complaint(ended.said)
		ended.blame(p)
	}
	var late *tooLongError
	if errors.As(err, &late) {
		return fmt.Errorf("%w\ngive it more time with --puppetfile-timeout", err)
	}
	return err
}

// complaint returns what a tool wrote, without its progress, without what it repeats, and with paths from the root of the folder.
func (f *Folder) complaint(said string) string {
	var lines []string
	for line := range strings.Lines(said) {
		line = strings.ReplaceAll(strings.TrimRight(line, "\r\n"), f.Root+"/", "")
		if text := strings.TrimSpace(line); text != "" && !strings.HasPrefix(text, "INFO") && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// leadsTo reports whether a folder contains or is a folder where tools install modules.
func (p *puppetfile) leadsTo(name string) bool {
	return slices.ContainsFunc(p.folders, func(folder string) bool { return folder == name || strings.HasPrefix(folder, name+"/") })
}
