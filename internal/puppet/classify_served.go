package puppet

import (
	"regexp"
	"strconv"
	"strings"
	"sync"

	"pulley/internal/clip"
	"pulley/internal/model"
)

// The messages of puppet agent by which a run is judged (puppet/configurer.rb, puppet/transaction.rb of Puppet 7.23).
const applyingLine = "Info: Applying configuration version" // an info, printed after the catalog arrived and before any change

// They are compiled at their first use: most ticks start no Puppet.
var (
	noEnvironment    = lazily(`Environment '[^']*' not found on server`)
	otherEnvironment = lazily(`Not using catalog because its environment '[^']*' does not match`)
	refusedOnServer  = lazily(`[Cc]ertificate .* is revoked|certificate revoked|revoked certificate|certificate unknown|sslv3 alert|tlsv1 alert|tlsv13 alert|alert (bad|unknown|unsupported|expired) ?certificate|certificate verify failed`)

	// silentServer matches what a run logs when its server ends in the middle.
	silentServer = lazily(`Connection refused|Connection reset by peer|Failed to open TCP connection|No route to host|Network is unreachable|` +
		`end of file reached|execution expired|timed out|Net::(Open|Read)Timeout|No more routes to|Error 50[234] on SERVER|unexpected eof while reading|interrupted after`)

	// ofServer matches messages about requests to the Puppet server. Packages and services have network errors of their own.
	ofServer = lazily(`/puppet/v3/|puppet://| on SERVER`)
)

func lazily(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

// resultServed reads the output of an ended run of puppet agent and judges it.
func (p *Puppet) resultServed(job model.Job, e end, environment string) model.Result {
	r, report, out := p.readResult(job)
	r.ExitCode = e.code
	r.Kind, r.Outcome, r.Problem = classifyServed(e, job.Noop, environment, report, out)
	if report != nil {
		r.ConfigVersion = clip.Line(meaningful(report), maxVersion)
	}
	r.Log = limited(r.Log, maxLogLines, report.cutLines())
	return r
}

// classifyServed judges an ended run of puppet agent, as classify judges one of puppet apply. Exit code 1 with a report is the
// common end of a run that applied nothing: the proof is that neither the output nor the report knows of a catalog.
func classifyServed(e end, noop bool, environment string, report *runReport, out console) (model.Kind, model.Outcome, model.Problem) {
	switch {
	case e.why == "" && e.code == 1 && out.unapplied() && (report == nil || !report.Completed && report.Counts.Total == 0):
		return model.Untouched, model.Failed, notApplied(out)
	case report != nil && report.Environment != "" && report.Environment != environment && e.why == "":
		return model.Between, model.Failed, model.Problem{Code: model.EnvironmentOther, Text: model.Prose(report.Environment)}
	case report != nil && report.Cached != "" && report.Cached != "not_used" && e.why == "":
		return model.Between, model.Failed, model.Problem{Code: model.CatalogCached, Text: last(out)}
	case noop:
		return classifyNoop(e, report, out)
	}
	p := problem(e, report, out)
	if p.Code == model.ResourcesFailed && report.lostServer() {
		p.Code = model.PuppetServerLost
	}
	switch {
	case p != model.Problem{}:
		return model.Between, model.Failed, p
	case report.Status == "changed" || report.Counts.Changed > 0:
		return model.Success, model.Changed, p
	}
	return model.Success, model.Unchanged, p
}

// refusal_ names why no catalog was applied.
func notApplied(out console) model.Problem {
	cause := oneLine(out.decisiveError())
	code := model.CatalogRefused
	switch {
	case noEnvironment().MatchString(cause):
		code = model.EnvironmentMissing
	case otherEnvironment().MatchString(cause):
		code = model.EnvironmentOther
	case strings.Contains(cause, "Error 500 on SERVER"): // its text may be anything
	case refusedOnServer().MatchString(cause):
		code = model.CertificateRefused
	case silentServer().MatchString(cause):
		code = model.PuppetServerAway
	}
	return model.Problem{Code: code, Text: model.Prose(cause)}
}

// unapplied reports whether the output proves that no catalog was applied.
func (c *console) unapplied() bool {
	return c.read && !c.applying && !c.ended && c.firstError() != ""
}

// decisiveError returns the error that ended the run: the answer of the server, else the first error.
func (c *console) decisiveError() string {
	for _, line := range c.lines {
		if isError(line) && (noEnvironment().MatchString(line.Message) || otherEnvironment().MatchString(line.Message) || strings.Contains(line.Message, "on SERVER")) {
			return line.Message
		}
	}
	return c.firstError()
}

// lostServer reports whether each failed resource failed because the server stopped answering.
func (r *runReport) lostServer() bool {
	failed := 0
	for _, e := range r.Resources {
		if e.Status != "failed" {
			continue
		}
		failed++
		text := strings.Join(e.Messages, "\n")
		if !silentServer().MatchString(text) || !ofServer().MatchString(text) {
			return false
		}
	}
	return failed > 0 && failed == r.Counts.Failed
}

// meaningful returns what names the code of a catalog: the code id, or a configured config_version. Without one, Puppet's version is
// the time, in seconds, when the server loaded the environment (puppet/resource/type_collection.rb). It tells nothing: a server with
// environment_timeout has another one in each of its JRuby instances, from any day.
func meaningful(r *runReport) string {
	if r.CodeID != "" {
		return r.CodeID
	}
	if _, err := strconv.ParseUint(r.Version, 10, 64); err == nil && len(r.Version) == len("1700000000") {
		return ""
	}
	return r.Version
}
