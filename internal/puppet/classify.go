package puppet

import (
	"cmp"
	"strings"

	"pulley/internal/clip"
	"pulley/internal/model"
)

// classify judges an ended run by the end of its process, its report (nil when missing) and its output. It returns the
// kind, the outcome and the problem; zero means none.
//
// A bad exit code or a missing report does not prove that nothing changed. A good exit code with a good report does not
// prove that anything was applied. Success and untouched therefore need proof, and everything else is between.
func classify(e end, noop bool, report *runReport, out console) (model.Kind, model.Outcome, model.Problem) {
	switch {
	case e.why == "" && e.code == 1 && report == nil && out.refused():
		cause, code := oneLine(out.firstError()), model.CatalogRefused
		switch undecrypted := notDecrypted().FindStringSubmatch(cause); {
		case missingCoreType().MatchString(cause):
			code = model.CoreTypeMissing
		case strings.Contains(cause, missingEyaml):
			code = model.EyamlMissing
		case undecrypted != nil: // the message begins with the encrypted value
			code, cause = model.NotDecrypted, undecrypted[1]
		}
		return model.Untouched, model.Failed, model.Problem{Code: code, Text: model.Prose(cause)}
	case noop:
		return classifyNoop(e, report, out)
	}
	if p := problem(e, report, out); p != (model.Problem{}) {
		return model.Between, model.Failed, p
	}
	if report.Status == "changed" || report.Counts.Changed > 0 {
		return model.Success, model.Changed, model.Problem{}
	}
	return model.Success, model.Unchanged, model.Problem{}
}

// classifyNoop judges a noop run. The machine is unchanged unless a resource is applied anyway: `noop => false` in the
// manifest overrides the run's noop.
func classifyNoop(e end, report *runReport, out console) (model.Kind, model.Outcome, model.Problem) {
	switch {
	case report == nil || !report.Noop || !report.Completed || e.why != "" || e.code > 6:
		return model.Between, model.Failed, cmp.Or(problem(e, report, out), model.Problem{Code: model.DidNotRunAsNoop})
	case report.Counts.Changed > 0 || report.Status == "changed":
		return model.Between, model.Changed, model.Problem{Code: model.NoopChanged, Number: report.Counts.Changed}
	case report.Counts.Failed > 0 || report.Counts.FailedToRestart > 0 || report.Status == "failed" || (e.code != 0 && e.code != 2):
		return model.Untouched, model.Failed, cmp.Or(failures(report), model.Problem{Code: model.NoopFailed, Text: last(out)})
	}
	return model.Untouched, model.Unchanged, model.Problem{}
}

// problem returns the problem that makes an applied run fail, the most direct cause first.
func problem(e end, report *runReport, out console) model.Problem {
	switch {
	case e.outlived:
		return model.Problem{Code: model.PuppetUnkillable, Text: model.Prose(e.why)}
	case e.why != "":
		return model.Problem{Code: model.PuppetUnfinished, Text: model.Prose(e.why)}
	case e.code > 128:
		return model.Problem{Code: model.PuppetKilled, Number: e.code - 128}
	case out.ended && e.code <= 1 && (report == nil || !report.Completed):
		return model.Problem{Code: model.PuppetStopped, Text: model.Prose(firstLine(out.lastError()))}
	case report == nil:
		return model.Problem{Code: model.NoReport, Number: e.code, Text: last(out)}
	case report.Counts.Failed > 0 || report.Counts.FailedToRestart > 0:
		return failures(report)
	case report.Status == "failed" || !report.Completed:
		return model.Problem{Code: model.CatalogIncomplete, Text: last(out)}
	case report.Noop:
		return model.Problem{Code: model.RanAsNoop}
	case len(report.Tags) > 0:
		return model.Problem{Code: model.RanWithTags, Text: model.Prose(clip.Text(strings.Join(report.Tags, ", "), 200))}
	case e.code != 0 && e.code != 2:
		return model.Problem{Code: model.ExitCode, Number: e.code, Text: last(out)}
	case report.Status != "changed" && report.Status != "unchanged":
		return model.Problem{Code: model.UnknownStatus, Text: model.Prose(clip.Text(report.Status, 50))}
	}
	return model.Problem{}
}

// failures counts the failed resources, with the message of the first.
func failures(r *runReport) model.Problem {
	p := model.Problem{Code: model.ResourcesFailed, Number: r.Counts.Failed}
	if p.Number == 0 {
		p = model.Problem{Code: model.RestartsFailed, Number: r.Counts.FailedToRestart}
	}
	if p.Number == 0 {
		return model.Problem{}
	}
	for _, e := range r.Resources {
		if e.Status != "failed" {
			continue
		}
		text := e.Resource
		if len(e.Messages) > 0 {
			text += ": " + firstLine(e.Messages[0])
		}
		p.Text = model.Prose(clip.Text(text, maxMessage))
		break
	}
	return p
}

func last(out console) model.Prose { return model.Prose(oneLine(out.lastError())) }

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
