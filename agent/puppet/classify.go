package puppet

import (
	"fmt"
	"strings"

	"pulley/agent"
	"pulley/internal/clip"
)

// classify judges an ended run by how the process ended, by this very run's report (nil when there is none) and by its
// output. It returns what the run left behind, what it did, and one sentence on what is wrong, "" when nothing is.
//
// Neither a bad exit code nor a missing report means that nothing changed, and a good exit code with a good report does
// not mean that anything was applied: hence success and untouched both need proof, and all else is between.
func classify(e end, noop bool, report *Report, out console) (agent.Kind, agent.Outcome, string) {
	switch {
	case e.why == "" && e.code == 1 && report == nil && out.refused():
		return agent.Untouched, agent.Failed, oneLine(out.firstError())
	case noop:
		return classifyNoop(e, report, out)
	}
	if problem := problem(e, report, out); problem != "" {
		return agent.Between, agent.Failed, problem
	}
	if report.Status == "changed" || report.Counts.Changed > 0 {
		return agent.Success, agent.Changed, ""
	}
	return agent.Success, agent.Unchanged, ""
}

// classifyNoop judges a run that was asked only to show. It left the machine alone unless a resource insists on being
// applied (`noop => false` in the manifest wins over the run's noop).
func classifyNoop(e end, report *Report, out console) (agent.Kind, agent.Outcome, string) {
	switch {
	case report == nil || !report.Noop || !report.Completed || e.why != "" || e.code > 6:
		return agent.Between, agent.Failed, orElse(problem(e, report, out), "Puppet did not run as noop")
	case report.Counts.Changed > 0 || report.Status == "changed":
		return agent.Between, agent.Changed, fmt.Sprintf("Puppet changed %s although it ran as noop: the release sets `noop => false`", count(report.Counts.Changed, "resource"))
	case report.Counts.Failed > 0 || report.Counts.FailedToRestart > 0 || report.Status == "failed" || (e.code != 0 && e.code != 2):
		return agent.Untouched, agent.Failed, orElse(failures(report), lastOr(out, "the noop run failed"))
	}
	return agent.Untouched, agent.Unchanged, ""
}

// problem is the ladder of everything that keeps an applied run from being a success, the plainest cause first.
func problem(e end, report *Report, out console) string {
	switch {
	case e.outlived:
		return "Puppet does not end: " + e.why + ", and outlived even SIGKILL"
	case e.why != "":
		return "Puppet did not finish: " + e.why
	case e.code > 128:
		return fmt.Sprintf("Puppet was ended by signal %d", e.code-128)
	case out.ended:
		return "Puppet was ended by a signal: " + firstLine(orElse(out.lastError(), "it says so"))
	case report == nil:
		return lastOr(out, fmt.Sprintf("Puppet wrote no report (exit code %d)", e.code))
	case report.Counts.Failed > 0 || report.Counts.FailedToRestart > 0:
		return failures(report)
	case report.Status == "failed" || !report.Completed:
		return lastOr(out, "the catalog was not applied in full")
	case report.Noop:
		return "Puppet ran as noop, so it applied nothing"
	case len(report.Tags) > 0:
		return "Puppet ran with tags (" + clip.Text(strings.Join(report.Tags, ", "), 200) + "), so it may have applied a part only"
	case e.code != 0 && e.code != 2:
		return lastOr(out, fmt.Sprintf("Puppet's exit code is %d although its report says %s", e.code, report.Status))
	case report.Status != "changed" && report.Status != "unchanged":
		return fmt.Sprintf("Puppet's report has the unknown status %q", clip.Text(report.Status, 50))
	}
	return ""
}

// failures says how many resources failed, and how the first did.
func failures(r *Report) string {
	n := r.Counts.Failed
	what := "failed"
	if n == 0 {
		n, what = r.Counts.FailedToRestart, "failed to restart"
	}
	if n == 0 {
		return ""
	}
	text := fmt.Sprintf("%s %s", count(n, "resource"), what)
	for _, e := range r.Resources {
		if e.Status != "failed" {
			continue
		}
		text += ": " + e.Resource
		if len(e.Messages) > 0 {
			text += ": " + firstLine(e.Messages[0])
		}
		break
	}
	return clip.Text(text, maxMessage)
}

func lastOr(out console, text string) string { return orElse(oneLine(out.lastError()), text) }

func orElse(text, other string) string {
	if text != "" {
		return text
	}
	return other
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
