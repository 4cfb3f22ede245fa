package controlrepo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"pulley/agent/puppet"
	"pulley/environments"
)

// maxFileBytes is the maximum size of a file to read.
const maxFileBytes = 4 << 20

// settingsFile is the file with the settings of a release for Pulley.
const settingsFile = "pulley.yaml"

// ManifestCheck parses manifests, given relative to dir, and returns the problems.
type ManifestCheck func(ctx context.Context, dir string, files []string) []Finding

// Options configure Validate.
type Options struct {
	Manifests ManifestCheck                    // nil: manifests are scanned but not parsed
	Ignore    func(path string, dir bool) bool // paths to skip, relative to dir; nil: none
	Vendored  func(path string) bool           // paths of modules that a Puppetfile installs; nil: none
	Committed func(path string) bool           // paths that git has as they are; nil: none
	Found     []Finding                        // of the caller: Refusals and Odd
	Adopt     bool                             // also make the report for a team that brings the repository
}

// Validate checks the control repository in dir. The error reports a failed read; the report contains the problems of
// the files. It judges only files that Puppet on a node reads, and private keys. Validate does not follow symbolic links.
func Validate(ctx context.Context, dir string, opts Options) (report Report, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Report{}, fmt.Errorf("cannot validate %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	r := &reading{
		repo: root.FS(), opts: opts, modes: map[string]fs.FileMode{}, files: map[string][]byte{}, data: map[string]bool{},
		tokens: map[string][]token{}, sealed: map[string]bool{}, environments: map[string]*environments.Environment{}, findings: slices.Clone(opts.Found),
	}
	if err = r.list(ctx); err == nil {
		err = r.read()
	}
	if err != nil {
		return Report{}, fmt.Errorf("cannot validate %s: %w", dir, err)
	}
	r.check(ctx, dir)
	if err := ctx.Err(); err != nil { // a signal, and no fault of the manifests
		return Report{}, fmt.Errorf("cannot validate %s: %w", dir, err)
	}
	return r.report(), nil
}

// reading holds the files that Validate has read.
type reading struct {
	repo            fs.FS
	opts            Options
	layout          layout
	modes           map[string]fs.FileMode               // all files
	files           map[string][]byte                    // files to check
	data            map[string]bool                      // files that Hiera reads
	environmentData func(name string) bool               // files that the environment's hiera.yaml names
	tokens          map[string][]token                   // of manifests
	sealed          map[string]bool                      // folders with the checksums of a built module
	environments    map[string]*environments.Environment // valid ones, by file
	findings        []Finding
}

func (r *reading) add(f ...Finding) { r.findings = append(r.findings, f...) }

// list records all files, and finds private keys in them.
func (r *reading) list(ctx context.Context) error {
	return fs.WalkDir(r.repo, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case name == ".":
			return nil
		case !utf8.ValidString(name): // an fs.FS cannot open it, and Puppet code cannot name it
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case path.Base(name) == ".git", r.opts.Ignore != nil && r.opts.Ignore(name, d.IsDir()):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case !d.Type().IsRegular():
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		r.modes[name] = info.Mode()
		if path.Base(name) == "checksums.json" { // `puppet module build` writes it
			r.sealed[path.Dir(name)] = true
		}
		return r.look(name)
	})
}

var privateKey = regexp.MustCompile(`^-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY-----`)

// look reads the beginning of any file to find private keys. Every reader of etcd can read a private key in a release.
// A key that git does not track would leave the machine by this release alone.
func (r *reading) look(name string) (err error) {
	f, err := r.repo.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	head, err := io.ReadAll(io.LimitReader(f, 256))
	if err == nil && privateKey.Match(head) {
		rule := PrivateKey
		if r.opts.Committed != nil && r.opts.Committed(name) {
			rule = CommittedPrivateKey
		}
		r.add(finding(rule, name, 0, 0, ""))
	}
	return err
}

// vendored reports whether a path belongs to a module of somebody else: one that a Puppetfile installs, or one that was
// built for a module registry.
func (r *reading) vendored(name string) bool {
	if r.opts.Vendored != nil && r.opts.Vendored(name) {
		return true
	}
	folder, _, _ := r.layout.module(name)
	return folder != "" && r.sealed[folder]
}

// read reads the files that Puppet reads.
func (r *reading) read() error {
	if err := r.open("environment.conf"); err != nil {
		return err
	}
	r.layout = parseLayout(string(r.files["environment.conf"]))
	delete(r.files, "environment.conf")
	for name := range r.modes {
		_, rest, _ := r.layout.module(name)
		if r.layout.isSite(name) || r.layout.autoloaded(name) != "" || name == "hiera.yaml" || rest == "hiera.yaml" || IsEnvironment(name) || isCloud(name) || isExternalNode(name) || name == settingsFile || path.Base(name) == "puppet.conf" {
			if err := r.open(name); err != nil {
				return err
			}
		}
	}
	var reads []func(string) bool
	r.environmentData = func(string) bool { return false }
	for name, data := range r.files {
		if path.Base(name) == "hiera.yaml" {
			found, test := checkHiera(name, data)
			r.add(found...)
			reads = append(reads, test)
			if name == "hiera.yaml" {
				r.environmentData = test
			}
		}
	}
	if _, has := r.files["hiera.yaml"]; !has {
		r.add(finding(HieraMissing, "hiera.yaml", 0, 0, ""))
		reads = append(reads, func(name string) bool { return name == "data/common.yaml" })
	}
	for name := range r.modes {
		for _, test := range reads {
			if isYAML(name) && test(name) {
				r.data[name] = true
			}
		}
	}
	for name := range r.data {
		if err := r.open(name); err != nil {
			return err
		}
	}
	return nil
}

// open reads a file, if it is in the repository.
func (r *reading) open(name string) error {
	if _, has := r.modes[name]; !has {
		return nil
	}
	info, err := fs.Stat(r.repo, name)
	if err != nil {
		return err
	}
	if info.Size() > maxFileBytes {
		r.add(finding(NotChecked, name, 0, 0, fmt.Sprintf("%d bytes, and at most %d are read", info.Size(), maxFileBytes)))
		return nil
	}
	data, err := fs.ReadFile(r.repo, name)
	if err == nil {
		r.files[name] = data
	}
	return err
}

// lex returns the tokens of a manifest.
func (r *reading) lex(name string) []token {
	tokens, has := r.tokens[name]
	if !has {
		tokens = lex(string(r.files[name]))
		r.tokens[name] = tokens
	}
	return tokens
}

func isYAML(name string) bool {
	return path.Ext(name) == ".yaml" || path.Ext(name) == ".yml" || path.Ext(name) == ".eyaml"
}

// IsEnvironment reports whether a file of a control repository is an environment file.
func IsEnvironment(name string) bool { return path.Dir(name) == "environments" && isYAML(name) }

func isExternalNode(name string) bool {
	return path.Dir(name) == puppet.ExternalNodes && path.Ext(name) == ".yaml"
}

func isCloud(name string) bool { return path.Dir(name) == "clouds" && isYAML(name) }

func (r *reading) check(ctx context.Context, dir string) {
	for name := range r.data {
		if data, has := r.files[name]; has {
			r.add(checkYAML(name, data)...)
		}
	}
	r.checkManifests(ctx, dir)
	for name, mode := range r.modes {
		if isHook(name) && mode.Perm()&0o111 == 0 {
			r.add(finding(NotExecutable, name, 0, 0, ""))
		}
	}
	r.checkNodes()
	r.checkTrusted()
	r.checkPuppetSettings()
	r.checkClassification()
	r.checkEnvironmentNames()
	r.checkEyaml()
	for _, o := range r.layout.outside {
		r.add(finding(ModulepathOutside, "environment.conf", o.line, 0, o.folder))
	}
	for _, o := range r.layout.literal {
		r.add(finding(UnusedEnvironment, "environment.conf", o.line, 0, o.folder))
	}
}

// checkManifests parses the manifests that Puppet reads, with one run of Puppet, and scans them.
func (r *reading) checkManifests(ctx context.Context, dir string) {
	autoloaded := map[string]string{} // name by file
	var readable []string
	for name, data := range r.files {
		if path.Ext(name) != ".pp" {
			continue
		}
		if !r.layout.isSite(name) {
			autoloaded[name] = r.layout.autoloaded(name)
		}
		if line := invalidUTF8(data); line > 0 {
			r.add(finding(ManifestSyntax, name, line, 0, "the line is not UTF-8"))
		} else {
			readable = append(readable, name)
		}
		r.add(scan(name, string(data), r.lex(name))...)
	}
	slices.Sort(readable)
	if r.opts.Manifests != nil && len(readable) > 0 {
		r.add(r.opts.Manifests(ctx, dir, readable)...)
	}
	reached := r.reached(autoloaded)
	for i, f := range r.findings {
		if r.isUnused(f, autoloaded, reached) {
			r.findings[i] = f.unused()
		}
	}
}

// isUnused reports whether a finding prevents reading a file that no node reads: a manifest that is not reached, or data
// of a module without a reached manifest.
func (r *reading) isUnused(f Finding, autoloaded map[string]string, reached map[string]bool) bool {
	switch f.Rule {
	case ManifestSyntax:
		return autoloaded[f.File] != "" && !reached[f.File]
	case HieraConfig, DataSyntax, DataDate, Interpolation:
		module, _, ok := r.layout.module(f.File)
		if !ok {
			return false
		}
		for name := range reached {
			if within(module, name) {
				return false
			}
		}
		return !r.environmentData(f.File)
	}
	return false
}

// checkNodes checks the environments, and that site.pp has declarations for their nodes.
func (r *reading) checkNodes() {
	site := nodeMatchers{}
	manifests := 0
	for name := range r.files {
		if r.layout.isSite(name) {
			manifests++
			site.collect(r.lex(name))
		}
	}
	place := r.layout.manifest
	if place == "manifests" {
		place = "manifests/site.pp"
	}
	switch {
	case len(r.modes) == 0:
		r.add(finding(Refused, "", 0, 0, "it has no files, or .pulleyignore leaves out all of them"))
	case r.layout.manifest == "": // outside of the repository
	case manifests == 0:
		r.add(finding(ManifestsMissing, place, 0, 0, r.elsewhere()))
	case !site.any:
		r.add(finding(NodesMissing, place, 0, 0, ""))
	}
	seen, clouds := 0, r.checkClouds()
	for name, data := range r.files {
		if !IsEnvironment(name) {
			continue
		}
		seen++
		e, err := load(name, data, clouds)
		if err != nil {
			r.add(environmentFindings(name, err)...)
			continue
		}
		r.environments[name] = e
		if site.any {
			r.add(site.missingRoles(name, data, e)...)
		}
	}
	if seen == 0 {
		r.add(finding(EnvironmentMissing, "environments", 0, 0, ""))
	}
}

// elsewhere names a folder below that looks like the control repository: the wrong folder is a common first mistake.
func (r *reading) elsewhere() string {
	for _, name := range slices.Sorted(maps.Keys(r.modes)) {
		for _, root := range []string{"/environment.conf", "/Puppetfile", "/manifests/site.pp"} {
			if dir, found := strings.CutSuffix(name, root); found && strings.Count(dir, "/") < 2 && !strings.HasPrefix(dir, "modules/") {
				return fmt.Sprintf("%s contains %s; to publish that folder, name it", dir, strings.TrimPrefix(root, "/"))
			}
		}
	}
	return ""
}

// report applies the settings of the repository to the findings.
func (r *reading) report() Report {
	found, settings := checkSettings(r.files[settingsFile], r.files["hiera.yaml"])
	silenced, unknown := parseSilence(settings.Silence)
	r.add(append(found, unknown...)...)
	report := Report{Files: len(r.files), Findings: []Finding{}}
	for _, f := range r.findings {
		if f.File != "" && r.vendored(f.File) {
			f = f.inVendored()
		}
		if silenced.covers(f, r.files[f.File]) {
			report.Silenced++
			continue
		}
		report.Findings = append(report.Findings, f)
	}
	report.Findings = append(report.Findings, r.unused(silenced)...)
	report.Findings = sortFindings(report.Findings)
	if r.opts.Adopt {
		report.Adoption = r.survey(report.Findings)
	}
	return report
}
