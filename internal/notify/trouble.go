package notify

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"pulley/internal/access"
	"pulley/internal/model"
)

// mostLately is the number of notices of one cause within an hour: it began, ended, and both again. Nodes that fail and recover again
// and again cause no more.
const mostLately = 4

// Trouble is a lasting state of an environment, or of the fleet. It has a beginning and an end, and each is announced once, by whichever serve sees
// it first: what was announced is in etcd.
type Trouble struct {
	Kind    NoticeKind
	Cause   string // tells troubles of one kind apart
	Release string
	Nodes   []string // the first of Count
	Count   int
	Text    model.Prose
	Stuck   bool // announced once more, as nodes_stuck
}

// ID is the same for the same trouble, in every serve. That of nodes that fail does not change when they are stuck.
func (t Trouble) ID(ref model.Ref) string { return id(t.Kind, ref, t.Release, t.Cause) }

// announced are the notices of the troubles of an environment, or of the fleet, as etcd had them.
type announced struct {
	until time.Time // they are read again then: another serve may announce, too
	all   []Notice
}

// announcedKept is how long what was read is known. What was just sent is read at once: it may not be in etcd yet.
const announcedKept = 5 * time.Minute

// Troubles sends a notice of each trouble that began, has ten times as many nodes, or is stuck, since the last notice of it; and of each one of
// these kinds that ended, unless it lasts. It does not block for receivers.
func (n *Notifier) Troubles(ctx context.Context, ref model.Ref, kinds []NoticeKind, now []Trouble, lasts func(id string) bool) error {
	if len(n.senders) == 0 {
		return nil
	}
	n.mu.Lock()
	known := n.announced[ref]
	n.mu.Unlock()
	if n.Now().Before(known.until) && len(due(ref, kinds, now, lasts, known.all, n.Now())) == 0 {
		return nil
	}
	all, _, err := n.Notices.List(ctx) // another serve may have announced it
	if err != nil {
		return err
	}
	known = announced{until: n.Now().Add(announcedKept)}
	for _, notice := range all {
		if notice.Environment == ref.String() && notice.Cause != "" {
			known.all = append(known.all, notice)
		}
	}
	for _, notice := range due(ref, kinds, now, lasts, known.all, n.Now()) {
		known.until = time.Time{}
		n.send(notice, string(notice.Kind)+" "+ref.String())
	}
	n.mu.Lock()
	n.announced[ref] = known
	n.mu.Unlock()
	return nil
}

// due returns the notices that troubles call for after those that were announced.
func due(ref model.Ref, kinds []NoticeKind, now []Trouble, lasts func(string) bool, known []Notice, at time.Time) (all []Notice) {
	last, lately := map[string]Notice{}, map[string]int{}
	for _, notice := range known {
		if notice.Number > last[notice.Cause].Number {
			last[notice.Cause] = notice
		}
		if at.Sub(notice.At) < time.Hour {
			lately[notice.Cause]++
		}
	}
	for _, t := range now {
		cause, kind := t.ID(ref), t.Kind
		before, open := last[cause], last[cause].Number > 0 && !last[cause].Ended
		if t.Stuck {
			kind = NodesStuck
		}
		grown := t.Count >= 10*before.Count || kind == NodesStuck && before.Kind != kind
		if open && !grown || lately[cause] >= mostLately {
			continue
		}
		all = append(all, Notice{
			Kind: kind, Environment: ref.String(), Cause: cause, Number: before.Number + 1, Release: t.Release, Nodes: t.Nodes, Count: t.Count, Problem: t.Text,
			Again: !open && lately[cause] > 0,
		})
	}
	for cause, before := range last {
		kind := before.Kind
		if kind == NodesStuck {
			kind = NodesFail
		}
		if before.Ended || lasts(cause) || lately[cause] >= mostLately || !slices.Contains(kinds, kind) {
			continue
		}
		ended := before
		ended.Number, ended.Ended, ended.State, ended.Attempts, ended.Error, ended.Again = before.Number+1, true, "", 0, "", false
		all = append(all, ended)
	}
	for i := range all {
		all[i].ID = fmt.Sprintf("%s-%d", all[i].Cause, all[i].Number) // of one number, serves that disagree send one
	}
	slices.SortFunc(all, func(a, b Notice) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// ofTrouble renders the notice of a trouble.
func ofTrouble(n Notice) (title, text string) {
	nodes := names(n)
	problem := string(n.Problem)
	if n.Again {
		problem += "\nIt began again within an hour. The next notice of it may come an hour later."
	}
	status := "`pulley status -e " + n.Environment + "`"
	failed := fmt.Sprintf("%s\n`pulley status -e %s --state failed,stuck` lists the nodes that fail, `pulley runs NODE latest -e %[2]s` shows a run", problem, n.Environment)
	switch {
	case n.Kind == CertificatesEnd && n.Ended:
		return "certificates" + in(n) + " were renewed, or nobody holds them any more", nodes
	case n.Kind == CertificatesEnd:
		return "certificates" + in(n) + " end soon, or have ended", strings.TrimPrefix(nodes+"\n"+problem, "\n")
	case n.Kind == Degraded && n.Ended:
		return n.Environment + " is not degraded any more", status
	case n.Kind == Degraded:
		return n.Environment + " is degraded: " + nodes, problem + "\n" + status
	case n.Kind == NodesSilent && n.Ended:
		return "silent nodes in " + n.Environment + " report again, or were removed: " + nodes, status
	case n.Kind == NodesSilent:
		return "nodes in " + n.Environment + " are silent: " + nodes, fmt.Sprintf("%s\nCheck the machines and their connection to etcd: `pulley status -e %s --state silent`", problem, n.Environment)
	case n.Ended:
		return "nodes in " + n.Environment + " do not fail any more: " + nodes, "This cause has ended: " + string(n.Problem) + "\n" + status + " shows what else fails"
	case n.Kind == PromotionFails:
		return "nodes in " + n.Environment + " fail to take " + n.Release + ": " + nodes, failed
	case n.Kind == NodesStuck:
		return "nodes in " + n.Environment + " are stuck, and retry rarely: " + nodes, failed
	}
	return "nodes in " + n.Environment + " fail: " + nodes, failed
}

// names names the nodes of a notice.
func names(n Notice) string {
	text := strings.Join(n.Nodes, ", ")
	if more := n.Count - len(n.Nodes); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// in names the environment of a notice that may belong to none.
func in(n Notice) string {
	if n.Environment == "" {
		return ""
	}
	return " in " + n.Environment
}

// Drifted sends a notice of nodes that something else than Pulley changed, and that their runs corrected: one a day for each resource. more is the
// number of other resources of one run. It reports whether the notice is queued, and never blocks.
func (n *Notifier) Drifted(ref model.Ref, resource string, more int, nodes []string) bool {
	kind := NodesDrifted
	text := resource
	if strings.HasPrefix(resource, "Exec[") {
		text = "Exec[…]" // its title may be its command
	}
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return n.send(Notice{
		ID: id(kind, ref, resource, n.Now().UTC().Format(time.DateOnly)), Kind: kind, Environment: ref.String(), Nodes: nodes[:min(len(nodes), MaxNames)], Count: len(nodes),
		Problem: model.Prose(text),
	}, string(kind)+" "+ref.String())
}

// Removed sends a notice of nodes that one operator removed for one reason, within the minute that began at r.At. It reports whether
// the notice is queued, and never blocks.
func (n *Notifier) Removed(ref model.Ref, r access.Removal, nodes []string) bool {
	kind := NodesRemoved
	why := model.Prose(strings.TrimSuffix("by "+r.By+": "+string(r.Why), ": "))
	if r.Left {
		why = "they left the fleet"
	}
	return n.send(Notice{
		ID: id(kind, ref, string(why), r.At.UTC().Format(time.RFC3339)), Kind: kind, Environment: ref.String(), Nodes: nodes[:min(len(nodes), MaxNames)], Count: len(nodes),
		Problem: why,
	}, string(kind)+" "+ref.String())
}

// MaxNames is the number of nodes that a notice names.
const MaxNames = 5
