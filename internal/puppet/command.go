package puppet

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"pulley/environments/settings"
	"pulley/hieradata"
	"pulley/internal/child"
	"pulley/internal/facts"
	"pulley/internal/model"
	"pulley/internal/pattern"
	"pulley/internal/shellquote"
)

// ErrMissing means that Puppet is not installed on this machine.
var ErrMissing = errors.New("puppet is not installed")

// aioBin is the folder of the program in the packages of Puppet and OpenVox (not those of the distributions). If the
// program exists there, it takes precedence, because such a package was installed deliberately.
const aioBin = "/opt/puppetlabs/bin"

// searchPath returns the folders in which Puppet and its commands find programs. cron's own PATH lacks most of them.
func searchPath() []string {
	dirs := []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	if _, err := os.Stat(aioBin); err == nil {
		return append([]string{aioBin}, dirs...)
	}
	return dirs
}

// environ returns the complete environment of Puppet. It is the same for cron, a service and a terminal. It never
// contains RUBYLIB, RUBYOPT, FACTER_… or PUPPET_… of the process that started the agent.
func environ() []string {
	home := "/"
	if os.Geteuid() == 0 {
		home = "/root"
	}
	return []string{"PATH=" + strings.Join(searchPath(), ":"), "HOME=" + home, "LANG=C.UTF-8", "LC_ALL=C.UTF-8"}
}

// find returns the path of the Puppet program.
func (p *Puppet) find() (string, error) {
	name := cmp.Or(p.Program, "puppet")
	dirs := searchPath()
	if strings.Contains(name, "/") {
		dirs = []string{""}
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if _, err := exec.LookPath(path); err == nil {
			return filepath.Abs(path)
		}
	}
	if p.Program != "" {
		return "", fmt.Errorf("cannot run %s, which `puppet.program` in agent.yaml names: %w\ncorrect `puppet.program`, or remove it", name, ErrMissing)
	}
	return "", fmt.Errorf("cannot run %s: %w\ninstall it with `pulley-agent bootstrap`, or your distribution's package (Debian, Ubuntu: `apt-get install puppet-agent`)", name, ErrMissing)
}

// Installed checks, without starting Puppet, whether it is installed. It returns ErrMissing otherwise.
func (p *Puppet) Installed() error {
	_, err := p.find()
	return err
}

// command prepares the run's folder. It returns the command, with the run's settings inserted after the subcommand.
func (p *Puppet) command(job model.Job, args ...string) (*child.Command, error) {
	name, err := p.find()
	if err != nil {
		return nil, err
	}
	if err := p.prepare(job); err != nil {
		return nil, err
	}
	sub := 0
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		sub = 1
	}
	all := append([]string{}, args[:sub]...)
	if sub == 1 || len(args) == 0 { // `puppet --version` and similar take no settings
		all = append(all, p.settings(job)...)
	}
	all = append(all, args[sub:]...)
	if sub == 1 && args[0] == "lookup" && !slices.ContainsFunc(args, namesOtherFacts) {
		all = append(all, "--facts", filepath.Join(p.seenDir(job.ID), "conf", trustedFile)) // lookup ignores facts_terminus
	}
	return p.child(name, all), nil
}

// child returns a Puppet. What a catalog leaves stays, as with Puppet alone.
func (p *Puppet) child(name string, args []string) *child.Command {
	return &child.Command{Path: name, Args: args, Env: environ(), Dir: "/", Files: p.ExtraFiles, Grace: p.grace(), Left: child.KeepAll}
}

// namesOtherFacts reports whether an argument of `puppet lookup` chooses the facts.
func namesOtherFacts(arg string) bool {
	return arg == "--facts" || arg == "--node" || strings.HasPrefix(arg, "--facts=") || strings.HasPrefix(arg, "--node=")
}

// settings returns the options of every command line. All others are in the generated puppet.conf: Puppet ignores an
// unknown setting there, but refuses to start with an unknown option.
func (p *Puppet) settings(job model.Job) []string {
	return []string{
		"--confdir", filepath.Join(p.seenDir(job.ID), "conf"),
		"--vardir", filepath.Join(p.Dir, "puppet", "var"),
		"--certname", job.Certname,
		"--environment", job.PuppetEnvironment,
		"--config_version", shellquote.Join([]string{"cat", versionFile(p.seenDir(job.ID))}), // wins over environment.conf only here
		"--color=false",
	}
}

var (
	// Puppet refuses other names of environments.
	environmentName = pattern.Lazy(`^[a-z0-9_]+$`)
	runID           = pattern.Lazy(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	// Puppet refuses other certnames too. The agent checks first, because a newline must not reach a command line or a
	// log.
	certname = pattern.Lazy(`^[a-z0-9._-]+$`)
)

// Patterns are compiled at each start of the agent. Neither counts nor classes of Unicode are in them: these become programs of many KiB.
const maxRunID = 128

// isTag reports whether a text has the form of Puppet's tags. A comma separates them.
func isTag(text string) bool {
	for i, r := range text {
		if !unicode.IsLetter(r) && !unicode.IsNumber(r) && r != '_' && (i == 0 || !strings.ContainsRune(":.-", r)) {
			return false
		}
	}
	return text != ""
}

// CheckTags refuses a text that cannot be a tag of Puppet.
func CheckTags(part model.Part) error {
	for _, t := range slices.Concat(part.Tags, part.SkipTags) {
		if !isTag(t) {
			return fmt.Errorf("cannot use tag %q: Puppet's tags consist of letters, digits, _, :, . and -", t)
		}
	}
	return nil
}

// seenDir returns the run's folder by the name that Puppet and the release see ($settings::confdir and others).
func (p *Puppet) seenDir(id string) string { return cmp.Or(p.seen, p.RunDir(id)) }

// appear lets the link run, which has the same name in all runs, lead to the folder of this run, and returns the inverse. Files with the
// values of $settings would change in each run otherwise. Only a run may call it, after Reap: the folder of a Puppet that still
// runs would be exchanged under it. The link of a run that ended leads to its folder, or nowhere, until the next run.
func (p *Puppet) appear(id string) (vanish func(), err error) {
	if err := p.checkRun(id); err != nil {
		return nil, err
	}
	link := filepath.Join(p.Dir, "run")
	next := link + ".next"
	_ = os.Remove(next) // of an agent that was killed
	if err = os.MkdirAll(p.Dir, 0o700); err == nil {
		err = os.Symlink(filepath.Join("runs", id), next)
	}
	if err == nil {
		err = os.Rename(next, link)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot prepare run %s: %w", id, err)
	}
	p.seen = link
	return func() { p.seen = "" }, nil
}

// prepare creates the run's folder with everything that Puppet reads besides the release and the data. Puppet sees the folder as run.
//
//	runs/<id>/conf/puppet.conf           the settings
//	runs/<id>/code/environments/<env>    → the release's tree, so that $environment keeps its name
//	runs/<id>/facts.d/pulley.json        the structured fact `pulley`
//	runs/<id>/config_version             the version of the catalog
//	runs/<id>/hiera.yaml                 the global layer
//	runs/<id>/conf/trusted.json          the value of $trusted
//	runs/<id>/conf/external_node.yaml    the answer of the external node classifier, if the release has one
//	runs/<id>/conf/pulley.json           settings of the types that a run without a server changes
//	runs/<id>/lib                        a libdir without files that an old agent synchronised; it has only what
//	                                     hands trusted.json and pulley.json to Puppet, and reports to its processors
//	runs/<id>/modules                    links to the installed modules of Puppet's core types, and nothing else
//	runs/<id>/unsent.json                the report processors that have not taken the run's report
//	runs/<id>/facts.json                 the facts of the run, for keepFacts
//	runs/<id>/state                      Puppet's state of a noop run
//	runs/<id>/data                       → the live data, or an empty folder: with "", a release's
//	                                     "%{facts.pulley.data}/node.yaml" would be a file in the root folder
//	runs/<id>/puppet.log, report.yaml, summary.yaml    the output of the run
func (p *Puppet) prepare(job model.Job) error {
	if err := p.checkJob(job); err != nil {
		return err
	}
	release, err := ReadReleaseSettings(job.Tree)
	if err != nil {
		return err
	}
	external, err := externalNode(job)
	if err != nil {
		return err
	}
	given, err := givenSettings(job)
	if err != nil {
		return err
	}
	retrieved := json.RawMessage("{}")
	if given["trusted_external_command"] != "" {
		known, err := p.Facts()
		if err != nil {
			p.log().Warn("cannot read the facts of this machine", "error", err)
		}
		if last := facts.At(known, "trusted.external"); last != nil {
			retrieved = last
		}
	}
	trusted, err := trustedSettings(job, retrieved)
	if err != nil {
		return err
	}
	reports, err := p.reportsOf(job)
	if err != nil { // reports never end a run
		p.log().Warn("no report processor receives this run's report", "error", err)
	}
	if err := p.write(job, inputs{release, given, trusted, external, reports}); err != nil {
		return fmt.Errorf("cannot prepare run %s: %w", job.ID, err)
	}
	return nil
}

// checkRun refuses a run that has no folder of its own.
func (p *Puppet) checkRun(id string) error {
	switch {
	case len(id) > maxRunID || !runID().MatchString(id):
		return fmt.Errorf("cannot prepare a run: %q is not a run id", id)
	case !filepath.IsAbs(p.Dir):
		return fmt.Errorf("cannot prepare run %s: state folder %q is not absolute", id, p.Dir)
	}
	return nil
}

// checkJob refuses a job that must not reach a command line or a path.
func (p *Puppet) checkJob(job model.Job) error {
	if err := p.checkRun(job.ID); err != nil {
		return err
	}
	switch {
	case !environmentName().MatchString(job.PuppetEnvironment):
		return fmt.Errorf("cannot prepare run %s: %q is not the name of a Puppet environment: lower-case letters, digits and _ only", job.ID, job.PuppetEnvironment)
	case !certname().MatchString(job.Certname):
		return fmt.Errorf("cannot prepare run %s: %q is not a certname: lower-case letters, digits, dots, - and _ only", job.ID, job.Certname)
	}
	if err := CheckTags(job.Part); err != nil {
		return err
	}
	if info, err := os.Stat(job.Tree); err != nil || !info.IsDir() {
		return fmt.Errorf("cannot prepare run %s: release %q is not a folder: %w", job.ID, job.Tree, cmp.Or(err, os.ErrInvalid))
	}
	return nil
}

// inputs are what a run takes from its release and its node.
type inputs struct {
	release           ReleaseSettings
	settings          map[string]string // of Puppet
	trusted, external []byte            // external is nil without external nodes
	reports           Reports
}

func (p *Puppet) write(job model.Job, in inputs) error {
	dir, own := p.RunDir(job.ID), filepath.Join(p.Dir, "puppet")
	lib := filepath.Join(dir, "lib")
	terminusDir := filepath.Join(lib, "puppet", "indirector", "facts")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for _, d := range []string{
		dir, filepath.Join(dir, "conf"), filepath.Dir(p.environmentDir(job)), filepath.Join(dir, "facts.d"), terminusDir, filepath.Join(lib, "pulley"), filepath.Join(dir, "modules"),
		filepath.Join(dir, "state"), own, filepath.Join(own, "var", "state"), filepath.Join(own, "ssl"), filepath.Join(own, "run"), filepath.Join(own, "log"),
	} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	ofPulley, err := json.MarshalIndent(map[string]any{"pulley": map[string]any{
		"environment": job.PuppetEnvironment, "role": job.Role, "node": job.Node,
		"release": job.Target.Release, "generation": job.Target.Data, "data": filepath.Join(p.seenDir(job.ID), "data"),
	}}, "", "  ")
	if err != nil {
		return err
	}
	layers := job.Data
	if in.release.LiveData == LiveDataInHierarchy {
		layers = ""
	}
	hiera, err := globalLayer(layers, job.Hosts)
	if err != nil {
		return err
	}
	ofRun, err := json.Marshal(typeSettings{Secrets: p.hasSecrets(job), StaysOff: p.StaysOff, Preview: job.Preview})
	if err != nil {
		return err
	}
	if err := p.placeCertificate(filepath.Join(own, "ssl"), job.Certname); err != nil {
		return err
	}
	core, err := p.linkCoreTypes(filepath.Join(dir, "modules"))
	if err != nil {
		return err
	}
	if err := os.Symlink(job.Tree, p.environmentDir(job)); err != nil {
		return err
	}
	if job.Data == "" {
		err = os.Mkdir(filepath.Join(dir, "data"), 0o700)
	} else {
		err = os.Symlink(job.Data, filepath.Join(dir, "data"))
	}
	if err != nil {
		return err
	}
	node, err := placeExternalNode(filepath.Join(dir, "conf"), filepath.Join(p.seenDir(job.ID), "conf"), in.external)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "conf", "puppet.conf"), p.puppetConf(job, core, in, node), 0o600),
		p.placeReporter(dir, in.reports),
		os.WriteFile(filepath.Join(dir, "conf", trustedFile), in.trusted, 0o600),
		os.WriteFile(filepath.Join(terminusDir, "pulley.rb"), terminus, 0o600),
		os.WriteFile(filepath.Join(lib, "pulley", "types.rb"), types, 0o600),
		os.WriteFile(filepath.Join(dir, "conf", "pulley.json"), ofRun, 0o600),
		os.WriteFile(filepath.Join(dir, "facts.d", "pulley.json"), ofPulley, 0o600),
		os.WriteFile(filepath.Join(dir, "hiera.yaml"), hiera, 0o600),
		os.WriteFile(versionFile(dir), []byte(ownVersion(job.Target.Release, Deployed(job.Tree))+"\n"), 0o600),
	)
}

// environmentDir returns the environment's folder in the run, a link to the release's tree.
func (p *Puppet) environmentDir(job model.Job) string {
	return filepath.Join(p.RunDir(job.ID), "code", "environments", job.PuppetEnvironment)
}

// partOptions returns the options of a run that makes no changes, or applies a part of its catalog.
func partOptions(job model.Job) (args []string) {
	if job.Noop {
		args = append(args, "--noop")
	}
	if len(job.Tags) > 0 {
		args = append(args, "--tags", strings.Join(job.Tags, ","))
	}
	if len(job.SkipTags) > 0 {
		args = append(args, "--skip_tags", strings.Join(job.SkipTags, ","))
	}
	return args
}

// confHeader begins a run's puppet.conf. The settings of the environment file follow; they can neither name nor change those after them.
const confHeader = "# written anew for each run\n[main]\ndisable_i18n = true\n"

// writeSettings writes settings of a run's puppet.conf, and those that all runs have. Folders that runs share are below own.
func (p *Puppet) writeSettings(b *strings.Builder, job model.Job, core bool, own string, settings ...[2]string) {
	dir := p.seenDir(job.ID)
	if job.Noop { // Puppet would record when it checked each resource, and skip those with a schedule in the next run
		settings = append(settings, [2]string{"statefile", filepath.Join(dir, "state", "state.yaml")}, [2]string{"transactionstorefile", filepath.Join(dir, "state", "transactionstore.yaml")})
	}
	if core {
		settings = append(settings, [2]string{"vendormoduledir", filepath.Join(dir, "modules")})
	}
	settings = append(settings, [][2]string{
		{"basemodulepath", filepath.Join(dir, "modules")},
		{"statedir", filepath.Join(own, "var", "state")},
		{"publicdir", filepath.Join(own, "var", "public")},
		{"rundir", filepath.Join(own, "run")},
		{"logdir", filepath.Join(own, "log")},
		{"lastrunreport", filepath.Join(dir, "report.yaml")},
		{"lastrunfile", filepath.Join(dir, "summary.yaml")},
		{"write_catalog_summary", "true"},
		{"classfile", filepath.Join(dir, "classes.txt")},
		{"resourcefile", filepath.Join(dir, "resources.txt")},
		{"report", "true"},
	}...)
	for _, s := range settings {
		fmt.Fprintf(b, "%s = %s\n", s[0], s[1])
	}
}

// puppetConf returns the run's puppet.conf. It sets the folders whose default does not follow vardir in every packaging
// of Puppet. It sets `reports = none`, because nothing would remove stored reports. With core, Puppet's types
// come from the run's modules, whatever modulepath the release has, as in Puppet's own packages. node has the settings
// that classify the node.
func (p *Puppet) puppetConf(job model.Job, core bool, in inputs, node [][2]string) []byte {
	dir, own := p.seenDir(job.ID), filepath.Join(p.Dir, "puppet")
	var b strings.Builder
	b.WriteString(confHeader)
	writeGiven(&b, in.settings)
	if in.reports.URL != "" {
		fmt.Fprintf(&b, "reporturl = %s\nreport_include_system_store = true\n", in.reports.URL)
	}
	if job.Preview {
		b.WriteString("show_diff = true\n") // types.rb turns it off for a release with secrets
	}
	p.writeSettings(&b, job, core, own, append([][2]string{
		{"codedir", filepath.Join(dir, "code")}, // $codedir/environments/$environment is the release, as everywhere
		{"environmentpath", filepath.Join(dir, "code", "environments")},
		{"libdir", filepath.Join(dir, "lib")},
		{"factpath", settings.FactPath(filepath.Join(dir, "lib", "facter"), in.settings)},
		{"pluginfactdest", filepath.Join(dir, "facts.d")},
		{"hiera_config", filepath.Join(dir, "hiera.yaml")},
		{"ssldir", filepath.Join(own, "ssl")},
		{"reports", "none"},
		{"storeconfigs", "false"},
		{"log_level", "notice"},      // a notice: `Compiled catalog`, the proof that classify needs
		{"facts_terminus", "pulley"}, // of the libdir
	}, node...)...)
	return []byte(b.String())
}

// globalLayer returns the hiera.yaml above the release's own. It is generated even without layers: otherwise Puppet
// would use the machine's /etc/puppet/hiera.yaml. It is written as JSON, which is valid YAML and needs no special
// quoting. The file hosts is below the layers of live data: operators may override it.
func globalLayer(layers, hosts string) ([]byte, error) {
	type level struct {
		Name    string `json:"name"`
		Path    string `json:"path"`
		Datadir string `json:"datadir,omitempty"`
		Hash    string `json:"data_hash,omitempty"`
	}
	hiera := struct {
		Version   int               `json:"version"`
		Defaults  map[string]string `json:"defaults,omitempty"`
		Hierarchy []level           `json:"hierarchy"`
	}{Version: 5, Hierarchy: []level{}}
	if layers != "" {
		hiera.Defaults = map[string]string{"datadir": layers, "data_hash": "yaml_data"}
		levels, err := hieradata.ReadLevels(layers, "", "")
		if err != nil {
			return nil, err
		}
		for _, l := range levels {
			hiera.Hierarchy = append(hiera.Hierarchy, level{Name: "Pulley " + l.Name + " layer", Path: l.File()})
		}
	}
	if hosts != "" {
		hiera.Hierarchy = append(hiera.Hierarchy, level{Name: "Pulley hosts", Path: filepath.Base(hosts), Datadir: filepath.Dir(hosts), Hash: "json_data"})
	}
	return json.MarshalIndent(hiera, "", "  ")
}
