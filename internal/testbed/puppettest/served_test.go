package puppettest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/model"
	"pulley/internal/puppet"
)

// puppetServer is a Puppet server for the contract of `puppet agent`. Its methods end the test if they fail.
type puppetServer interface {
	address(t *testing.T) string // HOST:PORT
	put(t *testing.T, environment, path, content string)
	issue(t *testing.T, ssldir string, c Certificate)
	revoke(t *testing.T, ssldir, name string)
	classify(t *testing.T, environment string) // the classifier's answer for each node; "": none
	up(t *testing.T)
	kill(t *testing.T)
}

// servedCase is one row of the contract of runs against a Puppet server.
type servedCase struct {
	Name       string
	Manifest   string // of the environment on the server; "": the environment does not exist
	Conf       string // environment.conf
	Classifier string // environment that the server's classifier gives to the node; "": none
	Settings   string // of puppet.settings in the environment file, in YAML
	Servers    string // puppet.servers and its criteria, in YAML with {{address}} and {{port}}; "": the server itself
	Noop       bool
	Preview    bool
	Part       model.Part
	Deadline   time.Duration
	Extra      []string
	Before     func(t *testing.T, s puppetServer, ssldir string)
	During     func(t *testing.T, s puppetServer) // when the file `begun` exists

	Kind    model.Kind
	Outcome model.Outcome
	Codes   []int
	Code    model.ProblemCode
	Problem string // a substring
	Served  string // the code of the catalog, of a success
	Check   func(t *testing.T, r *ran)
}

const (
	servedFile = "# fake: file {{dir}}/motd hello\nnode default { file { '{{dir}}/motd': content => 'hello' } }\n"
	// The command runs Ruby as another user: it must not inherit what the run gives to Puppet's Ruby.
	servedChange = "# fake: file {{dir}}/motd hello\n# fake: source {{dir}}/late\n" +
		"node default { file { '{{dir}}/motd': content => 'hello' } file { '{{dir}}/late': source => 'puppet:///modules/m1/x' } exec { '/bin/false': user => 'nobody', unless => \"/usr/bin/ruby -e 'exit(ENV.keys.grep(/RUBY|PULLEY/).empty?)'\" } }\n"
	servedExec = "# fake: file {{dir}}/begun x\n# fake: sleep 8\n# fake: source {{dir}}/late\n" +
		"node default { file { '{{dir}}/begun': content => 'x' } -> exec { '/bin/sleep 8': } -> file { '{{dir}}/late': source => 'puppet:///modules/m1/x' } }\n"
)

func servedCases() []servedCase {
	one := "servers: {one: {address: {{address}}, port: {{port}}, attributes: {region: eu}}, dead: {address: 127.0.0.1, port: 1, attributes: {region: us}}}\n"
	return []servedCase{
		{
			Name: "a change", Manifest: servedChange, Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *ran) {
				for line := range strings.Lines(r.Stdout) { // errors of plug-ins and of the report end no run
					if strings.Contains(line, "Error: ") && !strings.Contains(line, "Error: Facter: ") { // of the machine
						t.Errorf("the output has %q", line)
					}
				}
				if r.file("motd") != "hello" || r.Served.Server != "one" || r.Served.Environment != r.environment() || r.Served.Reason != "spread" {
					t.Errorf("motd %q, served %+v", r.file("motd"), r.Served)
				}
				again, err := r.Puppet.Apply(t.Context(), r.Job)
				if err != nil || again.Kind != model.Success || again.Outcome != model.Unchanged || again.ExitCode != 0 {
					t.Errorf("the second run: %+v, %v", again, err)
				}
				if found, _ := filepath.Glob(filepath.Join(r.Puppet.Dir, "puppet", "agent", "var", "client_data", "catalog", "*")); len(found) > 0 {
					t.Errorf("a catalog is in the cache: %q", found)
				}
			},
		},
		{
			Name: "a configured version", Manifest: "# fake: config-version release-17\n" + servedFile, Conf: "config_version = '/bin/echo release-17'\n",
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2}, Served: "release-17",
		},
		{
			Name: "a failed resource", Manifest: "# fake: fail Exec[/bin/false] '/bin/false' returned 1 instead of one of [0]\nnode default { exec { '/bin/false': } }\n",
			Kind: model.Between, Outcome: model.Failed, Codes: []int{4}, Code: model.ResourcesFailed, Problem: "Exec[/bin/false]: ",
		},
		{
			Name:     "a failed restart",
			Manifest: "# fake: file {{dir}}/motd hello\n# fake: refresh-fail Exec[/bin/false] '/bin/false' returned 1 instead of one of [0]\nnode default { file { '{{dir}}/motd': content => 'hello' } ~> exec { '/bin/false': refreshonly => true } }\n",
			Kind:     model.Between, Outcome: model.Failed, Codes: []int{2, 4, 6}, Problem: "Exec[/bin/false]",
		},
		{
			Name: "a catalog that does not compile", Manifest: "# fake: compile-error wrong here\nnode default { fail('wrong here') }\n",
			Kind: model.Untouched, Outcome: model.Failed, Codes: []int{1}, Code: model.CatalogRefused, Problem: "wrong here",
		},
		{
			Name: "an environment that does not exist",
			Kind: model.Untouched, Outcome: model.Failed, Codes: []int{1}, Code: model.EnvironmentMissing, Problem: "not found on server",
		},
		{
			Name: "a classifier that gives another environment", Classifier: "other", Manifest: "# fake: other-environment other\n" + servedFile,
			Kind: model.Untouched, Outcome: model.Failed, Codes: []int{1}, Code: model.EnvironmentOther, Problem: "its environment 'other' does not match",
			Check: func(t *testing.T, r *ran) {
				if r.file("motd") != "" {
					t.Errorf("motd %q", r.file("motd"))
				}
			},
		},
		{
			Name: "noop", Noop: true, Manifest: servedFile, Kind: model.Untouched, Outcome: model.Unchanged, Codes: []int{0, 2},
			Check: func(t *testing.T, r *ran) {
				if r.file("motd") != "" || r.Counts.Pending != 1 {
					t.Errorf("motd %q, counts %+v", r.file("motd"), r.Counts)
				}
			},
		},
		{
			Name: "a part", Part: model.Part{Tags: []string{"mine"}},
			Manifest: "# fake: tagged mine {{dir}}/mine x\n# fake: file {{dir}}/motd hello\nnode default { file { '{{dir}}/mine': content => 'x', tag => 'mine' } file { '{{dir}}/motd': content => 'hello' } }\n",
			Kind:     model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *ran) {
				if r.file("motd") != "" || r.file("mine") != "x" {
					t.Errorf("motd %q, mine %q", r.file("motd"), r.file("mine"))
				}
			},
		},
		{
			Name: "a preview", Preview: true, Manifest: servedFile, Kind: model.Untouched, Outcome: model.Failed, Codes: []int{0}, Code: model.PreviewServed,
		},
		{
			Name: "a server that does not answer", Manifest: servedFile, Servers: "servers: {dead: {address: 127.0.0.1, port: 1}}\n",
			Kind: model.Untouched, Outcome: model.Failed, Codes: []int{0}, Code: model.PuppetServerAway, Problem: "dead: dial tcp 127.0.0.1:1: connect: connection refused",
			Check: func(t *testing.T, r *ran) {
				if p := r.Puppet.Reach(t.Context(), r.Job); p == nil || p.Code != model.PuppetServerAway {
					t.Errorf("Reach: %+v", p)
				}
			},
		},
		{
			Name: "another server answers", Manifest: servedFile, Servers: one + "choose: [region]\nfallback: dead\nfailover: true\n",
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *ran) {
				if r.Served.Server != "one" || r.Served.Reason != "failover" {
					t.Errorf("served %+v", r.Served)
				}
			},
		},
		{
			Name: "an attribute chooses the server", Manifest: servedFile, Servers: one + "choose: [region]\n",
			Kind: model.Untouched, Outcome: model.Failed, Codes: []int{0}, Code: model.PuppetServerNone, Problem: "no criterion matches",
		},
		{
			Name: "a fact chooses the server", Manifest: servedFile, Servers: "servers: {one: {address: {{address}}, port: {{port}}, attributes: {kernel: Linux}}}\nchoose: [kernel]\n",
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *ran) {
				if r.Served.Criterion != "kernel" || r.Served.Value != "Linux" {
					t.Errorf("served %+v", r.Served)
				}
			},
		},
		{
			Name: "no certificate", Manifest: servedFile, Before: func(t *testing.T, _ puppetServer, ssldir string) { remove(t, filepath.Join(ssldir, "certs/web1.pem")) },
			Kind: model.Untouched, Outcome: model.Failed, Codes: []int{0}, Code: model.CertificateMissing, Problem: "certs/web1.pem is missing",
			Check: func(t *testing.T, r *ran) { // Puppet itself would send a request to the CA
				if found, _ := filepath.Glob(filepath.Join(r.Puppet.Certificate.SSLDir, "certificate_requests", "*")); len(found) > 0 {
					t.Errorf("the run made a request: %q", found)
				}
			},
		},
		{
			Name: "the certificate of another machine", Manifest: servedFile,
			Before: func(t *testing.T, s puppetServer, ssldir string) {
				s.issue(t, ssldir, Certificate{Name: "web2"})
				for _, dir := range []string{"certs", "private_keys"} {
					if err := os.Rename(filepath.Join(ssldir, dir, "web2.pem"), filepath.Join(ssldir, dir, "web1.pem")); err != nil {
						t.Fatal(err)
					}
				}
			},
			Kind: model.Untouched, Outcome: model.Failed, Codes: []int{0}, Code: model.CertificateMissing, Problem: "is the certificate of web2, not of web1",
		},
		{
			Name: "an expired certificate", Manifest: servedFile,
			Before: func(t *testing.T, s puppetServer, ssldir string) {
				s.issue(t, ssldir, Certificate{Name: "web1", Until: time.Now().Add(-24 * time.Hour)})
			},
			Kind: model.Untouched, Outcome: model.Failed, Codes: []int{0}, Code: model.CertificateTime, Problem: "and the clock reads ",
		},
		{
			Name: "a wrong CA", Manifest: servedFile,
			Before: func(t *testing.T, _ puppetServer, ssldir string) {
				other, err := NewServer(t.TempDir())
				if err != nil {
					t.Fatal(err)
				}
				dir := t.TempDir()
				if err := other.Issue(dir, Certificate{Name: "x"}); err != nil {
					t.Fatal(err)
				}
				text, err := os.ReadFile(filepath.Join(dir, "certs/ca.pem"))
				if err != nil {
					t.Fatal(err)
				}
				write(t, filepath.Join(ssldir, "certs/ca.pem"), string(text))
			},
			Kind: model.Untouched, Outcome: model.Failed, Codes: []int{0}, Code: model.ServerUntrusted, Problem: "one: ",
		},
		{
			Name: "a certificate of another CA", Manifest: servedFile,
			Before: func(t *testing.T, s puppetServer, ssldir string) {
				s.issue(t, ssldir, Certificate{Name: "web1", Other: true})
			},
			Kind: model.Untouched, Outcome: model.Failed, Codes: []int{0, 1}, Code: model.CertificateRefused,
		},
		{
			Name: "a revoked certificate", Manifest: servedFile,
			Before: func(t *testing.T, s puppetServer, ssldir string) { s.revoke(t, ssldir, "web1") },
			Kind:   model.Untouched, Outcome: model.Failed, Codes: []int{0, 1}, Code: model.CertificateRefused,
		},
		{
			Name: "a cached catalog is never applied", Manifest: servedFile, Settings: "{http_read_timeout: 2m}",
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *ran) {
				remove(t, filepath.Join(r.Dir, "motd"))
				r.server.put(t, r.environment(), "manifests/site.pp", "# fake: compile-error wrong now\nnode default { fail('wrong now') }\n")
				again, err := r.Puppet.Apply(t.Context(), r.Job)
				if err != nil || again.Kind != model.Untouched || r.file("motd") != "" {
					t.Errorf("%+v, %v; motd %q", again, err, r.file("motd"))
				}
			},
		},
		{
			Name: "its deadline ends a run", Manifest: servedExec, Deadline: 5 * time.Second,
			Kind: model.Between, Outcome: model.Failed, Codes: []int{1, 143, 137}, Code: model.PuppetUnfinished,
		},
		{
			Name: "a server that is killed in a run", Manifest: servedExec, During: func(t *testing.T, s puppetServer) { s.kill(t) },
			Kind: model.Between, Outcome: model.Failed, Codes: []int{4, 6}, Code: model.PuppetServerLost, Problem: "1 resource failed: File[",
		},
	}
}

func (r *ran) environment() string { return "e" + r.Job.PuppetEnvironment }

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// servedSuite runs the contract of `puppet agent`.
func servedSuite(t *testing.T, s puppetServer, newMachine func(t *testing.T) machine, without []string) {
	for i, c := range servedCases() {
		if slices.Contains(without, c.Name) {
			continue
		}
		t.Run(strings.ReplaceAll(c.Name, " ", "_"), func(t *testing.T) {
			s.up(t)
			r := c.apply(t, newMachine(t), s, i)
			if r.Kind != c.Kind || r.Outcome != c.Outcome || !slices.Contains(c.Codes, r.ExitCode) {
				t.Errorf("kind %q outcome %q, exit code %d, want %q %q %v", r.Kind, r.Outcome, r.ExitCode, c.Kind, c.Outcome, c.Codes)
			}
			problem := r.Problem.String()
			if c.Code != "" && r.Problem.Code != c.Code || c.Kind == model.Success && problem != "" || !strings.Contains(problem, c.Problem) {
				t.Errorf("problem %s %q, want %s %q", r.Problem.Code, problem, c.Code, c.Problem)
			}
			if c.Kind == model.Success && (r.Served == nil || r.Served.Code != c.Served || r.ConfigVersion != c.Served) {
				t.Errorf("served %+v, want code %q", r.Served, c.Served)
			}
			if c.Check != nil {
				c.Check(t, r)
			}
			if t.Failed() {
				t.Logf("output:\n%s\nresult: %+v", r.Stdout, r.Result)
			}
		})
	}
}

func (c servedCase) apply(t *testing.T, m machine, s puppetServer, number int) *ran {
	t.Helper()
	r := &ran{Dir: t.TempDir(), server: s}
	base := t.TempDir()
	environment := fmt.Sprintf("dev%d", number)
	on := "e" + environment
	if c.Manifest != "" {
		s.put(t, on, "manifests/site.pp", strings.ReplaceAll(c.Manifest, "{{dir}}", r.Dir))
		s.put(t, on, "modules/m1/files/x", "x")
	}
	if c.Classifier != "" {
		s.put(t, c.Classifier, "manifests/site.pp", "")
		s.classify(t, c.Classifier)
		defer s.classify(t, "")
	}
	if c.Conf != "" {
		s.put(t, on, "environment.conf", c.Conf)
	}
	host, port, err := net.SplitHostPort(s.address(t))
	if err != nil {
		t.Fatal(err)
	}
	servers := c.Servers
	if servers == "" {
		servers = "servers: {one: {address: {{address}}, port: {{port}}}}\n"
	}
	servers = strings.NewReplacer("{{address}}", host, "{{port}}", port, "\n", "\n  ").Replace(servers)
	if c.Settings != "" {
		servers += "settings: " + c.Settings + "\n"
	}
	write(t, filepath.Join(base, "tree", "pulley.yaml"), "puppet_environment: "+on+"\n")
	write(t, filepath.Join(base, "tree", "environments", environment+".yaml"), "puppet:\n  "+servers+"\nroles: {web: {cardinality: 1}}\n")
	ssldir := filepath.Join(base, "ssl")
	s.issue(t, ssldir, Certificate{Name: "web1"})
	if c.Before != nil {
		c.Before(t, s, ssldir)
	}
	var out bytes.Buffer
	r.Puppet = &puppet.Puppet{
		Program: m.Program, Dir: filepath.Join(base, "state"), Grace: m.Grace, Deadline: c.Deadline, StateDirs: []string{filepath.Join(m.Vardir, "state")},
		Stdout: &out, CoreModules: filepath.Join(base, "core"), Certificate: puppet.Certificate{SSLDir: ssldir},
	}
	r.Job = model.Job{
		Identity: model.Identity{Node: "web1", Certname: "web1", Role: "web", Environment: environment, PuppetEnvironment: environment},
		ID:       "20260101T000000Z-1", Target: model.Target{Release: "2.0.0", Tree: "00"}, Tree: filepath.Join(base, "tree"), Noop: c.Noop || c.Preview, Preview: c.Preview, Part: c.Part,
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for c.During != nil && ctx.Err() == nil {
			if r.file("begun") != "" {
				c.During(t, s)
				return
			}
			<-time.After(20 * time.Millisecond)
		}
	}()
	r.Result, err = r.Puppet.Apply(t.Context(), r.Job)
	cancel()
	<-done
	if err != nil {
		t.Fatalf("Puppet was not run: %v", err)
	}
	r.Stdout = out.String()
	return r
}

// fakeServer is the fake server.
type fakeServer struct{ *Server }

func (f fakeServer) address(*testing.T) string { return f.Address }

func (f fakeServer) put(t *testing.T, environment, path, content string) {
	if path != "manifests/site.pp" {
		return
	}
	must(t, f.Put(environment, content))
}

func (f fakeServer) issue(t *testing.T, ssldir string, c Certificate) { must(t, f.Issue(ssldir, c)) }

func (f fakeServer) revoke(t *testing.T, ssldir, name string) { must(t, f.Revoke(ssldir, name)) }

func (f fakeServer) classify(*testing.T, string) {} // a directive of the manifest does it

func (f fakeServer) up(t *testing.T) {
	must(t, f.Up())
}

func (f fakeServer) kill(t *testing.T) { must(t, f.Down()) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Tests on the fake prove nothing unless the fake satisfies the contract of puppet agent.
func TestFakeServed(t *testing.T) {
	servedSuite(t, fakeServer{StartServer(t)}, func(t *testing.T) machine {
		dir := t.TempDir()
		m := machine{Program: Write(t, dir), Vardir: filepath.Join(dir, "var"), Grace: 600 * time.Millisecond}
		write(t, filepath.Join(m.Vardir, "state", "keep"), "")
		return m
	}, nil)
}
