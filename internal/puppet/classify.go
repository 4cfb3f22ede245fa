package puppet

import (
	"cmp"
	"strings"

	"pulley/agent"
	"pulley/internal/clip"
)

// classify judges an ended run by the end of its process, its report (nil when missing) and its output. It returns the
// kind, the outcome and the problem; zero means none.
//
// A bad exit code or a missing report does not prove that nothing changed. A good exit code with a good report does not
// prove that anything was applied. Success and untouched therefore need proof, and everything else is between.
func classify(e end, noop bool, report *runReport, out console) (agent.Kind, agent.Outcome, agent.Problem) {
	switch {
	case e.why == "" && e.code == 1 && report == nil && out.refused():
		cause, code := oneLine(out.firstError()), agent.CatalogRefused
		switch undecrypted := notDecrypted().FindStringSubmatch(cause); {
		case missingCoreType().MatchString(cause):
			code = agent.CoreTypeMissing
		case strings.Contains(cause, missingEyaml):
			code = agent.EyamlMissing
		case undecrypted != nil: // the message begins with the encrypted value
			code, cause = agent.NotDecrypted, undecrypted[1]
		}
		return agent.Untouched, agent.Failed, agent.Problem{Code: code, Text: agent.Prose(cause)}
	case noop:
		return classifyNoop(e, report, out)
	}
	if p := problem(e, report, out); p != (agent.Problem{}) {
		return agent.Between, agent.Failed, p
	}
	if report.Status == "changed" || report.Counts.Changed > 0 {
		return agent.Success, agent.Changed, agent.Problem{}
	}
	return agent.Success, agent.Unchanged, agent.Problem{}
}

// classifyNoop judges a noop run. The machine is unchanged unless a resource is applied anyway: `noop => false` in the
// manifest overrides the run's noop.
func classifyNoop(e end, report *runReport, out console) (agent.Kind, agent.Outcome, agent.Problem) {
	switch {
	case report == nil || !report.Noop || !report.Completed || e.why != "" || e.code > 6:
		return agent.Between, agent.Failed, cmp.Or(problem(e, report, out), agent.Problem{Code: agent.DidNotRunAsNoop})
	case report.Counts.Changed > 0 || report.Status == "changed":
		return agent.Between, agent.Changed, agent.Problem{Code: agent.NoopChanged, Number: report.Counts.Changed}
	case report.Counts.Failed > 0 || report.Counts.FailedToRestart > 0 || report.Status == "failed" || (e.code != 0 && e.code != 2):
		return agent.Untouched, agent.Failed, cmp.Or(failures(report), agent.Problem{Code: agent.NoopFailed, Text: last(out)})
	}
	return agent.Untouched, agent.Unchanged, agent.Problem{}
}

// problem returns the problem that makes an applied run fail, the most direct cause first.
func problem(e end, report *runReport, out console) agent.Problem {
	switch {
	case e.outlived:
		return agent.Problem{Code: agent.PuppetUnkillable, Text: agent.Prose(e.why)}
	case e.why != "":
		return agent.Problem{Code: agent.PuppetUnfinished, Text: agent.Prose(e.why)}
	case e.code > 128:
		return agent.Problem{Code: agent.PuppetKilled, Number: e.code - 128}
	case out.ended && e.code <= 1 && (report == nil || !report.Completed):
		return agent.Problem{Code: agent.PuppetStopped, Text: agent.Prose(firstLine(out.lastError()))}
	case report == nil:
		return agent.Problem{Code: agent.NoReport, Number: e.code, Text: last(out)}
	case report.Counts.Failed > 0 || report.Counts.FailedToRestart > 0:
		return failures(report)
	case report.Status == "failed" || !report.Completed:
		return agent.Problem{Code: agent.CatalogIncomplete, Text: last(out)}
	case report.Noop:
		return agent.Problem{Code: agent.RanAsNoop}
	case len(report.Tags) > 0:
		return agent.Problem{Code: agent.RanWithTags, Text: agent.Prose(clip.Text(strings.Join(report.Tags, ", "), 200))}
	case e.code != 0 && e.code != 2:
		return agent.Problem{Code: agent.ExitCode, Number: e.code, Text: last(out)}
	case report.Status != "changed" && report.Status != "unchanged":
		return agent.Problem{Code: agent.UnknownStatus, Text: agent.Prose(clip.Text(report.Status, 50))}
	}
	return agent.Problem{}
}

// failures counts the failed resources, with the message of the first.
func failures(r *runReport) agent.Problem {
	p := agent.Problem{Code: agent.ResourcesFailed, Number: r.Counts.Failed}
	if p.Number == 0 {
		p = agent.Problem{Code: agent.RestartsFailed, Number: r.Counts.FailedToRestart}
	}
	if p.Number == 0 {
		return agent.Problem{}
	}
	for _, e := range r.Resources {
		if e.Status != "failed" {
			continue
		}
		text := e.Resource
		if len(e.Messages) > 0 {
			text += ": " + firstLine(e.Messages[0])
		}
		p.Text = agent.Prose(clip.Text(text, maxMessage))
		break
	}
	return p
}

func last(out console) agent.Prose { return agent.Prose(oneLine(out.lastError())) }

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
