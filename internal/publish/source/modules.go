package source

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"pulley/internal/clip"
)

// controlBranch is the symbol for the branch of the control repository in a Puppetfile. Both tools know the branch only
// where they deploy the environment themselves.
var controlBranch = regexp.MustCompile(`:control_branch\b`)

// branch returns the branch of the folder, as r10k deploys it: the one that the operator gives, the ref, or the branch
// of the work tree. It returns "" if there is none.
func (r *repository) branch(ctx context.Context, o Options) string {
	if o.Branch != "" || r == nil {
		return o.Branch
	}
	if o.Ref != "" {
		for _, prefix := range []string{"refs/heads/", "refs/remotes/"} {
			name, err := r.ask(ctx, "rev-parse", "--symbolic-full-name", "--verify", "--quiet", "--end-of-options", o.Ref)
			if branch, ok := strings.CutPrefix(name, prefix); ok && err == nil {
				if prefix == "refs/remotes/" {
					_, branch, _ = strings.Cut(branch, "/")
				}
				return branch
			}
		}
		return ""
	}
	name, err := r.ask(ctx, "symbolic-ref", "--quiet", "--short", "HEAD")
	if err != nil {
		return ""
	}
	return name
}

// prepare writes a Puppetfile for g10k outside of the tree: the branch replaces :control_branch, and a module whose branch exists has no
// default branch. The Puppetfile of the release stays as it is.
func (f *Folder) prepare(ctx context.Context, r *resolution) error {
	text := r.text
	if r.unclear != nil {
		return fmt.Errorf("%s: %w", r.tool, r.unclear)
	}
	if controlBranch.MatchString(text) {
		if f.branch == "" {
			f.noteUnknownBranch()
		} else if strings.ContainsAny(f.branch, `'\`) {
			return fmt.Errorf("%s: branch %q has a quote or a backslash\ngive another one with --branch", r.tool, f.branch)
		} else {
			text = controlBranch.ReplaceAllLiteralString(text, "'"+f.branch+"'")
		}
	}
	if line, number := r.ruby(); line != "" {
		return fmt.Errorf("%s: it skips line %d, which is Ruby: %s", r.tool, number, clip.Text(line, maxFactBytes))
	}
	text, err := f.withoutDefaults(ctx, text)
	if err != nil {
		return err
	}
	r.file = filepath.Join(f.work, puppetfileName)
	return os.WriteFile(r.file, []byte(text), 0o600)
}

func (f *Folder) noteUnknownBranch() {
	f.Notes = append(f.Notes, "the Puppetfile follows the branch of the repository, which is unknown here: its default branches are used; to set the branch, give --branch")
}

var (
	defaultBranch = regexp.MustCompile(`,\s*:?default_branch['"]?\s*(?:=>|:)\s*(?:'[^'\n]*'|"[^"\n]*"|[\w:]+)`)
	gitRemote     = regexp.MustCompile(`\bgit['"]?\s*(?:=>|:)\s*(?:'([^'\n]*)'|"([^"#\n]*)")`)
)

// withoutDefaults removes each default branch of a module whose named branch exists. g10k would take the default
// branch, where r10k takes the branch.
func (f *Folder) withoutDefaults(ctx context.Context, text string) (string, error) {
	at := moduleLine.FindAllStringIndex(text, -1)
	for i := len(at) - 1; i >= 0; i-- {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		block := text[at[i][0]:end]
		cut := defaultBranch.FindStringIndex(block)
		remote, ref := gitRemote.FindStringSubmatch(block), moduleRef.FindStringSubmatch(block)
		if cut == nil || remote == nil || ref == nil || ref[3] != "" {
			continue
		}
		exists, err := f.remoteHas(ctx, remote[1]+remote[2], ref[1]+ref[2])
		if err != nil {
			return "", err
		}
		if exists {
			text = text[:at[i][0]+cut[0]] + text[at[i][0]+cut[1]:]
		}
	}
	return text, nil
}

// remoteHas reports whether a repository has a branch or a tag. A server that does not answer is g10k's to report.
func (f *Folder) remoteHas(ctx context.Context, remote, ref string) (bool, error) {
	if isObjectName(ref) {
		return true, nil
	}
	if strings.HasPrefix(remote, "-") {
		return false, nil
	}
	ask := command{dir: f.work, env: []string{"LC_ALL=C"}, args: []string{"git", "ls-remote", "--exit-code", "--", remote, "refs/heads/" + ref, "refs/tags/" + ref}}
	_, err := ask.run(ctx, gitDeadline)
	return err == nil, ctx.Err()
}

// warning matches the lines of r10k and g10k that the operator must see although the tool succeeds.
var (
	warning   = regexp.MustCompile(`\bWARN(ING)?\b[\t :>-]*(.+)`)
	ansiColor = regexp.MustCompile("\x1b\\[[0-9;]*m")
)

// maxWarnings limits the number of shown warnings of a tool.
const maxWarnings = 20

// noteWarning keeps a warning of the tool.
func (f *Folder) noteWarning(tool Resolver, line string) {
	m := warning.FindStringSubmatch(ansiColor.ReplaceAllString(line, ""))
	if m == nil {
		return
	}
	note := string(tool) + ": " + clip.Text(strings.TrimSpace(m[2]), maxFactBytes)
	if !slices.Contains(f.Notes, note) && len(f.Notes) < maxWarnings {
		f.Notes = append(f.Notes, note)
	}
}

// resolved lists the modules that the tool installed, with what it resolved them to.
func (f *Folder) resolved(ctx context.Context, p *puppetfile) ([]Module, error) {
	var all []Module
	for _, name := range p.installed(f.Root) {
		dir := filepath.Join(f.Root, filepath.FromSlash(name))
		sha, version := moduleCommit(ctx, dir), p.refs[name]
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if f.branch != "" && version == "control_branch" {
			version = f.branch
		}
		if sha == "" {
			version = cmp.Or(moduleVersion(dir), version)
		}
		all = append(all, Module{Name: path.Base(name), Version: clip.Text(version, maxFactBytes), SHA: sha})
	}
	slices.SortStableFunc(all, func(a, b Module) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// installed lists the folders of modules that a tool installed. A module in the root of the repository is a folder of
// its own.
func (p *puppetfile) installed(root string) []string {
	var all []string
	for _, folder := range p.folders {
		if slices.Contains(p.modules, folder) {
			all = append(all, folder)
			continue
		}
		entries, err := os.ReadDir(filepath.Join(root, filepath.FromSlash(folder)))
		if err != nil {
			continue // it has no modules
		}
		for _, e := range entries {
			if name := path.Join(folder, e.Name()); e.IsDir() && !p.leadsTo(name) {
				all = append(all, name)
			}
		}
	}
	return all
}

// moduleCommit returns the commit of a module that r10k cloned or g10k unpacked, or "".
func moduleCommit(ctx context.Context, dir string) string {
	if text, err := readIn(dir, ".latest_commit", 1<<10); err == nil && isObjectName(strings.TrimSpace(text)) {
		return strings.TrimSpace(text)
	}
	if _, err := os.Lstat(filepath.Join(dir, ".git")); err != nil {
		return ""
	}
	r := &repository{dir: dir}
	out, err := r.ask(ctx, "--git-dir", filepath.Join(dir, ".git"), "rev-parse", "--verify", "--quiet", "HEAD")
	if err != nil || !isObjectName(out) {
		return ""
	}
	return out
}

// moduleVersion returns the version of a module from the Forge or a tarball.
func moduleVersion(dir string) string {
	text, err := readIn(dir, "metadata.json", 1<<20)
	var metadata struct{ Version string }
	if err != nil || json.Unmarshal([]byte(text), &metadata) != nil {
		return ""
	}
	return metadata.Version
}
