package source

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"pulley/internal/bounded"
)

// HasResolver reports whether r10k or g10k is installed.
func HasResolver() bool {
	return slices.ContainsFunc([]Resolver{R10k, G10k}, func(r Resolver) bool { _, err := exec.LookPath(string(r)); return err == nil })
}

// resolveCopy resolves the Puppetfile in a copy of the operator's folder. Without a Puppetfile there is no copy.
func (f *Folder) resolveCopy(ctx context.Context, o Options, changes changes) error {
	r, err := f.choose(ctx, o)
	if err != nil {
		return err
	}
	if r == nil {
		f.Facts.Dirty = f.differsFrom(changes, leftModules{})
		if o.Modules == Unresolved && f.puppetfile != nil && HasResolver() { // without a tool, publish keeps them
			f.replaced = f.puppetfile.replaces(f.Root, changes)
		}
		return nil
	}
	old := r.leftModules(f.Root, changes)
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
	if err := f.run(ctx, o, r); err != nil {
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
	r, err := f.choose(ctx, o)
	if err != nil || r == nil {
		return err
	}
	if err := f.run(ctx, o, r); err != nil {
		return err
	}
	f.noteModules(leftModules{})
	return nil
}

// resolution is a Puppetfile that a tool resolves.
type resolution struct {
	*puppetfile
	tool Resolver
	file string   // for the tool, which reads it in the place of the folder's Puppetfile
	env  []string // for the tool
}

// choose returns the Puppetfile with a tool for it, or nil if there is nothing to resolve.
func (f *Folder) choose(ctx context.Context, o Options) (*resolution, error) {
	p, err := f.readPuppetfile(o)
	if err != nil || p == nil || o.Modules == Unresolved {
		return nil, err
	}
	candidates := []Resolver{R10k, G10k}
	if o.Modules != Auto && o.Modules != "" {
		candidates = []Resolver{o.Modules}
	}
	for _, tool := range candidates {
		if _, err := exec.LookPath(string(tool)); err != nil {
			continue
		}
		if err := f.makeWork(); err != nil {
			return nil, err
		}
		r := &resolution{puppetfile: p, tool: tool}
		if tool == R10k {
			err = f.evaluate(ctx, o, r)
		} else {
			err = f.prepare(ctx, r)
		}
		if err != nil {
			return nil, r.failed(err)
		}
		f.puppetfile = r.puppetfile
		if len(r.folders) == 0 {
			return nil, nil
		}
		return r, nil
	}
	const hint = "install r10k (apt-get install r10k) or g10k (apt-get install g10k), or publish the modules in the folder: --puppetfile ignore"
	if len(candidates) == 1 {
		return nil, fmt.Errorf("cannot resolve the Puppetfile: %s is not installed\n%s", candidates[0], hint)
	}
	if missing := p.missing(f.Root); len(missing) > 0 {
		return nil, fmt.Errorf("cannot resolve the Puppetfile: neither r10k nor g10k is installed, and %s is not in the folder\n%s", missing[0], hint)
	}
	f.Notes = append(f.Notes, "the modules of the Puppetfile in the folder are published unchanged: neither r10k nor g10k is installed")
	return nil, nil
}

func (r *resolution) failed(err error) error {
	hint := "--puppetfile ignore publishes the modules in the folder"
	if r.tool == G10k {
		hint = "r10k reads any Puppetfile (--puppetfile r10k); " + hint
	}
	return fmt.Errorf("cannot resolve the Puppetfile with %w\n%s", err, hint)
}

//go:embed puppetfile.rb
var evaluation []byte

// evaluate lists the modules of a Puppetfile with r10k, which evaluates it in the folder: it may read other files there, ask git, and name
// folders by its own path. Nothing is installed. The tool evaluates it again before it installs the same modules, in a copy.
func (f *Folder) evaluate(ctx context.Context, o Options, r *resolution) error {
	root, err := filepath.Abs(f.Root)
	if err == nil {
		root, err = filepath.EvalSymlinks(root) // as Ruby's __dir__
	}
	if err != nil {
		return err
	}
	r.file = filepath.Join(f.work, puppetfileName)
	if err := os.WriteFile(r.file, evaluation, 0o600); err != nil {
		return err
	}
	list := filepath.Join(f.work, "modules.json")
	r.env = []string{"GIT_OPTIONAL_LOCKS=0", "PULLEY_ROOT=" + root, "PULLEY_PLAN=" + list}
	if f.branch != "" {
		r.env = append(r.env, "PULLEY_BRANCH="+f.branch)
	}
	o.Progress("reading the Puppetfile with r10k")
	if err := f.start(ctx, o, r, "r10k", "puppetfile", "check", "--puppetfile", r.file); err != nil {
		return err
	}
	text, err := bounded.ReadFile(list, maxPuppetfile)
	if err == nil {
		r.puppetfile, err = plan(text, r.puppetfile)
	}
	if err != nil {
		return fmt.Errorf("%s: it did not list the modules: %w", r.tool, err)
	}
	if slices.Contains(slices.Collect(maps.Values(r.refs)), "control_branch") {
		f.noteUnknownBranch()
	}
	return nil
}

// run installs modules to f.Root with a tool. f.Root is never a folder of the operator. Both tools remove unknown files
// from module folders, and g10k skips a module that declares the right version. Therefore the tools start without these
// folders, and run moves back the files that they did not create.
//
// All moves stay within f.work, enforced by an os.Root. A copy may contain links that lead out of it, as its original
// does. A rename through such a link would remove files of the machine.
func (f *Folder) run(ctx context.Context, o Options, r *resolution) error {
	work, err := os.OpenRoot(f.work)
	if err != nil {
		return err
	}
	defer work.Close()
	rel, err := filepath.Rel(f.work, f.Root)
	if err != nil || !filepath.IsLocal(rel) {
		return fmt.Errorf("cannot resolve the Puppetfile: %s is not a copy", f.Root)
	}
	m := moving{work, filepath.ToSlash(rel), r.puppetfile}
	if err := m.setAside(); err != nil {
		return fmt.Errorf("cannot resolve the Puppetfile: %w", err)
	}
	o.Progress("resolving the Puppetfile with " + string(r.tool))
	args := []string{"r10k", "puppetfile", "install", "--verbose", "--puppetfile", r.file, "--moduledir", "modules"}
	if r.tool == G10k {
		args = []string{"g10k", "-puppetfile", "-puppetfilelocation", r.file, "-verbose"}
		if os.Getenv("g10k_cachedir") == "" { // the default /tmp/g10k may be created by any user
			cache := filepath.Join(f.work, "g10k")
			if filepath.Dir(f.work) == filepath.Join(o.CacheDir, "work") {
				cache = filepath.Join(o.CacheDir, "g10k")
			}
			args = append(args, "-cachedir", cache)
		}
	}
	if err := f.start(ctx, o, r, args...); err != nil {
		return r.failed(err)
	}
	if f.Resolved, err = f.resolved(ctx, r.puppetfile); err != nil {
		return err
	}
	f.made = r.installed(f.Root)
	f.replaced = slices.DeleteFunc(slices.Clone(f.made), func(module string) bool { return !m.had(module) })
	if err := m.putBack(); err != nil {
		return fmt.Errorf("cannot keep the folder's own modules: %w", err)
	}
	var local []string
	for _, missing := range r.missing(f.Root) {
		if !slices.Contains(r.local, missing) {
			return fmt.Errorf("cannot resolve the Puppetfile with %s: it reported no error, and %s does not exist\nrun it on the file by hand", r.tool, missing)
		}
		local = append(local, missing)
	}
	f.noteNames(local, "modules that the Puppetfile calls local are not in the folder")
	f.Facts.Modules = r.tool
	return nil
}

// start runs the tool with the environment of the operator.
func (f *Folder) start(ctx context.Context, o Options, r *resolution, args ...string) error {
	c := command{dir: f.Root, args: args, env: r.env, show: &lineWriter{show: func(line string) {
		o.Progress(string(r.tool) + ": " + line)
		f.noteWarning(r.tool, line)
	}}}
	_, err := c.run(ctx, o.Deadline)
	var ended *commandError
	if errors.As(err, &ended) {
		ended.name = string(r.tool)
		ended.said = f.complaint(ended.said)
		ended.blame(r.puppetfile)
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
