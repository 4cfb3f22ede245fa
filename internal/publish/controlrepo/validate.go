package controlrepo

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/puppet"
)

// maxFileBytes is the maximum size of a file to read.
const maxFileBytes = 4 << 20

// settingsFile is the file with the settings of a release for Pulley.
const settingsFile = "pulley.yaml"

// PuppetCheck lets Puppet judge files of dir, and returns the problems.
type PuppetCheck func(ctx context.Context, dir string, files PuppetFiles) []Finding

// PuppetFiles are files of a repository, relative to it.
type PuppetFiles struct {
	Manifests []PuppetFile
	Hiera     []PuppetFile // hiera.yaml files
	Data      []PuppetFile
}

// PuppetFile is a file with the way in which Puppet reads it.
type PuppetFile struct {
	File   string `json:"file"`
	Path   string `json:"path"`             // absolute
	Module string `json:"module,omitempty"` // whose hierarchy it is, or reads it; "" for the environment's
	JSON   bool   `json:"json,omitempty"`
	Names  bool   `json:"names,omitempty"` // what it names is reported
	Site   bool   `json:"site,omitempty"`  // every run reads it

	Namespace string `json:"namespace,omitempty"` // of a manifest in a module: what the names that it defines begin with
}

// Options configure Validate.
type Options struct {
	Puppet    PuppetCheck                      // nil: manifests are scanned but not parsed, and data is read without Ruby
	Ignore    func(path string, dir bool) bool // paths to skip, relative to dir; nil: none
	Vendored  func(path string) bool           // paths of modules that a Puppetfile installs; nil: none
	Committed func(path string) bool           // paths that git has as they are; nil: none
	Ignored   func(path string) bool           // paths that git ignores; nil: none
	Complete  bool                             // no Puppetfile brings more modules
	Found     []Finding                        // of the caller: Refusals and Odd
	Resolver  bool                             // r10k or g10k is installed
	Adopt     bool                             // also make the report for a team that brings the repository
}

// Validate checks the control repository in dir. The error reports a failed read; the report contains the problems of
// the files. It judges only files that Puppet on a node reads, and private keys. It follows links within dir, as Puppet does.
func Validate(ctx context.Context, dir string, opts Options) (report Report, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Report{}, fmt.Errorf("cannot validate %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	r := &reading{
		repo: root.FS(), opts: opts, modes: map[string]fs.FileMode{}, files: map[string][]byte{}, data: map[string][]string{},
		real: map[string]string{}, heads: map[string][]byte{}, linked: map[string]bool{}, tokens: map[string][]token{}, sealed: map[string]bool{}, environments: map[string]*environments.Environment{}, findings: slices.Clone(opts.Found),
	}
	if err = r.list(ctx, dir); err == nil {
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
	modes           map[string]fs.FileMode // all files
	files           map[string][]byte      // files to check
	real            map[string]string      // what links lead to, by the path of each file that is reached by one
	puppetfile      []byte
	brings          map[string]bool                      // modules that it mentions, as asked before
	heads           map[string][]byte                    // the beginnings of hooks
	linked          map[string]bool                      // folders that are links
	data            map[string][]string                  // files that Hiera reads, with the functions that read them
	environmentData func(name string) []string           // functions by which the environment's hiera.yaml reads a file
	loadable        map[string]bool                      // manifests whose names something that nodes read contains
	used            map[string]bool                      // manifests of classes that site manifests include, directly or by others
	tokens          map[string][]token                   // of manifests
	sealed          map[string]bool                      // folders with the checksums of a built module
	environments    map[string]*environments.Environment // valid ones, by file
	moduleNames     map[string]bool                      // made by modules
	named           []Finding                            // what manifests name, of namings
	findings        []Finding
}

func (r *reading) add(f ...Finding) { r.findings = append(r.findings, f...) }

// list records all files, and finds private keys and pointers of Git LFS in them.
func (r *reading) list(ctx context.Context, dir string) error {
	base, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	return r.walk(ctx, base, ".", nil)
}

// walk records the files in a folder. base is the real path of the repository; within holds the real paths of the linked folders on the way.
func (r *reading) walk(ctx context.Context, base, folder string, through []string) error {
	return fs.WalkDir(r.repo, folder, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case name == folder:
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
		case d.Type()&fs.ModeSymlink != 0:
			return r.follow(ctx, base, name, through)
		case !d.Type().IsRegular():
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if len(through) > 0 {
			if r.real[name] = realName(base, name); r.real[name] == "" {
				return nil
			}
		}
		r.modes[name] = info.Mode()
		if path.Base(name) == "checksums.json" { // `puppet module build` writes it
			r.sealed[path.Dir(name)] = true
		}
		return r.look(name)
	})
}

// maxLinked limits the linked folders to follow: links can multiply.
const maxLinked = 1000

// follow records what a link leads to, unless it leads out of the repository, to nothing or back.
func (r *reading) follow(ctx context.Context, base, name string, through []string) error {
	target := realName(base, name)
	info, err := fs.Stat(r.repo, name)
	if err != nil || target == "" || r.opts.Ignore != nil && r.opts.Ignore(target, info.IsDir()) {
		return nil
	}
	if info.Mode().IsRegular() {
		r.modes[name], r.real[name] = info.Mode(), target
		if isHook(name) {
			return r.look(name)
		}
		return nil
	}
	above := realName(base, path.Dir(name))
	if !info.IsDir() || slices.Contains(through, target) || target == "." || above == target || within(target, above) || len(r.linked) >= maxLinked {
		return nil
	}
	r.linked[name] = true
	return r.walk(ctx, base, name, append(slices.Clone(through), target))
}

// realName returns the path of a file without links, relative to base; "" if it is outside or missing.
func realName(base, name string) string {
	target, err := filepath.EvalSymlinks(filepath.Join(base, name))
	if err != nil {
		return ""
	}
	if target, err = filepath.Rel(base, target); err != nil || !filepath.IsLocal(target) {
		return ""
	}
	return filepath.ToSlash(target)
}

// isSite reports whether every run reads the manifest: Puppet looks for them below a folder, but not below links in it.
func (r *reading) isSite(name string) bool {
	if !r.layout.isSite(name) {
		return false
	}
	for dir := path.Dir(name); dir != r.layout.manifest && dir != "."; dir = path.Dir(dir) {
		if r.linked[dir] {
			return false
		}
	}
	return true
}

var privateKey = regexp.MustCompile(`^-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY-----`)

// lfsPointer is how a pointer of Git LFS begins: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
const lfsPointer = "version https://git-lfs.github.com/spec/v1\n"

// look reads the beginning of any file to find private keys and pointers. Every reader of etcd can read a private key in a release.
// A key that git does not track would leave the machine by this release alone.
func (r *reading) look(name string) (err error) {
	f, err := r.repo.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	head, err := io.ReadAll(io.LimitReader(f, 256))
	if isHook(name) {
		r.heads[name] = head
	}
	if err == nil && bytes.HasPrefix(head, []byte(lfsPointer)) && bytes.Contains(head, []byte("\noid sha256:")) {
		r.add(finding(LFSPointer, name, 0, 0, ""))
	}
	if err == nil && privateKey.Match(head) {
		rule := PrivateKey
		if r.opts.Committed != nil && r.opts.Committed(name) {
			rule = CommittedPrivateKey
		}
		r.add(finding(rule, name, 0, 0, ""))
	}
	return err
}

// installed reports whether a path belongs to a module that a Puppetfile installs, or that was built for a module registry.
func (r *reading) installed(name string) bool {
	folder, _, _ := r.layout.module(name)
	return r.opts.Vendored != nil && r.opts.Vendored(name) || r.sealed[folder]
}

// vendored reports whether a path belongs to a module that is not the team's: one that is installed, or a folder that git ignores and that a
// tool such as r10k can have made.
func (r *reading) vendored(name string) bool {
	folder, _, ok := r.layout.module(name)
	if !ok || r.installed(name) || r.opts.Ignored == nil || !r.opts.Ignored(folder) {
		return r.installed(name)
	}
	_, released := r.modes[folder+"/metadata.json"]
	return released || r.mayBring(path.Base(folder))
}

// read reads the files that Puppet reads.
func (r *reading) read() error {
	if err := r.open("environment.conf"); err != nil {
		return err
	}
	if err := r.open("Puppetfile"); err != nil {
		return err
	}
	r.layout, r.puppetfile = parseLayout(string(r.files["environment.conf"])), r.files["Puppetfile"]
	delete(r.files, "environment.conf")
	delete(r.files, "Puppetfile")
	for name := range r.modes {
		_, rest, _ := r.layout.module(name)
		if r.isSite(name) || r.layout.autoloaded(name) != "" || name == "hiera.yaml" || rest == "hiera.yaml" || IsEnvironment(name) || isCloud(name) || isExternalNode(name) || name == settingsFile || path.Base(name) == "puppet.conf" {
			if err := r.open(name); err != nil {
				return err
			}
		}
	}
	reads := map[string]func(string) []string{} // by hiera.yaml
	r.environmentData = func(string) []string { return nil }
	for name, data := range r.files {
		if path.Base(name) == "hiera.yaml" {
			found, test := checkHiera(name, data)
			r.add(found...)
			reads[name] = test
			if name == "hiera.yaml" {
				r.environmentData = test
			}
		}
	}
	if _, has := r.files["hiera.yaml"]; !has {
		r.add(finding(HieraMissing, "hiera.yaml", 0, 0, r.unreadData()))
		r.environmentData, _ = hieradata.DataFiles(nil, ".")
		reads["hiera.yaml"] = r.environmentData
	}
	for name := range r.modes {
		for _, test := range reads {
			for _, function := range test(name) {
				if (isYAML(name) || slices.Contains(dataFunctions, function)) && !slices.Contains(r.data[name], function) {
					r.data[name] = append(r.data[name], function)
				}
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

// unreadData names a folder of data that Puppet does not read without a hiera.yaml.
func (r *reading) unreadData() string {
	count := map[string]int{}
	for name := range r.modes {
		if first, _, below := strings.Cut(name, "/"); below && strings.HasPrefix(first, "hiera") && (isYAML(name) || path.Ext(name) == ".json") {
			count[first]++
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(count)) {
		return fmt.Sprintf("it reads none of the data files in %s (%d)", folder, count[folder])
	}
	return ""
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

// dataFunctions are Puppet's own functions that read a data file whole.
var dataFunctions = []string{"yaml_data", "json_data", "eyaml_lookup_key"}

// readByPuppet reports whether one of Puppet's own functions reads a data file, and whether it reads JSON.
func (r *reading) readByPuppet(name string) (own, isJSON bool) {
	own = slices.ContainsFunc(r.data[name], func(f string) bool { return slices.Contains(dataFunctions, f) })
	return own, own && !slices.ContainsFunc(r.data[name], func(f string) bool { return f != "json_data" })
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
		if own, isJSON := r.readByPuppet(name); own && !isJSON && r.files[name] != nil {
			r.add(checkYAML(name, r.files[name])...)
		}
	}
	r.checkManifests(ctx, dir)
	r.checkHooks()
	r.checkNodes()
	r.checkTrusted()
	r.checkPuppetSettings()
	r.checkClassification()
	r.checkEnvironmentNames()
	r.checkEyaml()
	r.checkStarts()
	r.checkNames()
	r.checkContents()
	r.checkLegacyFacts()
	r.add(r.layout.faults...)
	if all := r.codeDirectories(); len(all) > 0 { // what the folder itself lacks is in them
		r.findings = slices.DeleteFunc(r.findings, func(f Finding) bool {
			return slices.Contains([]Rule{HieraMissing, ManifestsMissing, NodesMissing, EnvironmentMissing, Unclassified}, f.Rule)
		})
		r.add(finding(CodeDirectory, "environments", 0, 0, strings.Join(all[:min(len(all), maxNamed)], ", ")))
	}
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
		if !r.isSite(name) {
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
	r.loadable = r.reached(autoloaded)
	r.askPuppet(ctx, dir, readable)
	r.include(autoloaded)
	for i, f := range r.findings {
		if r.isUnused(f, autoloaded) {
			r.findings[i] = f.unused()
		}
	}
}

// isUnused reports whether a finding prevents reading a file that no node reads: a manifest that is not reached, or data
// of a module without a reached manifest.
func (r *reading) isUnused(f Finding, autoloaded map[string]string) bool {
	switch f.Rule {
	case ManifestSyntax:
		return autoloaded[f.File] != "" && !r.loadable[f.File]
	case HieraConfig, DataSyntax, DataDate, Interpolation, LookupOptions:
		module, _, ok := r.layout.module(f.File)
		if !ok {
			return false
		}
		for name := range r.loadable {
			if within(module, name) {
				return false
			}
		}
		return r.environmentData(f.File) == nil
	}
	return false
}

// checkNodes checks the environments, and that site.pp has declarations for their nodes.
func (r *reading) checkNodes() {
	site := nodeMatchers{}
	manifests := 0
	for name := range r.files {
		if r.isSite(name) {
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

// codeDirectories returns the directory environments of Puppet in the folder, which is then no control repository but holds several.
func (r *reading) codeDirectories() (all []string) {
	for name := range r.modes {
		if _, _, inModule := r.layout.module(name); inModule || name == "environment.conf" || name == "hiera.yaml" {
			return nil
		}
		parts := strings.SplitN(name, "/", 4)
		if len(parts) < 3 || parts[0] != "environments" {
			continue
		}
		if dir := path.Join(parts[:2]...); slices.Contains([]string{"manifests", "modules", "site", "site-modules", "hiera.yaml", "environment.conf", "Puppetfile"}, parts[2]) && !slices.Contains(all, dir) {
			all = append(all, dir)
		}
	}
	slices.Sort(all)
	return all
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

// isTeams reports whether a finding about a module of others is about the team's own code: data that the repository's own hierarchy
// reads, a manifest that does not parse, of a class that its site manifest includes, or a private key in a folder that git ignores,
// unless it is for the tests of the module.
func (r *reading) isTeams(f Finding) bool {
	if f.Rule == PrivateKey && !r.installed(f.File) {
		_, rest, _ := r.layout.module(f.File)
		top, _, _ := strings.Cut(rest, "/")
		return !slices.Contains([]string{"spec", "test", "tests", "examples"}, top)
	}
	return r.environmentData(f.File) != nil || r.used[f.File] && f.Rule == ManifestSyntax
}

// report applies the settings of the repository to the findings.
func (r *reading) report() Report {
	found, settings := checkSettings(r.files[settingsFile], r.files["hiera.yaml"])
	silenced, unknown := parseSilence(settings.Silence)
	r.add(append(found, unknown...)...)
	report := Report{Files: len(r.files), Findings: []Finding{}}
	for _, f := range r.findings {
		if f.File != "" && r.vendored(f.File) && !r.isTeams(f) {
			f = f.inVendored()
		}
		text := r.files[f.File]
		f.File = cmp.Or(r.real[f.File], f.File)
		if silenced.covers(f, text) {
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
