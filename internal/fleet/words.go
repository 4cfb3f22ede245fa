package fleet

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"pulley/environments/settings"
	"pulley/internal/access"
	"pulley/internal/cli"
	"pulley/internal/clip"
	"pulley/internal/model"
)

// States lists the states of nodes in a sentence.
func States() string {
	var names []string
	for _, s := range model.NodeStates() {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

// Sentence lists the states that nodes have.
func (c Counts) Sentence() string {
	var parts []string
	for _, state := range model.NodeStates() {
		if c[state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c[state], state))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "no nodes")
}

// Summary is two lines: the target with the nodes by state, and the health.
func (s Status) Summary() string {
	parts := []string{s.Counts.Sentence()}
	if s.Unclassified > 0 {
		parts = append(parts, fmt.Sprintf("%d with 0 classes", s.Unclassified))
	}
	if s.NoopPending > 0 {
		parts = append(parts, fmt.Sprintf("%d with changes pending under noop", s.NoopPending))
	}
	return fmt.Sprintf("%s: target %s, epoch %d; %s\n%s\n", s.Environment, s.Target, s.Epoch, strings.Join(parts, ", "), cli.Clean(s.Health.Sentence()))
}

// Next is the command that shows most about what most nodes suffer from that fail, are stuck or silent; "" if none does.
func (s Status) Next() string {
	all := Troubles(s.Nodes)
	if len(all) == 0 {
		return ""
	}
	node := all[0].Nodes[0]
	for _, n := range s.Nodes {
		if n.Node == node && !all[0].Silent && n.LastRun != "" && (n.Outcome == model.Failed || n.attempt != nil && n.attempt.Finished > 0) {
			return fmt.Sprintf("pulley runs %s latest -e %s", node, s.Environment)
		}
	}
	return fmt.Sprintf("pulley explain %s -e %s", node, s.Environment)
}

// Divided returns a line for each environment of a Puppet server whose name stands for different code on the nodes.
func (s Status) Divided() (lines []string) {
	codes := map[string][]string{}
	var order []string
	for _, c := range s.Served {
		if c.Code == "" {
			continue
		}
		of := c.Release + ": environment " + c.Environment + " of the Puppet server"
		if codes[of] == nil {
			order = append(order, of)
		}
		nodes := strings.Join(c.First, ", ")
		if more := c.Nodes - len(c.First); more > 0 {
			nodes += fmt.Sprintf(" and %d more", more)
		}
		codes[of] = append(codes[of], fmt.Sprintf("%s on %s", c.Code, nodes))
	}
	for _, of := range order {
		if len(codes[of]) > 1 {
			lines = append(lines, of+" stands for different code: "+strings.Join(codes[of], "; "))
		}
	}
	return lines
}

// ServedWords renders the source of a catalog.
func ServedWords(s model.Served) string {
	why := ""
	switch s.Reason {
	case string(settings.ChoiceMatched):
		why = fmt.Sprintf(", because %s is %q", s.Criterion, s.Value)
	case string(settings.ChoiceFallback):
		why = ", the fallback"
	case string(settings.ChoiceFailover):
		why = ", because its own server did not answer"
	}
	code := "; its code cannot be told: the environment has no config_version"
	if s.Code != "" {
		code = "; code " + s.Code
	}
	return fmt.Sprintf("environment %s of server %s%s%s", s.Environment, s.Server, why, code)
}

// StateStyle is the colour of a state on a terminal.
func StateStyle(state string) cli.Style {
	switch model.NodeState(state) {
	case model.Converged:
		return cli.Green
	case model.FailedState, model.Stuck:
		return cli.Red
	}
	return cli.Yellow
}

// Sentence renders a contradiction.
func (c Contradiction) Sentence() string {
	switch c.Code {
	case TargetDiffers:
		scope, _ := ScopeOf(c)
		if c.Epoch == 0 {
			return fmt.Sprintf("the target of %s in etcd is %s, and no change set one", scope, part(*c.Target))
		}
		return fmt.Sprintf("the target of %s in etcd is %s, its last change is %s at epoch %d", scope, part(*c.Target), part(*c.Change), c.Epoch)
	case EpochDiffers:
		return fmt.Sprintf("the gate in etcd has epoch %d, the last change has epoch %d", c.Gate, c.Epoch)
	case HistoryGap:
		return fmt.Sprintf("somebody deleted changes of the history up to epoch %d, or wrote them again", c.Epoch)
	case Restored:
		return fmt.Sprintf("etcd was restored from a backup or went back in time, at epoch %d: the gate is paused until `pulley recover -e ENVIRONMENT` or the next promotion", c.Epoch)
	case RetirementUnconfirmed:
		return "no administrator confirmed the request to retire " + someNodes(c.Nodes)
	case EpochAbove:
		return fmt.Sprintf("nodes have seen epoch %d, and the last change has epoch %d: they refuse what is older: %s", c.Seen, c.Epoch, someNodes(c.Nodes))
	case StatementMissing:
		return "the environment demands a signed statement of its targets, and etcd has none"
	case StatementExpired:
		return fmt.Sprintf("the statement of the targets ended at %s: nodes take nothing new", c.Until.UTC().Format(time.RFC3339))
	case StatementDiffers:
		return fmt.Sprintf("the target of %s in etcd is %s, the signed statement names %s at epoch %d: nodes do not take it", c.of, part(*c.Target), part(*c.Change), c.Epoch)
	case AssignmentDiffers:
		return fmt.Sprintf("%s is assigned %s, and its target is %s", c.Node, part(*c.Target), part(*c.Change))
	case MarkAbove:
		return fmt.Sprintf("%s has the high-water mark %s, and the highest of the history is %s", c.Node, markWords(*c.Target), markWords(*c.Change))
	}
	return string(c.Code)
}

// someNodes lists the first nodes, and the number of the others.
func someNodes(nodes []string) string {
	some, more := nodes[:min(len(nodes), 5)], ""
	if n := len(nodes) - len(some); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(some, ", ") + more
}

// part renders the target of one scope. Parts of it may be inherited.
func part(t model.Target) string {
	switch {
	case t == model.Target{}:
		return "none"
	case t.IsZero():
		return fmt.Sprintf("data %d", t.Data)
	}
	return t.String()
}

func markWords(t model.Target) string {
	return fmt.Sprintf("release %s, data %d", cmp.Or(t.Release, "none"), t.Data)
}

// StateCell is the state of the node, with its lack of classes, what noop keeps from it, its failing hook, and another Puppet on its machine.
func (n Node) StateCell() string {
	return stateWords(n.State, n.Unclassified, n.NoopPending, n.Hook != "", n.Rivals != "")
}

func stateWords(s model.NodeState, unclassified bool, noop int, hook, rivals bool) string {
	words := string(s)
	if rivals {
		words += ", another Puppet"
	}
	if unclassified {
		words += ", 0 classes"
	}
	if noop > 0 {
		words += fmt.Sprintf(", %d noop", noop)
	}
	if hook {
		words += ", hook failed"
	}
	return words
}

// Why is the sentence of the node's reason; "" for a converged node that applies classes.
func (n Node) Why(now time.Time) string {
	if n.FirstBoot != nil {
		return "first boot: " + n.FirstBoot.Cell(now)
	}
	if n.State == model.Converged && n.Hook != "" {
		return string(n.Hook)
	}
	if n.Unscheduled != "" {
		first, _ := clip.Parts(string(n.Unscheduled))
		if n.State == model.Converged {
			return first
		}
		return n.View.Sentence() + "; " + first
	}
	if n.State == model.Converged && n.Rivals != "" {
		first, _ := clip.Parts(model.RivalsWords(n.Rivals))
		return first
	}
	if n.State == model.Converged && n.Unclassified {
		first, _, _ := strings.Cut(model.UnclassifiedWords, "\n")
		return first
	}
	if n.State == model.Converged && n.NoopPending > 0 {
		return model.NoopWords(n.NoopPending)
	}
	if n.State == model.Converged {
		return ""
	}
	return n.View.Sentence()
}

// ReleaseCell is the last good release, and the desired one where it differs.
func (n Node) ReleaseCell() string {
	have := cmp.Or(n.Release, "-")
	if n.Desired != n.Release && n.Desired != "" {
		return have + " → " + n.Desired
	}
	return have
}

// DataCell is ReleaseCell for the data generation.
func (n Node) DataCell() string {
	if want := n.View.Wanted.Data; want != n.Data && n.LastSeen != nil {
		return fmt.Sprintf("%d → %d", n.Data, want)
	}
	return fmt.Sprint(n.Data)
}

// SeenCell is the age of the node's last report.
func (n Node) SeenCell(now time.Time) string {
	if n.LastSeen == nil {
		return "never"
	}
	return cli.Ago(now, *n.LastSeen)
}

// Words explains a node to a person.
func (x Explanation) Words(now time.Time) string {
	var b strings.Builder
	bare, noop, rivals := x.Status != nil && x.Status.Unclassified, 0, x.Status != nil && x.Status.Rivals != ""
	if x.Status != nil {
		noop = x.Status.NoopPending
	}
	cli.Cleanf(&b, "%s is %s: %s\n", x.Node, stateWords(x.State, bare, noop, x.Status != nil && x.Status.Hook != "", rivals), x.View.Sentence())
	if rivals {
		cli.Cleanf(&b, "  warning       %s\n", strings.ReplaceAll(model.RivalsWords(x.Status.Rivals), "\n", "; "))
	}
	if bare {
		cli.Cleanf(&b, "  warning       %s\n", strings.ReplaceAll(model.UnclassifiedWords, "\n", "; "))
	}
	if noop > 0 {
		cli.Cleanf(&b, "  warning       %s; `pulley runs %s %s -e %s` names them\n", model.NoopWords(noop), x.Node, x.Status.LastRun, x.Environment)
	}
	if x.Status != nil && x.Status.Unscheduled != "" {
		cli.Cleanf(&b, "  warning       %s\n", strings.ReplaceAll(string(x.Status.Unscheduled), "\n", "; "))
	}
	cli.Cleanf(&b, "  desired       %s\n  last good     %s\n", x.Desired, x.Has)
	if x.Rollout != "" {
		cli.Cleanf(&b, "  rollout       %s\n", x.Rollout)
	}
	if x.FirstBoot != nil {
		cli.Cleanf(&b, "  first boot    %s\n", x.FirstBoot.Cell(now))
	}
	if x.Status == nil {
		fmt.Fprintln(&b, "  It has not reported yet. The list below shows the decision of a new machine with this name.")
	} else {
		cli.Cleanf(&b, "  last report   %s, last run %s %s\n", cli.Ago(now, x.Status.SeenAt), x.Status.LastRun, x.Status.Outcome)
		if s := x.Status.Served; s != nil {
			cli.Cleanf(&b, "  catalog       %s\n", ServedWords(*s))
		}
		if x.Status.Hook != "" {
			cli.Cleanf(&b, "  hosts.d       %s; each tick runs it again, and later differences wait for it\n", x.Status.Hook)
		}
		if s := x.Status.Signatures; s != nil {
			cli.Cleanf(&b, "  signatures    %s\n", signatureWords(*s))
		}
		if u := x.Status.Agent; u != nil {
			problem := u.Problem.String()
			if problem != "" {
				problem = ": " + problem
			}
			cli.Cleanf(&b, "  agent         %s, desired %s: %s%s\n", strings.TrimPrefix(x.Status.Version, "v"), u.Wanted, u.Phase, problem)
		}
	}
	silent := x.State == model.Silent && x.Status != nil && x.Why.Reason != model.ReasonLockedOut
	if silent {
		fmt.Fprintln(&b, "  The list below is the decision on its last report: the node itself does not answer.")
	}
	fmt.Fprintln(&b)
	for _, r := range x.Ladder {
		mark := "yes"
		if !r.OK {
			mark = "NO "
		}
		cli.Cleanf(&b, "  %s  %s: %s\n", mark, r.Question, r.Answer())
	}
	why := x.Cause
	why.Params.Attempt = nil // the list above has its problem
	if silent {
		cli.Cleanf(&b, "\nnext tick: none is expected from a silent node; if it runs again: %s, because %s\non the machine, `pulley-agent status` shows whether cron starts the agent, and `pulley-agent run` what keeps it from reporting\n", x.Action, why.Sentence())
		if x.Made {
			fmt.Fprintf(&b, "`pulley env plan` with the file of %s shows whether its machine exists\n", x.Environment)
		}
	} else {
		cli.Cleanf(&b, "\nnext tick: %s, because %s\n", x.Action, why.Sentence())
	}
	if !silent && x.Cause.Reason == model.ReasonRefused && !x.Next.IsZero() {
		fmt.Fprintf(&b, "the node checks the target again after %s; at once: `pulley-agent run --force` on the machine\n", x.Next.UTC().Format(time.RFC3339))
	}
	if x.Why.Reason == model.ReasonLockedOut {
		if x.uncalled {
			fmt.Fprintf(&b, "%s does not call for it: raise the cardinality of its role in the environment file, or add it to the members, and run `pulley env apply`\n", x.Environment)
		}
		fmt.Fprintln(&b, JoinAgain(x.Environment, x.Node))
	}
	if x.Status != nil && x.Status.Outcome == model.Failed {
		cli.Cleanf(&b, "`pulley runs %s %s -e %s` shows the failed run\n", x.Node, x.Status.LastRun, x.Environment)
	}
	return b.String()
}

// signatureWords renders a node's checks of signatures.
func signatureWords(s model.Signatures) string {
	switch s.State {
	case model.SignaturesChecked:
		return fmt.Sprintf("checked, by %s (list %s); high-water mark: release %s, data %d%s", cli.Count(s.Keys, "key"), s.Signers, cmp.Or(s.Release, "none"), s.Data, statementWords(s.Statement))
	case model.SignaturesNotChecked:
		return "not checked"
	case model.SignaturesUnusable:
		return "the lists of signers are unusable: the node takes nothing new"
	}
	return string(s.State)
}

// statementWords renders a node's demand for statements.
func statementWords(epoch model.Epoch) string {
	if epoch == 0 {
		return ""
	}
	return fmt.Sprintf("; statements of the targets required, newest of epoch %d", epoch)
}

// Cell is the step of a first boot with its time and problem; "" for a finished one.
func (b *FirstBoot) Cell(now time.Time) string {
	if b == nil || !b.Finished.IsZero() {
		return ""
	}
	text := b.Step
	switch {
	case b.Stalled:
		text += " stalled, last report " + cli.Ago(now, b.Heard)
	case b.Paused != nil:
		text += " waits: provisioning is paused by " + b.Paused.By + ": " + oneLine(b.Paused.Why)
	case b.Waits(now) && b.Before == 0:
		text += " waits since " + cli.Span(now.Sub(b.Asked)) + ", the next one"
	case b.Waits(now):
		text += fmt.Sprintf(" waits since %s, %s longer", cli.Span(now.Sub(b.Asked)), cli.Count(b.Before, "machine"))
	case b.State == access.BootFailed:
		text += " failed " + cli.Ago(now, b.Heard)
	case b.State == access.BootDone:
		text += " done " + cli.Ago(now, b.Heard)
	default:
		text += " since " + cli.Span(now.Sub(b.Since))
	}
	if b.Attempts > 1 {
		text += fmt.Sprintf(" (%d attempts)", b.Attempts)
	}
	if b.Error != "" {
		text += ": " + oneLine(b.Error)
	}
	return text
}

// oneLine puts a text on one line. It cuts nothing: what to do is often at the end.
func oneLine(text model.Prose) string { return strings.ReplaceAll(string(text), "\n", "; ") }

// PauseSentence renders a pause of the provisioning of new machines.
func PauseSentence(ref model.Ref, by access.Revoked, now time.Time) string {
	return fmt.Sprintf("%s paused the provisioning of %s %s, no new machine begins: %s\nrun `pulley nodes resume -e %[2]s` to continue it",
		by.By, ref, cli.Ago(now, by.At), by.Why)
}

// Note is the further information about a node.
func (h Host) Note(now time.Time) string {
	var notes []string
	if h.Node != "" && !h.CalledFor {
		notes = append(notes, "not called for by the environment")
	}
	if h.Node == "" {
		notes = append(notes, "has no name yet")
	}
	if h.Registered && h.OtherName() {
		notes = append(notes, "hostname "+h.Hostname)
	}
	for _, c := range h.Refused {
		notes = append(notes, "claimed "+c.Value+", which belongs to "+c.Of)
	}
	if h.Removed != nil && !h.Registered {
		removed := "removed " + cli.Ago(now, h.Removed.At) + " by " + h.Removed.By
		if h.Removed.Left {
			removed = "left " + cli.Ago(now, h.Removed.At)
		}
		notes = append(notes, removed)
	}
	if d := h.Duplicate; d != nil {
		times, from := fmt.Sprintf("%s, last %s", cli.Count(d.Times, "time"), cli.Ago(now, d.At)), ""
		if d.From != "" {
			from = " from " + d.From
		}
		if d.Machine == "" {
			notes = append(notes, "a machine"+from+" used this name "+times+", and claimed to be the machine of another node")
		} else {
			notes = append(notes, fmt.Sprintf("duplicate machine used this name %s: machine id %.8s%s", times, d.Machine, from))
		}
	}
	return strings.Join(notes, "; ")
}
