package controlrepo

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// validated returns the findings of a repository as lines.
func validated(t *testing.T, changes map[string]string, o Options) (string, Report) {
	t.Helper()
	report, err := Validate(t.Context(), repo(t, changes), o)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, f := range report.Findings {
		lines = append(lines, f.String())
	}
	return strings.Join(lines, "\n"), report
}

// Code of somebody else must not prevent publication, and --strict must not either, unless the site manifest includes a class that does not parse.
func TestVendoredModulesNeverBlock(t *testing.T) {
	changes := map[string]string{
		"modules/nagios/manifests/init.pp": "class nagios { @@file { 'x': } } # caf\xe9\n", // a Puppetfile installs it
		"modules/nagios/data/common.yaml":  "a: [",
		"modules/nagios/hiera.yaml":        "version: 5\n",
		"modules/nagios/spec/key.pem":      "-----BEGIN PRIVATE KEY-----\n",
		"modules/built/checksums.json":     "{}",
		"modules/built/CERT.pem":           "-----BEGIN EC PRIVATE KEY-----\n",
		"modules/built/hiera.yaml":         "version: 9\n",
		"manifests/nodes.pp":               "node x1 { notice(nagios) }\n",
	}
	got, report := validated(t, changes, Options{Vendored: func(name string) bool { return strings.HasPrefix(name, "modules/nagios/") }})
	if report.Errors() != 0 || report.Warnings() != 6 || report.Strict().Errors() != 0 {
		t.Errorf("%d errors, %d warnings, %d errors with --strict:\n%s", report.Errors(), report.Warnings(), report.Strict().Errors(), got)
	}
	vendored := Options{Vendored: func(name string) bool { return strings.HasPrefix(name, "modules/nagios/") }, Complete: true}
	for _, site := range []string{"node x1 { include nagios }\n", "node x1 { include own }\n"} {
		changes["manifests/nodes.pp"], changes["modules/own/manifests/init.pp"] = site, "class own { contain nagios }\n"
		if got, report := validated(t, changes, vendored); report.Errors() != 1 || !strings.Contains(got, "nagios/manifests/init.pp:1: error") {
			t.Errorf("%s is included:\n%s", site, got)
		}
	}
	if got, report = validated(t, changes, Options{}); report.Errors() != 3 || report.Strict().Errors() != 4 {
		t.Errorf("as own code: %d errors, %d with --strict:\n%s", report.Errors(), report.Strict().Errors(), got)
	}
}

// A private key that git has already must not prevent publication: r10k would deploy it as well.
func TestCommittedPrivateKeyIsAWarning(t *testing.T) {
	changes := map[string]string{"keys/a.pem": "-----BEGIN PRIVATE KEY-----\n", ".ssh/b": "-----BEGIN OPENSSH PRIVATE KEY-----\n"}
	got, _ := validated(t, changes, Options{Committed: func(name string) bool { return name == "keys/a.pem" }})
	lines := strings.Split(got, "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], ".ssh/b: error: git does not track") || !strings.HasSuffix(lines[1], "[committed_private_key]") {
		t.Errorf("got\n%s", got)
	}
}

// A finding that a team has judged must not hide new ones.
func TestSilenceHidesOneRuleAtOnePlace(t *testing.T) {
	exported := "class role::%s {\n%s\n  @@file { '/x': }\n  notice($servername)\n}\n"
	changes := map[string]string{
		"modules/role/manifests/a.pp": fmt.Sprintf(exported, "a", "  # known # pulley:silence exported_resource, file_server"),
		"modules/role/manifests/b.pp": fmt.Sprintf(exported, "b", "  # pulley:silence server_variable"),
		"modules/role/manifests/c.pp": fmt.Sprintf(exported, "c", ""),
		"hieradata/common.yaml":       "a: 1\na: 2 # pulley:silence duplicate_key\n",
		"pulley.yaml":                 "live_data: above\nsilence:\n  exported_resource: [modules/role/manifests/c.pp]\n  server_variable: ['**/b.pp']\n",
	}
	got, report := validated(t, changes, Options{})
	want := []string{"modules/role/manifests/a.pp:4:10: warning: the variable", "modules/role/manifests/b.pp:3:3: warning: exported", "modules/role/manifests/c.pp:4:10: warning: the variable"}
	lines := strings.Split(got, "\n")
	for i, w := range want {
		if len(lines) != len(want) || !strings.HasPrefix(lines[i], w) {
			t.Fatalf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
		}
	}
	if report.Silenced != 4 {
		t.Errorf("%d findings are silenced, want 4", report.Silenced)
	}
	for setting, want := range map[string]string{
		"silence: {exported_resources: ['**']}": `pulley.yaml: warning: what silences a rule has no effect: silence names the unknown rule "exported_resources"`,
		"silence: {file_server: ['[a']}":        "has no effect: silence of file_server has an invalid pattern",
		"silence: {file_server: ['**']}":        "has no effect: there is nothing of file_server to silence",
		"silence: [file_server]":                "pulley.yaml:1: error: nodes would refuse the release because of its pulley.yaml: silence is not a mapping of rules to lists of paths",
		"silence: {settings: ['**']}\nx: 1":     "unknown key",
	} {
		if got, _ := validated(t, map[string]string{"pulley.yaml": setting + "\n"}, Options{}); !strings.Contains(got, want) {
			t.Errorf("%s: %s", setting, got)
		}
	}
	for code, want := range map[string]string{
		"# pulley:silence file_servers":                               `site.pp:1: warning: what silences a rule has no effect: the comment names the unknown rule "file_servers"`,
		"$a = 1 # pulley:silence exported_resource\n@@file { '/x': }": "site.pp:2:1: warning: exported",
	} {
		if got, _ := validated(t, map[string]string{"manifests/site.pp": code + "\nnode default { }\n"}, Options{}); !strings.Contains(got, want) {
			t.Errorf("%s: %s", code, got)
		}
	}
}

// The wrong folder is the most common first mistake, and a release of nothing would be green.
func TestWrongFolderIsNamed(t *testing.T) {
	wrong, empty := t.TempDir(), t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(wrong, "README.md"), nil, 0o644), os.Mkdir(filepath.Join(wrong, "control"), 0o755),
		os.WriteFile(filepath.Join(wrong, "control", "environment.conf"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		wrong: "there is no site manifest, and Puppet applies nothing: control contains environment.conf; to publish that folder, name it",
		empty: "publish refuses the folder: it has no files",
	} {
		report, err := Validate(t.Context(), dir, Options{})
		if text := fmt.Sprint(report.Findings); err != nil || !strings.Contains(text, want) || (report.Errors() > 0) != (dir == empty) {
			t.Error(text, err)
		}
	}
}

// A workflow must show the finding at its line, with errors before the warnings that GitHub cuts off.
func TestGitHubAnnotations(t *testing.T) {
	r := Report{Findings: append(Refusals(errors.Join(errors.New("cannot publish x: y\nrepair it"), nil)),
		finding(FileServer, "a,b.pp", 3, 7, "puppet:///x%y"),
		finding(ManifestSyntax, "c.pp", 2, 0, "Syntax error\nhere"))}
	want := `::error title=refused::publish refuses the folder: cannot publish x: y%0Arepair it
::error title=manifest_syntax,file=c.pp,line=2::Puppet cannot parse a manifest that nodes read: Syntax error%0Ahere%0Acorrect the manifest: ` + "`puppet parser validate`" + ` reports the same
::warning title=file_server,file=a%2Cb.pp,line=3,col=7::the source is on a file server: the nodes that declare this file fail: puppet:///x%25y%0Aput the file into a module and use puppet:///modules/MODULE/FILE
`
	if got := r.GitHub(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A reader must find every rule in the documentation, with its severity and remedy.
func TestDocsHaveTheTableOfRules(t *testing.T) {
	page, err := os.ReadFile("../../../docs/validation.md")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	want.WriteString("| rule | severity | finding | remedy |\n|---|---|---|---|\n")
	for _, r := range Rules {
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s |\n", r.Rule, r.Severity, r.Problem, r.Remedy)
	}
	if !strings.Contains(string(page), "\n"+want.String()+"\n") {
		t.Errorf("docs/validation.md does not contain the table of rules:\n%s", want.String())
	}
}

// A test key in a module that r10k installed before must not prevent publication; the team's own key beside it must.
func TestIgnoredModulesAreVendored(t *testing.T) {
	const key = "-----BEGIN PRIVATE KEY-----\n"
	all, _ := validated(t, map[string]string{
		"environment.conf": "modulepath = site:modules\n", "hiera.yaml": "", "hieradata/common.yaml": "a: 1\n", "hieradata/b.json": "{}\n", "Puppetfile": "mod 'a'\n",
		"modules/a/spec/server.key": key, "modules/a/files/server.key": key, "modules/c/spec/server.key": key, "modules/d/metadata.json": "{}", "modules/d/spec/server.key": key, "site/b/files/server.key": key, "server.key": key,
	}, Options{Committed: func(string) bool { return false }, Ignored: func(name string) bool { return path.Dir(name) == "modules" || strings.HasSuffix(name, ".key") }})
	for _, want := range []string{
		"modules/a/spec/server.key: warning: ", "modules/a/files/server.key: error: ", "modules/c/spec/server.key: error: ", "modules/d/spec/server.key: warning: ", "site/b/files/server.key: error: ", "\nserver.key: error: ",
		"hiera.yaml: warning: there is no hiera.yaml, and Puppet reads only data/common.yaml: it reads none of the data files in hieradata (5) [hiera_missing]",
	} {
		if !strings.Contains("\n"+all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
	for _, has := range []bool{true, false} { // a step that is done already is none
		_, report := validated(t, map[string]string{"Puppetfile": "mod 'a'\n"}, Options{Adopt: true, Resolver: has})
		if slices.ContainsFunc(report.Adoption.Steps, func(s Step) bool { return s.Code == "puppetfile" }) == has {
			t.Errorf("resolver installed %v: %v", has, report.Adoption.Steps)
		}
	}
}
