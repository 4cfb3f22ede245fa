package puppet

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"pulley/environments/settings"
	"pulley/internal/child"
	"pulley/internal/facts"
	"pulley/internal/model"
)

// addresses makes Puppet connect to an address while it verifies the name in the server's certificate. It is a terminus, because
// Puppet loads termini itself: the programs of Puppet's packages drop RUBYOPT, and programs that a catalog starts would inherit it.
//
//go:embed address.rb
var addresses []byte

// served is what a reference release says about the runs of a node.
type served struct {
	environment string
	settings    map[string]string // of Puppet
	choice      settings.Choice
	servers     []namedServer // in the order in which the node tries them
}

type namedServer struct {
	name string
	settings.PuppetServer
}

// servedBy returns what the release of a job says about Puppet servers; nil if the release has its code. The problem is that of
// a node without a server.
func (p *Puppet) servedBy(ctx context.Context, job model.Job) (*served, *model.Problem, error) {
	if job.Code != "" { // it is no run of the release
		return nil, nil, nil
	}
	release, err := ReadReleaseSettings(job.Tree)
	if err != nil || release.PuppetEnvironment == "" {
		return nil, nil, err
	}
	s := &served{environment: release.PuppetEnvironment}
	of, name, root, err := puppetSettings(job)
	if err != nil {
		return nil, nil, err
	}
	s.settings = of.Settings
	if release.PuppetServer != "" {
		server, err := settings.ParsePuppetServer(release.PuppetServer)
		s.servers, s.choice = []namedServer{{release.PuppetServer, server}}, settings.Choice{Server: release.PuppetServer, Reason: settings.ChoiceRelease}
		return s, nil, err
	}
	if len(of.Servers) == 0 {
		return s, &model.Problem{Code: model.PuppetServerNone, Text: model.Prose(cmp.Or(name, "the release") + " has no puppet.servers")}, nil
	}
	value, err := p.criteria(ctx, job, of, attributesOf(job, root))
	if err != nil {
		return nil, nil, err
	}
	s.choice = of.ChooseServer(job.Node, value)
	if s.choice.Server == "" {
		return s, &model.Problem{Code: model.PuppetServerNone, Text: model.Prose(s.choice.String())}, nil
	}
	for _, name := range append([]string{s.choice.Server}, s.choice.Others...) {
		s.servers = append(s.servers, namedServer{name, of.Servers[name]})
	}
	return s, nil, nil
}

// puppetSettings reads `puppet` of the environment file of the release. Unlike package environments, it ignores unknown keys: a
// newer file may have them.
func puppetSettings(job model.Job) (s settings.PuppetSettings, name string, root *yaml.Node, err error) {
	name, root, err = environmentFile(job, mentionsPuppet())
	part := entry(root, "puppet")
	if err != nil || part == nil {
		return s, name, root, err
	}
	var values map[string]any
	text := []byte("{}")
	if err = part.Decode(&values); err == nil {
		delete(values, "settings") // their numbers and booleans are texts
		text, err = json.Marshal(values)
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return s, name, root, &ReleaseError{File: name, Err: fmt.Errorf("puppet: %w", err)}
	}
	s.Settings, err = settingsOf(name, root)
	return s, name, root, err
}

// givenSettings returns the settings of Puppet in the environment file of the release.
func givenSettings(job model.Job) (map[string]string, error) {
	name, root, err := environmentFile(job, mentionsPuppet())
	if err != nil {
		return nil, err
	}
	return settingsOf(name, root)
}

// settingsOf reads puppet.settings of an environment file. A setting that would make a run something else than a run is an error, because
// without it the node would apply another catalog than the operator expects.
func settingsOf(name string, root *yaml.Node) (map[string]string, error) {
	given, err := texts(entry(root, "puppet", "settings"), "puppet.settings")
	for setting, value := range given {
		if flaw := settings.SettingFlaw(setting); flaw != nil && err == nil {
			err = fmt.Errorf("puppet.settings.%s: %s: %s", setting, flaw.Problem, flaw.Advice)
		}
		if strings.ContainsAny(value, "\n\r\x00") && err == nil {
			err = fmt.Errorf("puppet.settings.%s has more than one line", setting)
		}
	}
	if err != nil {
		return nil, &ReleaseError{File: name, Err: err}
	}
	return given, nil
}

// writeGiven writes the settings of the environment file.
func writeGiven(b *strings.Builder, given map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		fmt.Fprintf(b, "%s = %s\n", name, given[name])
	}
}

// Enforcement returns puppet.enforce of the environment file of the release in tree; "" also if the file is not readable, which a
// run reports.
func Enforcement(tree string, id model.Identity) string {
	of, _, _, err := puppetSettings(model.Job{Identity: id, Tree: tree})
	if err != nil {
		return ""
	}
	return of.Enforce
}

// attributesOf returns the attributes of the job's node. Its own override those of its role.
func attributesOf(job model.Job, root *yaml.Node) func(name string) string {
	return func(name string) string {
		for _, part := range []*yaml.Node{entry(root, "nodes", plainName(job.Identity)), entry(root, "roles", job.Role)} {
			if n := entry(part, "attributes", name); n != nil && n.Value != "" {
				return n.Value
			}
		}
		return ""
	}
}

// criteria returns the values of the criteria: attributes, else facts. It gathers the facts if a criterion needs them and the node
// never did.
func (p *Puppet) criteria(ctx context.Context, job model.Job, of settings.PuppetSettings, attribute func(string) string) (func(string) string, error) {
	var known []byte
	if slices.ContainsFunc(of.Choose, func(criterion string) bool { return attribute(criterion) == "" }) {
		var err error
		if known, err = p.KnownFacts(ctx, job); err != nil {
			return nil, fmt.Errorf("cannot choose a Puppet server: %w", err)
		}
	}
	return func(criterion string) string {
		if own := attribute(criterion); own != "" || known == nil {
			return own
		}
		raw := facts.At(known, criterion)
		if value, err := facts.Value(raw); raw != nil && err == nil {
			return facts.Text(value)
		}
		return ""
	}, nil
}

// Reach returns why no Puppet server answers the job's node; nil if one does, or if the job needs none. Problems that a run
// reports are none of Reach.
func (p *Puppet) Reach(ctx context.Context, job model.Job) *model.Problem {
	s, none, err := p.servedBy(ctx, job)
	if s == nil || none != nil || err != nil {
		return nil
	}
	if _, _, problem := p.answering(ctx, job, s); problem != nil && problem.Code == model.PuppetServerAway {
		return problem
	}
	return nil
}

// answering returns the first of the servers that answers. The problem is that of the node's own server if it does not fail by
// its certificate, else that of the first server.
func (p *Puppet) answering(ctx context.Context, job model.Job, s *served) (namedServer, settings.Choice, *model.Problem) {
	identity, cas, problem := p.serverIdentity(job.Certname, time.Now())
	if problem != nil {
		return namedServer{}, s.choice, problem
	}
	var first *model.Problem
	var texts []string
	for i, server := range s.servers {
		problem := probe(ctx, server, identity, cas)
		if problem == nil {
			choice := s.choice
			if i > 0 {
				choice = settings.Choice{Server: server.name, Reason: settings.ChoiceFailover}
			}
			return server, choice, nil
		}
		if first == nil {
			first = problem
		}
		texts = append(texts, server.name+": "+string(problem.Text))
	}
	first.Text = model.Prose(strings.Join(texts, "; "))
	return namedServer{}, s.choice, first
}

// sslDir returns the ssldir of the machine's own Puppet, which has the node's certificate for the Puppet server.
func (p *Puppet) sslDir() string {
	if p.Certificate.SSLDir != "" {
		return p.Certificate.SSLDir
	}
	if name, err := p.find(); err == nil && strings.HasPrefix(name, aioRoot) {
		return filepath.Join("/", p.Root, "etc/puppetlabs/puppet/ssl")
	}
	return filepath.Join("/", p.Root, "var/lib/puppet/ssl")
}

// aioRoot is the folder of the packages of Puppet and OpenVox.
const aioRoot = "/opt/puppetlabs/"

// serverIdentity reads and checks the certificate for the Puppet server. Without one, Puppet itself would make a key and send a
// request to the CA.
func (p *Puppet) serverIdentity(name string, now time.Time) (tls.Certificate, *x509.CertPool, *model.Problem) {
	missing := func(format string, args ...any) (tls.Certificate, *x509.CertPool, *model.Problem) {
		return tls.Certificate{}, nil, &model.Problem{Code: model.CertificateMissing, Text: model.Prose(fmt.Sprintf(format, args...))}
	}
	dir := p.sslDir()
	var files [3][]byte
	for i, file := range []string{"certs/" + name + ".pem", "private_keys/" + name + ".pem", "certs/ca.pem"} {
		text, err := readPEM(filepath.Join(dir, file))
		switch {
		case err != nil:
			return missing("%v", err)
		case len(text) == 0:
			return missing("%s is missing", filepath.Join(dir, file))
		}
		files[i] = text
	}
	pair, err := tls.X509KeyPair(files[0], files[1])
	if err != nil {
		return missing("%s: %v", filepath.Join(dir, "certs", name+".pem"), err)
	}
	cas := x509.NewCertPool()
	if !cas.AppendCertsFromPEM(files[2]) {
		return missing("%s has no certificate", filepath.Join(dir, "certs/ca.pem"))
	}
	leaf := pair.Leaf
	switch {
	case leaf.Subject.CommonName != name:
		return missing("%s is the certificate of %s, not of %s", filepath.Join(dir, "certs", name+".pem"), leaf.Subject.CommonName, name)
	case now.Before(leaf.NotBefore) || now.After(leaf.NotAfter):
		return tls.Certificate{}, nil, &model.Problem{Code: model.CertificateTime, Text: model.Prose(fmt.Sprintf("it is valid from %s to %s, and the clock reads %s",
			leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339)))}
	}
	if rest, _ := pem.Decode(files[2]); rest != nil {
		if ca, err := x509.ParseCertificate(rest.Bytes); err == nil && (now.Before(ca.NotBefore) || now.After(ca.NotAfter)) {
			return tls.Certificate{}, nil, &model.Problem{Code: model.CertificateTime, Text: model.Prose(fmt.Sprintf("its CA is valid from %s to %s, and the clock reads %s",
				ca.NotBefore.UTC().Format(time.RFC3339), ca.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339)))}
		}
	}
	return pair, cas, nil
}

// probeDeadline limits the connection to one server, and its answer.
const probeDeadline = 20 * time.Second

// probe asks a server for its status. Any answer but one of a server that starts or stops will do.
func probe(ctx context.Context, s namedServer, own tls.Certificate, cas *x509.CertPool) *model.Problem {
	ctx, cancel := context.WithTimeout(ctx, probeDeadline)
	defer cancel()
	dialer := &net.Dialer{Timeout: probeDeadline / 2}
	client := &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{own}, RootCAs: cas, ServerName: s.CertificateName(), MinVersion: tls.VersionTLS12},
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, network, s.HostPort())
			},
			DisableKeepAlives: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+s.HostPort()+"/status/v1/simple", nil)
	if err != nil {
		return &model.Problem{Code: model.PuppetServerAway, Text: model.Prose(err.Error())}
	}
	answer, err := client.Do(request)
	if err != nil {
		return refusedBy(err)
	}
	_ = answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return &model.Problem{Code: model.PuppetServerAway, Text: model.Prose("it answers " + strconv.Itoa(answer.StatusCode) + ": it starts, stops or is overloaded")}
	}
	return nil
}

// refusal matches the alerts with which a server refuses the certificate of its client.
var refusal = lazily(`remote error: tls: (.*certificate.*|access denied)`)

// refusedBy names the cause of a failed probe.
func refusedBy(err error) *model.Problem {
	var at *net.OpError
	var unverified *tls.CertificateVerificationError
	text := err.Error()
	if cause := errors.Unwrap(err); cause != nil { // without the URL
		text = cause.Error()
	}
	code := model.PuppetServerAway
	switch {
	case errors.As(err, &unverified):
		code = model.ServerUntrusted
		var invalid x509.CertificateInvalidError
		if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
			code = model.CertificateTime
		}
	case refusal().MatchString(text):
		code, text = model.CertificateRefused, refusal().FindStringSubmatch(text)[1]
	case errors.As(err, &at) && at.Op == "remote error":
		code = model.CertificateRefused
	case errors.Is(err, context.DeadlineExceeded):
		text = "it did not answer within " + probeDeadline.String()
	}
	return &model.Problem{Code: code, Text: model.Prose(oneLine(text))}
}

// applyServed runs puppet agent against the server of a reference release.
func (p *Puppet) applyServed(ctx context.Context, job model.Job, s *served) (model.Result, error) {
	untouched := func(problem model.Problem) (model.Result, error) {
		return model.Result{Kind: model.Untouched, Outcome: model.Failed, Noop: job.Noop, Problem: problem}, nil
	}
	if job.Preview {
		return untouched(model.Problem{Code: model.PreviewServed})
	}
	server, choice, problem := p.answering(ctx, job, s)
	if problem != nil {
		return untouched(*problem)
	}
	cmd, err := p.agentCommand(job, s, server)
	if err != nil {
		return model.Result{}, err
	}
	e, err := p.run(ctx, cmd, job)
	if err != nil {
		return model.Result{}, err
	}
	r := p.resultServed(job, e, s.environment)
	r.Served = &model.Served{Environment: s.environment, Server: server.name, Reason: string(choice.Reason), Criterion: choice.Criterion, Value: choice.Value, Code: r.ConfigVersion}
	return r, nil
}

// agentDir is the folder of runs against a Puppet server. What the server synchronises stays there from run to run.
func (p *Puppet) agentDir() string { return filepath.Join(p.Dir, "puppet", "agent") }

// agentCommand prepares the run's folder and returns the command.
//
//	runs/<id>/conf/puppet.conf           the settings, with those of the environment file
//	runs/<id>/conf/address               the server's address, if its certificate has another name
//	runs/<id>/conf/routes.yaml           names the terminus in addresses
//	runs/<id>/modules                    the module of addresses, and links to the installed modules of Puppet's core types
//	puppet/agent                         vardir and the like: plug-ins of the server, and no catalog
func (p *Puppet) agentCommand(job model.Job, s *served, server namedServer) (*child.Command, error) {
	name, err := p.find()
	if err != nil {
		return nil, err
	}
	if err := p.checkJob(job); err != nil {
		return nil, err
	}
	dir, own := p.RunDir(job.ID), p.agentDir()
	err = os.RemoveAll(dir)
	for _, d := range []string{dir, filepath.Join(dir, "conf"), filepath.Join(dir, "modules"), filepath.Join(dir, "state"), filepath.Join(own, "code"), filepath.Join(own, "var", "state")} {
		err = errors.Join(err, os.MkdirAll(d, 0o700))
	}
	core := false
	if err == nil {
		core, err = p.linkCoreTypes(filepath.Join(dir, "modules"))
	}
	if err == nil && server.Address != server.CertificateName() {
		err = placeAddress(dir, server.Address)
		if !core { // the run's modules replace the vendored ones
			core, err = true, errors.Join(err, linkVendored(vendoredModules, filepath.Join(dir, "modules")))
		}
	}
	err = errors.Join(err, os.WriteFile(filepath.Join(dir, "conf", "puppet.conf"), p.agentConf(job, core, s.settings, server), 0o600))
	if err != nil {
		return nil, fmt.Errorf("cannot prepare run %s: %w", job.ID, err)
	}
	args := []string{
		"agent", "--confdir", filepath.Join(p.seenDir(job.ID), "conf"), "--vardir", filepath.Join(own, "var"), "--certname", job.Certname, "--environment", s.environment,
		"--server", server.CertificateName(), "--onetime", "--no-daemonize", "--detailed-exitcodes", "--strict_environment_mode", "--no-usecacheonfailure",
		"--catalog_cache_terminus", "", "--logdest", "console", "--color=false",
	}
	return p.child(name, append(args, partOptions(job)...)), nil
}

// placeAddress puts into the folder of a run what makes Puppet connect to an address.
func placeAddress(dir, address string) error {
	terminus := filepath.Join(dir, "modules", "pulley", "lib", "puppet", "indirector", "facts")
	return errors.Join(
		os.MkdirAll(terminus, 0o700),
		os.WriteFile(filepath.Join(terminus, "pulley_address.rb"), addresses, 0o600),
		os.WriteFile(filepath.Join(dir, "conf", "routes.yaml"), []byte("agent: {facts: {terminus: pulley_address}}\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "conf", "address"), []byte(address), 0o600),
	)
}

// agentConf returns the run's puppet.conf.
func (p *Puppet) agentConf(job model.Job, core bool, more map[string]string, server namedServer) []byte {
	own := p.agentDir()
	var b strings.Builder
	b.WriteString(confHeader)
	writeGiven(&b, more)
	p.writeSettings(&b, job, core, own, [][2]string{
		{"serverport", strconv.Itoa(cmp.Or(server.Port, settings.DefaultPort))},
		{"ssldir", p.sslDir()},
		{"route_file", filepath.Join(p.seenDir(job.ID), "conf", "routes.yaml")},
		{"factpath", settings.FactPath(settings.AgentFacts, more)},
		{"codedir", filepath.Join(own, "code")},
		{"manage_internal_file_permissions", "false"}, // the key stays readable for root only
		{"noop", "false"},
		{"splay", "false"},
		{"waitforcert", "0"},
		{"waitforlock", "0"},
		{"log_level", "info"}, // an info: `Applying configuration version`, the proof that a catalog was applied
	}...)
	return []byte(b.String())
}
