package puppet_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/model"
	"pulley/internal/puppet"
	"pulley/internal/testbed/puppettest"
)

// On a machine without Puppet, the error must contain the remedy.
func TestMissingPuppetErrorHasRemedy(t *testing.T) {
	_, p, job := machine(t, "")
	p.Program = filepath.Join(t.TempDir(), "puppet")
	_, err := p.Apply(t.Context(), job)
	if !errors.Is(err, puppet.ErrMissing) || !strings.Contains(err.Error(), p.Program+", which `puppet.program`") || !strings.Contains(err.Error(), "\ncorrect `puppet.program`, or remove it") {
		t.Errorf("error %v", err)
	}
	if err := p.Installed(); !errors.Is(err, puppet.ErrMissing) {
		t.Errorf("version: error %v", err)
	}
}

// A package or another installation can replace Puppet by one that is too old: its own error names an option or nothing, and never its version.
func TestRunNamesPuppetThatIsTooOld(t *testing.T) {
	for version, old := range map[string]bool{"5.5.22": true, "7.23.0": false, "": false} {
		_, p, job := machine(t, "")
		p.Program += "-other"
		write(t, p.Program, "#!/bin/sh\n[ \"$1\" != --version ] || exec echo "+version+"\necho 'Error: Could not parse application options: invalid option: --x' >&2\nexit 1\n")
		if err := os.Chmod(p.Program, 0o755); err != nil {
			t.Fatal(err)
		}
		r, err := p.Apply(t.Context(), job)
		if err != nil || r.Outcome != model.Failed || (r.Problem.Code == model.PuppetTooOld) != old {
			t.Errorf("%q: %+v, %v", version, r, err)
		}
		if text := string(r.Problem.Text); old && (!strings.HasPrefix(text, "cannot use Puppet 5.5.22 ("+p.Program+"): Pulley needs Puppet 7 or newer") || !strings.Contains(text, "\nupgrade Puppet")) {
			t.Errorf("it says %q", text)
		}
	}
}

// A name from etcd or a file must not become a path, an option or a line of puppet.conf.
func TestInvalidNamesAreRefused(t *testing.T) {
	for what, spoil := range map[string]func(p *puppet.Puppet, job *model.Job){
		"id with a slash": func(_ *puppet.Puppet, j *model.Job) { j.ID = "../../etc" }, "no id": func(_ *puppet.Puppet, j *model.Job) { j.ID = "" },
		"environment":      func(_ *puppet.Puppet, j *model.Job) { j.PuppetEnvironment = "dev-1" },
		"environment path": func(_ *puppet.Puppet, j *model.Job) { j.PuppetEnvironment = ".." },
		"certname":         func(_ *puppet.Puppet, j *model.Job) { j.Certname = "a\nb" }, "no certname": func(_ *puppet.Puppet, j *model.Job) { j.Certname = "" },
		"no tree": func(_ *puppet.Puppet, j *model.Job) { j.Tree += "/gone" }, "relative folder": func(p *puppet.Puppet, _ *model.Job) { p.Dir = "agent" },
		"unwritable folder": func(p *puppet.Puppet, j *model.Job) { p.Dir = filepath.Join(j.Tree, "manifests", "site.pp") },
	} {
		dir, p, job := machine(t, "")
		spoil(p, &job)
		if _, err := p.Apply(t.Context(), job); err == nil || strings.Count(err.Error(), "\n") > 0 {
			t.Errorf("%s: error %v", what, err)
		}
		if starts := puppettest.Starts(t, dir); len(starts) != 0 {
			t.Errorf("%s: Puppet was started", what)
		}
		if _, err := os.Lstat("agent"); err == nil {
			t.Fatalf("%s: a folder in the working folder was created", what)
		}
	}
}

// Before a run, nothing that Puppet can see may change: prepare must not write into the release.
func TestRunDoesNotChangeRelease(t *testing.T) {
	dir, p, job := machine(t, "")
	write(t, filepath.Join(dir, "tree", "manifests", "site.pp"), "# fake: file "+dir+"/motd hello\n")
	list := func() (names []string) {
		_ = filepath.WalkDir(filepath.Join(dir, "tree"), func(path string, _ fs.DirEntry, _ error) error { names = append(names, path); return nil })
		return names
	}
	before := list()
	for range 2 { // the same id again: an interrupted run is repeated
		if result, err := p.Apply(t.Context(), job); err != nil || result.Kind != model.Success {
			t.Fatalf("%+v, %v", result, err)
		}
	}
	if after := list(); !slices.Equal(before, after) {
		t.Errorf("release before %q, after %q", before, after)
	}
}

// The inherited file lock shows the next agent that Puppet still runs.
func TestExtraFilesStayOpenInPuppet(t *testing.T) {
	dir, p, job := machine(t, "# fake: sleep 300\n")
	p.Deadline = 500 * time.Millisecond
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	p.ExtraFiles = []*os.File{lock}
	done := make(chan error)
	go func() { _, err := p.Apply(t.Context(), job); done <- err }()
	var pid []byte
	eventually(t, "Puppet runs", func() bool {
		pid, _ = os.ReadFile(filepath.Join(dir, "var", "state", "agent_catalog_run.lock"))
		return len(pid) > 0
	})
	if target, err := os.Readlink("/proc/" + string(pid) + "/fd/3"); err != nil || target != lock.Name() {
		t.Errorf("Puppet's fd 3 is %q (%v), want %s", target, err, lock.Name())
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// `pulley-agent puppet -- …` must use the settings of a run, and options without a subcommand must work.
func TestSettingsFollowSubcommand(t *testing.T) {
	_, p, job := machine(t, "")
	cmd, err := p.Command(job, "lookup", "x", "--explain")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"lookup", "--confdir", p.RunDir("1") + "/conf", "--vardir", p.Dir + "/puppet/var", "--certname", "web1.example",
		"--environment", "dev", "--config_version", "cat " + p.RunDir("1") + "/config_version", "--color=false", "x", "--explain",
		"--facts", p.RunDir("1") + "/conf/trusted.json"}
	if !slices.Equal(cmd.Args, want) {
		t.Errorf("arguments\n%q, want\n%q", cmd.Args, want)
	}
	if cmd, err = p.Command(job, "lookup", "x", "--facts", "mine.json"); err != nil || slices.Contains(cmd.Args, p.RunDir("1")+"/conf/trusted.json") {
		t.Errorf("arguments %q, %v; want the operator's own facts only", cmd.Args, err)
	}
	if cmd, err = p.Command(job, "--version"); err != nil || !slices.Equal(cmd.Args, []string{"--version"}) {
		t.Errorf("arguments %q, %v", cmd.Args, err)
	}
}

// Puppet code hands $settings::hostcert and hostprivkey to services: the files must exist, and follow a renewal.
func TestCertificateIsPlaced(t *testing.T) {
	dir, p, job := machine(t, "")
	block := func(kind, text string) string {
		return "-----BEGIN " + kind + "-----\n" + text + "\n-----END " + kind + "-----\n"
	}
	placed := func(name string) string {
		t.Helper()
		if result, err := p.Apply(t.Context(), job); err != nil || result.Problem.Text != "" {
			t.Fatalf("run: %+v, %v", result.Problem, err)
		}
		path := filepath.Join(p.Dir, "puppet/ssl", name)
		text, _ := os.ReadFile(path)
		if info, err := os.Stat(path); err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
		return string(text)
	}
	if got := placed("certs/web1.example.pem"); got != "" {
		t.Errorf("without an identity there is a certificate: %q", got)
	}
	p.Certificate = puppet.Certificate{Identity: filepath.Join(dir, "node.pem"), CAs: filepath.Join(dir, "ca.pem")}
	for _, text := range []string{"AAAA", "BBBB"} {
		write(t, p.Certificate.Identity, block("PRIVATE KEY", text)+block("CERTIFICATE", text))
		write(t, p.Certificate.CAs, block("CERTIFICATE", "CCCC"))
		if got := placed("certs/web1.example.pem"); got != block("CERTIFICATE", text) {
			t.Errorf("certificate %q", got)
		}
		if got := placed("private_keys/web1.example.pem"); got != block("PRIVATE KEY", text) {
			t.Errorf("key %q", got)
		}
	}
	// The certificate of a former agent, under its own name.
	p.Certificate.SSLDir = filepath.Join(dir, "former")
	write(t, filepath.Join(dir, "former/certs/old.pem"), "old cert\n")
	write(t, filepath.Join(dir, "former/certs/ca.pem"), "old ca\n")
	if _, err := p.Apply(t.Context(), job); err == nil || !strings.Contains(err.Error(), "nor exactly one private key") {
		t.Errorf("error %v", err)
	}
	write(t, filepath.Join(dir, "former/private_keys/old.pem"), "old key\n")
	for name, want := range map[string]string{"certs/web1.example.pem": "old cert\n", "private_keys/web1.example.pem": "old key\n", "certs/ca.pem": "old ca\n"} {
		if got := placed(name); got != want {
			t.Errorf("%s has %q", name, got)
		}
	}
}

// A typing mistake in pulley.yaml would silently put live data at the wrong position.
func TestReleaseSettingsAreStrict(t *testing.T) {
	for text, want := range map[string]puppet.LiveData{
		"": puppet.LiveDataAbove, "---\n": puppet.LiveDataAbove, "{}": puppet.LiveDataAbove,
		"live_data: above": puppet.LiveDataAbove, "live_data: hierarchy\n": puppet.LiveDataInHierarchy,
		"live_data: Above": "", "livedata: above": "", "live_data: [above]": "", "- live_data": "", "live_data:": "",
		"silence: {exported_resource: [site]}\nlive_data: hierarchy": puppet.LiveDataInHierarchy, "silence: [exported_resource]": "",
		"live_data: above\nlive_data: hierarchy": "", "a: [": "", "\t": "", "live_data: above\n---\nlive_data: above": "",
	} {
		s, err := puppet.ParseReleaseSettings([]byte(text))
		var refused *puppet.ReleaseError
		if want == "" && !errors.As(err, &refused) || want != "" && (err != nil || s.LiveData != want) {
			t.Errorf("%q: %+v, %v; want %q", text, s, err, want)
		}
	}
}

func FuzzParseReleaseSettings(f *testing.F) {
	for _, text := range []string{"live_data: hierarchy\n", "live_data: *a", "&a [*a]", "a: [", "? ? ?", "live_data: !!binary x"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := puppet.ParseReleaseSettings(data)
		if err == nil && s.LiveData != puppet.LiveDataAbove && s.LiveData != puppet.LiveDataInHierarchy {
			t.Errorf("settings %+v without an error", s)
		}
	})
}

// An answer of a classifier must never crash the agent, and what it accepts must be what Puppet reads.
func FuzzParseExternalNode(f *testing.F) {
	for _, seed := range []string{"classes: [a]\n", "classes:\n  a:\n  b: {c: 1}\nparameters: {x: yes}\nenvironment: p\n", "---\n:classes: {}\n", "oops", "", "classes: *x\n", "a: &a [*a]\nclasses: []\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := puppet.ParseExternalNode(data)
		if err != nil {
			return
		}
		if len(n.Text) == 0 {
			t.Error("an accepted answer has no text")
		}
	})
}

// A tag that Puppet refuses, or a comma in one, would run other resources than those that the operator named.
func TestTagsHaveThePuppetForm(t *testing.T) {
	for text, is := range map[string]bool{
		"web": true, "Größe": true, "apt::update": true, "a.b-c:d_1": true, "_x": true, "٣": true,
		"": false, "-web": false, ":web": false, "web,db": false, "web db": false, "a\nb": false, "a\xff": false, "a/b": false,
	} {
		if err := puppet.CheckTags(model.Part{Tags: []string{text}}); (err == nil) != is {
			t.Errorf("%q: %v", text, err)
		}
	}
}
