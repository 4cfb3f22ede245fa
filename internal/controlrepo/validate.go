package controlrepo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxFileBytes is the maximum size of a file to read.
const maxFileBytes = 4 << 20

// ManifestCheck parses manifests, given relative to dir, and returns the problems.
type ManifestCheck func(ctx context.Context, dir string, files []string) []Finding

// Options configure Validate.
type Options struct {
	Manifests ManifestCheck                    // nil: manifests are scanned but not parsed
	Ignore    func(path string, dir bool) bool // paths to skip, relative to dir; nil: none
}

// Validate checks the control repository in dir. The error reports a failed read; the report contains the problems of
// the files. Validate does not follow symbolic links.
func Validate(ctx context.Context, dir string, opts Options) (report Report, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Report{}, fmt.Errorf("cannot validate %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	r := &reading{files: map[string][]byte{}}
	if err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		switch {
		case err != nil:
			return err
		case !utf8.ValidString(name): // an fs.FS cannot open it, and Puppet code cannot name it
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case name == "." || opts.Ignore == nil || !opts.Ignore(name, d.IsDir()):
			return r.visit(root.FS(), name, d)
		case d.IsDir():
			return fs.SkipDir
		}
		return nil
	}); err != nil {
		return Report{}, fmt.Errorf("cannot validate %s: %w", dir, err)
	}
	if opts.Manifests != nil && len(r.manifests) > 0 {
		r.add(opts.Manifests(ctx, dir, r.manifests)...)
	}
	r.check()
	return Report{Findings: sortFindings(r.findings), Files: len(r.files)}, nil
}

// reading holds the files that Validate has read.
type reading struct {
	files     map[string][]byte // files to check
	manifests []string
	findings  []Finding
}

func (r *reading) add(f ...Finding) { r.findings = append(r.findings, f...) }

func (r *reading) visit(repo fs.FS, name string, d fs.DirEntry) error {
	switch {
	case name != "." && strings.HasPrefix(path.Base(name), "."):
		if d.IsDir() {
			return fs.SkipDir // .git and the like are not part of a release
		}
		return nil
	case d.IsDir() && notForNodes(name):
		return fs.SkipDir
	case !d.Type().IsRegular():
		return nil
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	if does := runs(name); does != "" && info.Mode().Perm()&0o111 == 0 {
		r.add(Finding{File: name, Severity: Error, Problem: "it is not executable, and " + does + " nothing", Hint: "chmod +x " + name})
	}
	if !isYAML(name) && path.Ext(name) != ".pp" {
		return r.look(repo, name)
	}
	if info.Size() > maxFileBytes {
		r.add(Finding{File: name, Severity: Error, Problem: fmt.Sprintf("it has %d bytes, and at most %d are read", info.Size(), maxFileBytes)})
		return nil
	}
	data, err := fs.ReadFile(repo, name)
	if err != nil {
		return err
	}
	r.files[name] = data
	if path.Ext(name) == ".pp" {
		r.manifests = append(r.manifests, name)
	}
	return nil
}

var privateKey = regexp.MustCompile(`^-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY-----`)

// look reads the beginning of any file to find private keys. Every reader of etcd could read a private key in a
// release, even if git ignores the file.
func (r *reading) look(repo fs.FS, name string) (err error) {
	f, err := repo.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	head, err := io.ReadAll(io.LimitReader(f, 256))
	if err == nil && privateKey.Match(head) {
		r.add(Finding{File: name, Severity: Error, Problem: "it is a private key, and every reader of etcd could read it", Hint: "keep it outside of the control repository"})
	}
	return err
}

// notForNodes reports folders of a module that Puppet on a node never reads. Their files may contain deliberate errors.
func notForNodes(name string) bool {
	parts := strings.Split(name, "/")
	return len(parts) == 3 && (parts[2] == "spec" || parts[2] == "plans" || parts[2] == "examples")
}

func isYAML(name string) bool { return path.Ext(name) == ".yaml" || path.Ext(name) == ".yml" }

func isEnvironment(name string) bool { return path.Dir(name) == "environments" && isYAML(name) }

func isCloud(name string) bool { return path.Dir(name) == "clouds" && isYAML(name) }

func (r *reading) check() {
	for name, data := range r.files {
		switch {
		case path.Ext(name) == ".pp":
			r.add(scan(name, string(data))...)
		case isEnvironment(name), isCloud(name), name == "pulley.yaml":
		case path.Base(name) == "hiera.yaml":
			r.add(checkYAML(name, data)...)
			r.add(checkHiera(name, data)...)
		default:
			r.add(checkYAML(name, data)...)
		}
	}
	r.add(checkSettings(r.files["pulley.yaml"], r.files["hiera.yaml"])...)
	if _, has := r.files["hiera.yaml"]; !has {
		r.add(Finding{File: "hiera.yaml", Severity: Warning, Problem: "the file is missing: Puppet reads only data/common.yaml", Hint: "`pulley init` writes one that works"})
	}
	r.checkNodes()
}

// checkNodes checks the environments, and that site.pp has declarations for their nodes.
func (r *reading) checkNodes() {
	site := nodeMatchers{}
	manifests := 0
	for _, name := range r.manifests {
		if strings.HasPrefix(name, "manifests/") {
			manifests++
			site.collect(string(r.files[name]))
		}
	}
	if manifests == 0 {
		r.add(Finding{File: "manifests/site.pp", Severity: Error, Problem: "the file is missing: Puppet would apply nothing", Hint: "`pulley init` writes one that works"})
	} else if !site.any {
		r.add(Finding{File: "manifests/site.pp", Severity: Warning, Problem: "there are no node declarations: all nodes get the same resources",
			Hint: `give each role its own: node /^controller\d+/ { … }`})
	}
	seen, clouds := 0, r.checkClouds()
	for name, data := range r.files {
		if !isEnvironment(name) {
			continue
		}
		seen++
		e, err := load(name, data, clouds)
		if err != nil {
			r.add(environmentFindings(name, err)...)
			continue
		}
		if site.any {
			r.add(site.missingRoles(name, data, e)...)
		}
	}
	if seen == 0 {
		r.add(Finding{File: "environments", Severity: Warning, Problem: "there is no environment", Hint: "list the nodes in environments/<environment>.yaml"})
	}
}

// Severity is the severity of a finding. Errors forbid publishing.
type Severity string

// The severities.
const (
	Error   Severity = "error"   // nodes cannot apply the release
	Warning Severity = "warning" // probably a mistake
)

// Finding is one problem in a control repository.
type Finding struct {
	File     string   `json:"file,omitempty"`   // relative to the repository; "" for the repository itself
	Line     int      `json:"line,omitempty"`   // from 1; 0 if unknown
	Column   int      `json:"column,omitempty"` // from 1, in characters; 0 if unknown
	Severity Severity `json:"severity"`
	Problem  string   `json:"problem"`
	Hint     string   `json:"hint,omitempty"` // remedy
}

// String formats the finding like a compiler: file:line:column: severity: problem.
func (f Finding) String() string {
	var b strings.Builder
	if f.File != "" {
		b.WriteString(f.File)
		if f.Line > 0 {
			fmt.Fprintf(&b, ":%d", f.Line)
			if f.Column > 0 {
				fmt.Fprintf(&b, ":%d", f.Column)
			}
		}
		b.WriteString(": ")
	}
	fmt.Fprintf(&b, "%s: %s", f.Severity, f.Problem)
	return b.String()
}

// Report is the result of Validate.
type Report struct {
	Findings []Finding `json:"findings"` // sorted by file and place
	Files    int       `json:"files"`    // number of files read
}

// Errors counts the findings that forbid publishing.
func (r Report) Errors() int { return r.count(Error) }

// Warnings counts the findings that do not forbid publishing.
func (r Report) Warnings() int { return r.count(Warning) }

func (r Report) count(s Severity) int {
	n := 0
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// sortFindings sorts by place and removes duplicates.
func sortFindings(all []Finding) []Finding {
	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Problem, b.Problem), cmp.Compare(a.Hint, b.Hint))
	})
	return slices.Compact(all)
}
