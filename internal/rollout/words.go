package rollout

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/internal/model"
)

// Sentence renders a wait.
func (w Wait) Sentence() string {
	text := w.sentence()
	if len(w.Lost) > 0 && w.Code != WaitLost {
		lost := Wait{Nodes: w.Lost[:min(len(w.Lost), named)], Count: len(w.Lost)}
		text += fmt.Sprintf("; %s began, did not answer, and may still run", lost.Names())
	}
	return text
}

func (w Wait) sentence() string {
	switch w.Code {
	case WaitGate:
		return w.gateSentence()
	case WaitApproval:
		return "it waits for an approval of the next batch"
	case WaitNodes:
		return fmt.Sprintf("it waits for %s, until %s", w.Names(), w.Until.UTC().Format(time.RFC3339))
	case WaitSettle:
		if w.Until.IsZero() {
			return fmt.Sprintf("it waits for %s to report once more: the settle time is over", w.Names())
		}
		return fmt.Sprintf("it waits for %s to stay healthy until %s", w.Names(), w.Until.UTC().Format(time.RFC3339))
	case WaitIdle:
		return fmt.Sprintf("it waits until %s ended their runs, until %s", w.Names(), w.Until.UTC().Format(time.RFC3339))
	case WaitLost:
		return fmt.Sprintf("it waits for nodes that began, did not answer, and may still run: %s", w.Names())
	case WaitHeld:
		if !w.Until.IsZero() {
			return fmt.Sprintf("it waits for %s: held, until %s", w.Names(), w.Until.UTC().Format(time.RFC3339))
		}
		return fmt.Sprintf("it waits for %s: held", w.Names())
	case WaitPlace:
		return fmt.Sprintf("it waits before %s: too many nodes of %s are unavailable", w.Node, w.Place)
	case WaitAnswers:
		return w.answersSentence()
	case WaitWindow:
		if w.Until.IsZero() {
			return "it waits for a window of its policy, and this machine knows none that opens: update its time zones"
		}
		return fmt.Sprintf("it waits for the next window, until %s", w.Until.UTC().Format(time.RFC3339))
	case WaitServe:
		return "the next step is due: `pulley serve` takes it"
	}
	return "more must be read from etcd"
}

func (w Wait) gateSentence() string {
	if w.Stop != nil && (w.Gate == nil || w.Gate.State != model.GateAborted) {
		return "it paused by itself: " + w.Stop.Sentence()
	}
	if w.Gate == nil {
		return "it is paused"
	}
	text := "paused"
	if w.Gate.State == model.GateAborted {
		text = "aborted"
	}
	text = fmt.Sprintf("%s by %s", text, w.Gate.By)
	if w.Gate.Why != "" {
		text += ": " + string(w.Gate.Why)
	}
	return text
}

func (w Wait) answersSentence() string {
	var all []string
	for _, gate := range slices.Sorted(maps.Keys(w.Answers)) {
		one := w.Answers[gate]
		text := map[AnswerCode]string{
			"": "is asked", GateRefused: "refuses", GateUnanswered: "cannot be asked", GateUndefined: "is not defined on the machine of serve",
		}[one.Code]
		if one.Text != "" {
			text += ": " + string(one.Text)
		}
		all = append(all, fmt.Sprintf("gate %s %s", gate, text))
	}
	return fmt.Sprintf("it waits for its gates, until %s: %s", w.Until.UTC().Format(time.RFC3339), strings.Join(all, "; "))
}

// Names lists the nodes of a wait.
func (w Wait) Names() string {
	text := strings.Join(w.Nodes, ", ")
	if more := w.Count - len(w.Nodes); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Sentence renders the cause of a pause.
func (s Stop) Sentence() string {
	switch s.Code {
	case StopFailures:
		return fmt.Sprintf("%s failed, and the policy allows %d", count(s.Failed), s.Allowed)
	case StopBatch:
		return fmt.Sprintf("%s of the batch failed, and the policy allows %d", count(s.Failed), s.Allowed)
	case StopProgress:
		return "no node ended for too long"
	case StopGates:
		return "it waited for too long for " + strings.Join(s.Gates, ", ") + " to pass"
	case StopPlace:
		return fmt.Sprintf("%s waited for too long: too many nodes of %s are unavailable (%s)", s.Node, s.Place, strings.Join(s.Nodes, ", "))
	case StopBusy:
		return "it waited for too long until these nodes ended their runs: " + strings.Join(s.Nodes, ", ")
	case StopDoubtful:
		return fmt.Sprintf("%s failed because etcd did not answer, which proves nothing about the target (run %s)", s.Node, s.Run)
	case StopServer:
		if s.Run == "" {
			return s.Node + " waits for a Puppet server that answers, which proves nothing about the target"
		}
		return fmt.Sprintf("the Puppet server of %s stopped answering during its run, which proves nothing about the target (run %s)", s.Node, s.Run)
	case StopOther:
		return fmt.Sprintf("the Puppet server gave %s the code %s, and the nodes before it %s: the environment changed meanwhile", s.Node, s.After, s.Before)
	case StopRestored:
		by := "`pulley serve`"
		if s.Node != "" {
			by = s.Node
		}
		return by + " has seen a later epoch: etcd was restored from an older backup"
	}
	return string(s.Code)
}

func count(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

// Words renders the cause of a failure.
func (c FailureCode) Words() string {
	switch c {
	case RunFailed:
		return "its run failed"
	case AgentDropped:
		return "it dropped the agent"
	case NodeRefused:
		return "it refused the target"
	case DeadlineEnded:
		return "it did not begin before its deadline"
	case NodeLost:
		return "it began, and did not answer before its deadline"
	case NotReady:
		return "it could not begin"
	}
	return string(c)
}

// Words renders the cause of a skip.
func (c SkipCode) Words() string {
	switch c {
	case SkipRemoved:
		return "it was removed, or another machine has its name"
	case SkipOperator:
		return "an operator skipped it"
	case SkipStopped:
		return "the job stopped before it began"
	}
	return "it was " + string(c) + ", and the policy skips such nodes"
}
