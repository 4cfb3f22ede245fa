// Package notify sends notices of events to people: troubles of nodes, first boots, rollouts, duplicate machines and floods.
//
// It must never log or store a receiver's URL, which contains secrets, and never send the same notice twice.
package notify

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/rollout"
)

const (
	sendTimeout  = 20 * time.Second
	sendAttempts = 5
	firstRetry   = 10 * time.Second // doubled after each attempt
	maxWaiting   = 1024             // notices in memory
)

// Limits on notices: a machine without a certificate can claim anything.
const (
	repeatEvery = time.Hour // for each kind and node
	maxOfSource = 20        // in repeatEvery, for each kind and rollout, and for each kind and token of machines that have not joined
	maxSubjects = 10000
)

// Config is the environment of a Notifier.
type Config struct {
	Notices *Notices
	URLs    []string // of receivers, in the form of shoutrrr
	Now     func() time.Time
	Log     *slog.Logger
	Sent    prometheus.Counter // may be nil
}

// Notifier sends notices. Several serves may send the same: etcd lets one of them claim each notice.
type Notifier struct {
	Config
	senders    []sender
	queue      chan Notice
	firstRetry time.Duration

	mu        sync.Mutex
	recent    map[string]count
	announced map[model.Ref]announced
}

// count is the number of notices of a subject since a time.
type count struct {
	since time.Time
	times int
}

// Check reports whether all URLs are valid.
func Check(urls []string) error {
	_, err := newSenders(urls)
	return err
}

// New returns a notifier. Without URLs it sends nothing.
func New(c Config) (*Notifier, error) {
	senders, err := newSenders(c.URLs)
	if err != nil {
		return nil, err
	}
	return &Notifier{
		Config: c, senders: senders, queue: make(chan Notice, maxWaiting), firstRetry: firstRetry, recent: map[string]count{},
		announced: map[model.Ref]announced{},
	}, nil
}

// FirstBoot sends a notice if a first boot has finished or failed at a step. It never blocks.
func (n *Notifier) FirstBoot(ref model.Ref, b access.FirstBoot) {
	switch {
	case !b.Finished.IsZero():
		n.ofBoot(FirstBootFinished, ref, b, "")
	case b.State == access.BootFailed:
		n.ofBoot(FirstBootFailed, ref, b, b.Step)
	}
}

// Stalled sends a notice of a first boot that is silent. It never blocks.
func (n *Notifier) Stalled(ref model.Ref, b access.FirstBoot) {
	n.ofBoot(FirstBootStalled, ref, b, b.Step)
}

func (n *Notifier) ofBoot(kind NoticeKind, ref model.Ref, b access.FirstBoot, step string) {
	notice := Notice{
		ID: id(kind, ref, b.Machine, b.Started.UTC().Format(time.RFC3339), step), Kind: kind, Environment: ref.String(),
		Node: b.Node, Machine: b.Machine, Step: step, Since: b.Heard, Problem: b.Error,
	}
	if !b.Finished.IsZero() {
		notice.TookSeconds = int64(b.Finished.Sub(b.Started) / time.Second)
	}
	token := b.Token
	if b.Joined {
		token = ""
	}
	n.send(notice, token)
}

// DuplicateRefused sends a notice of a duplicate machine that requested a node's name. It never blocks.
func (n *Notifier) DuplicateRefused(ref model.Ref, node string, c access.Duplicate) {
	kind := DuplicateRefused
	n.send(Notice{
		ID: id(kind, ref, node, c.Machine, c.First.UTC().Format(time.RFC3339)), Kind: kind, Environment: ref.String(),
		Node: node, Machine: c.Machine, Hostname: c.Hostname, From: c.From,
	}, "")
}

// SecretsGiven sends a notice of a machine that joined, and can decrypt secrets from then on. It never blocks.
func (n *Notifier) SecretsGiven(ref model.Ref, i access.Identity, from string) {
	kind := SecretsGiven
	n.send(Notice{
		ID: id(kind, ref, i.Node, i.Incarnation), Kind: kind, Environment: ref.String(), Node: i.Node, Machine: i.Machine, From: from, Token: i.Token, Operator: i.By,
	}, "")
}

// DuplicateRuns sends a notice of two machines that run as one node. It never blocks.
func (n *Notifier) DuplicateRuns(ref model.Ref, node string, boots [2]string) {
	kind := DuplicateRuns
	n.send(Notice{ID: id(kind, ref, node, boots[0], boots[1]), Kind: kind, Environment: ref.String(), Node: node, Boots: boots[:]}, "")
}

// Flood sends a notice of a node that writes too much. It never blocks.
func (n *Notifier) Flood(ref model.Ref, f fleet.Flood) {
	kind := NodeFloods
	n.send(Notice{
		ID: id(kind, ref, f.Node, f.First.UTC().Format(time.RFC3339)), Kind: kind, Environment: ref.String(), Node: f.Node, Bytes: f.Bytes, Writes: f.Writes, Calls: f.Calls, Shown: f.Shown,
	}, "")
}

// Rollout sends a notice of a staged rollout. what tells two events of one kind apart, and text describes the event. It never
// blocks.
func (n *Notifier) Rollout(ref model.Ref, kind NoticeKind, p *rollout.Plan, what, text string) {
	n.send(Notice{
		ID: id(kind, ref, p.ID, p.Nonce, what), Kind: kind, Environment: ref.String(), Rollout: p.ID, Problem: model.Prose(text),
	}, ref.String()+" "+p.ID+p.Nonce)
}

// HoldEnded sends a notice of a hold that its time ended. It never blocks.
func (n *Notifier) HoldEnded(ref model.Ref, h model.Hold) {
	kind := HoldEnded
	n.send(Notice{ID: id(kind, ref, h.Scope, h.Until.UTC().Format(time.RFC3339)), Kind: kind, Environment: ref.String(), Hold: &h}, "")
}

// WentBack sends a notice of an environment whose etcd went back in time. It never blocks.
func (n *Notifier) WentBack(ref model.Ref, epoch model.Epoch) {
	kind := WentBack
	n.send(Notice{ID: id(kind, ref, fmt.Sprint(epoch)), Kind: kind, Environment: ref.String()}, "")
}

// ConnectionsRefused sends a notice of a listener, and of the address with the most connections, or of the node or
// operator at its limit. It never blocks.
func (n *Notifier) ConnectionsRefused(of Notice) {
	of.Kind = ConnectionsRefused
	of.ID = id(of.Kind, model.Ref{}, of.Listener, of.Environment, of.Node, of.Operator, n.hour())
	n.send(of, "")
}

// CallsRefused sends a notice of an operator whose calls etcd refuses. It never blocks.
func (n *Notifier) CallsRefused(operator string, calls int64) {
	kind := CallsRefused
	n.send(Notice{ID: id(kind, model.Ref{}, operator, n.hour()), Kind: kind, Operator: operator, Calls: calls}, "")
}

// hour makes the ID of a notice that repeats while its cause lasts.
func (n *Notifier) hour() string { return n.Now().UTC().Truncate(repeatEvery).Format(time.RFC3339) }

// id returns the same text for the same event.
func id(kind NoticeKind, ref model.Ref, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(append([]string{ref.String()}, parts...), "\x00")))
	return string(kind) + "-" + hex.EncodeToString(sum[:8])
}

// send queues a notice unless its subject had one recently, or its source many. source is a rollout, or the token of a machine that has
// not joined; "" has no limit.
func (n *Notifier) send(notice Notice, source string) (queued bool) {
	who := notice.Node
	if who == "" {
		who = cmp.Or(notice.Machine, notice.Listener, notice.Operator, notice.ID)
	}
	if len(n.senders) == 0 || !n.allowed(strings.Join([]string{string(notice.Kind), notice.Environment, who}, " "), 1) {
		return false
	}
	if source != "" && !n.allowed(string(notice.Kind)+" by "+source, maxOfSource) {
		return false
	}
	notice.At = n.Now().UTC().Truncate(time.Second)
	select {
	case n.queue <- notice:
		return true
	default:
		n.Log.Error("a notice was dropped: too many are waiting", attrs(notice)...)
		return false
	}
}

// allowed reports whether a subject may have one more notice, and counts it.
func (n *Notifier) allowed(subject string, most int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.Now()
	if len(n.recent) >= maxSubjects {
		for key, c := range n.recent {
			if now.Sub(c.since) >= repeatEvery {
				delete(n.recent, key)
			}
		}
	}
	c, known := n.recent[subject]
	if !known || now.Sub(c.since) >= repeatEvery {
		if !known && len(n.recent) >= maxSubjects {
			return false
		}
		c = count{since: now}
	}
	if c.times >= most {
		return false
	}
	c.times++
	n.recent[subject] = c
	return true
}

func attrs(n Notice, more ...any) []any {
	return append([]any{"kind", string(n.Kind), "env", n.Environment, "node", n.Node}, more...)
}

// delivery is a notice that waits for its next attempt.
type delivery struct {
	Notice
	claimed bool
	unsure  bool      // a receiver did not answer
	next    time.Time // of the next attempt
	done    []string  // receivers that got it
}

// Run sends notices until ctx ends. Notices that wait for another attempt then are stored as failed.
func (n *Notifier) Run(ctx context.Context) {
	if len(n.senders) == 0 {
		return
	}
	var waiting []*delivery
	for {
		timer := time.NewTimer(n.pause(waiting))
		select {
		case <-ctx.Done():
			timer.Stop()
			n.abandon(ctx, waiting)
			return
		case notice := <-n.queue:
			waiting = append(waiting, &delivery{Notice: notice})
		case <-timer.C:
		}
		timer.Stop()
		waiting = slices.DeleteFunc(waiting, func(d *delivery) bool {
			return ctx.Err() == nil && !n.Now().Before(d.next) && n.attempt(ctx, d)
		})
	}
}

// pause returns the time until the next attempt.
func (n *Notifier) pause(waiting []*delivery) time.Duration {
	pause := time.Hour
	for _, d := range waiting {
		pause = min(pause, max(d.next.Sub(n.Now()), 0))
	}
	return pause
}

// attempt claims a notice and sends it to each receiver that does not have it. It reports whether the notice is
// settled.
func (n *Notifier) attempt(ctx context.Context, d *delivery) (settled bool) {
	if !d.claimed {
		claimed, err := n.Notices.Add(ctx, d.Notice)
		if err != nil { // etcd is unreachable
			n.Log.Warn("cannot claim a notice", attrs(d.Notice, "error", err)...)
			d.next = n.Now().Add(n.firstRetry)
			return false
		}
		if !claimed {
			return true // another serve sends it
		}
		d.claimed = true
	}
	d.Attempts++
	d.State, d.Error = NoticeSent, ""
	title, text := render(d.Notice)
	for _, s := range n.senders {
		if slices.Contains(d.done, s.name) {
			continue
		}
		err := s.send(title, text)
		var unsure *unsureError
		switch {
		case err == nil:
			d.done = append(d.done, s.name)
			if n.Sent != nil {
				n.Sent.Inc()
			}
		case errors.As(err, &unsure):
			d.done, d.unsure, d.Error = append(d.done, s.name), true, model.Prose(err.Error())
			n.Log.Error("a notice may not have been sent", attrs(d.Notice, "to", s.name, "error", err)...)
		default:
			d.State, d.Error = NoticeFailed, model.Prose(err.Error())
			n.Log.Warn("cannot send a notice", attrs(d.Notice, "to", s.name, "attempt", d.Attempts, "error", err)...)
		}
	}
	if d.State == NoticeFailed && d.Attempts < sendAttempts {
		d.next = n.Now().Add(n.firstRetry << (d.Attempts - 1))
		return false
	}
	n.end(ctx, d)
	return true
}

// end stores the outcome, also while serve stops.
func (n *Notifier) end(ctx context.Context, d *delivery) {
	if d.State == NoticeSent && d.unsure {
		d.State = NoticeUnsure
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), etcd.DefaultTimeout)
	defer cancel()
	if err := n.Notices.End(ctx, d.Notice); err != nil {
		n.Log.Error("cannot store the outcome of a notice", attrs(d.Notice, "error", err)...)
	}
}

func (n *Notifier) abandon(ctx context.Context, waiting []*delivery) {
	for _, d := range waiting {
		n.Log.Error("a notice was not sent: serve stops", attrs(d.Notice)...)
		if d.claimed {
			d.State = NoticeFailed
			n.end(ctx, d)
		}
	}
}

// render renders a notice. The code of a newer version renders as itself.
func render(n Notice) (title, text string) {
	who := n.Node
	if who == "" {
		who = "machine " + n.Machine
	}
	where := who + " in " + n.Environment
	switch n.Kind {
	case FirstBootFinished:
		return where + " is ready", fmt.Sprintf("The first boot took %s.", time.Duration(n.TookSeconds)*time.Second)
	case FirstBootFailed:
		return fmt.Sprintf("the first boot of %s failed at step %s", where, n.Step), string(n.Problem)
	case FirstBootStalled:
		text = fmt.Sprintf("The last message came at %s.", n.Since.UTC().Format(time.RFC3339))
		if n.Problem != "" {
			text += " " + string(n.Problem)
		}
		return fmt.Sprintf("the first boot of %s is stalled at step %s", where, n.Step), text
	case DuplicateRefused:
		if n.Machine == "" {
			return "another machine tried to join as " + n.Node + " in " + n.Environment, fmt.Sprintf("It came from %s, claimed to be the machine of another node, and was refused.", n.From)
		}
		return "another machine tried to join as " + where, fmt.Sprintf("Machine %s (%s, from %s) was refused.", n.Machine, n.Hostname, n.From)
	case DuplicateRuns:
		return "two machines run as " + where,
			fmt.Sprintf("Their boot ids are %s and %s. The node is frozen until `pulley unhold -e %s --node %s`.", n.Boots[0], n.Boots[1], n.Environment, n.Node)
	case SecretsGiven:
		return where + " can decrypt secrets", fmt.Sprintf("Machine %s joined from %s with token %s of %s. If nobody expects it: pulley nodes remove %s -e %s", n.Machine, n.From, n.Token, n.Operator, n.Node, n.Environment)
	case NodeFloods:
		return where + " floods etcd",
			fmt.Sprintf("It wrote %d bytes in %d writes within a minute, etcd refused %d calls, and it changed what other nodes see of it %d times within an hour. "+
				"To remove its access: pulley nodes remove %s -e %s --forget", n.Bytes, n.Writes, n.Calls, n.Shown, n.Node, n.Environment)
	case RolloutPaused, RolloutWaits, RolloutEnded, RolloutLost, RolloutBlocks, RolloutStalls:
		what := map[NoticeKind]string{
			RolloutPaused: "is paused", RolloutWaits: "waits for an approval", RolloutEnded: "ended", RolloutLost: "lost a node",
			RolloutBlocks: "is blocked by a gate", RolloutStalls: "waits for an operator",
		}[n.Kind]
		return fmt.Sprintf("%s %s in %s %s", model.Noun(n.Rollout), n.Rollout, n.Environment, what), fmt.Sprintf("%s\n`pulley %s show %s -e %s`", n.Problem, model.Noun(n.Rollout), n.Rollout, n.Environment)
	case HoldEnded:
		title = "a hold in " + n.Environment + " ended"
		if h := n.Hold; h != nil {
			text = fmt.Sprintf("%s on %s by %s, until %s: %s\nIts nodes take what is desired for them: `pulley status -e %s`", h.Mode, h.Scope, h.Who, h.Until.UTC().Format(time.RFC3339), h.Why, n.Environment)
		}
		return title, text
	case NodesFail, PromotionFails, NodesStuck, NodesSilent, Degraded, CertificatesEnd:
		return ofTrouble(n)
	case NodesDrifted:
		return fmt.Sprintf("nodes in %s were changed outside of Pulley, and corrected: %s", n.Environment, names(n)),
			fmt.Sprintf("%s\n`pulley runs NODE latest -e %s` shows what changed", n.Problem, n.Environment)
	case NodesRemoved:
		return fmt.Sprintf("nodes were removed from %s: %s", n.Environment, names(n)), string(n.Problem)
	case WentBack:
		return "etcd went back in time: " + n.Environment + " is paused",
			fmt.Sprintf("Nodes keep what they have, and what was in progress does not continue. Compare `pulley status -e %[1]s` with what you expect, then continue with `pulley recover -e %[1]s`.", n.Environment)
	case ConnectionsRefused:
		title := "pulley serve refuses connections: " + n.Listener
		switch {
		case n.Node != "":
			return title, fmt.Sprintf("Node %s in %s has %d open connections, more than any node needs. To remove its access: pulley nodes remove %s -e %s --forget",
				n.Node, n.Environment, n.Connections, n.Node, n.Environment)
		case n.Operator != "":
			return title, fmt.Sprintf("Operator %s has %d open connections. To remove the access of this operator: pulley operators revoke %s", n.Operator, n.Connections, n.Operator)
		}
		return title,
			fmt.Sprintf("Address %s has the most open connections: %d. Block it in the firewall of this machine, or find the program that opens them.", n.From, n.Connections)
	case CallsRefused:
		return "etcd refuses calls of operator " + n.Operator,
			fmt.Sprintf("It refused %d calls that no command of Pulley makes. To remove the access of this operator: pulley operators revoke %s", n.Calls, n.Operator)
	}
	return string(n.Kind) + ": " + where, ""
}
