package serve

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"pulley/environments"
	"pulley/internal/store"
)

// Notices are told through an outbox in etcd: whoever notices something puts it there under a name that is the same for the
// same thing, and a serve claims it by a transaction before it sends it.
const (
	outboxInterval = 5 * time.Second
	bootsInterval  = time.Minute
	tokensInterval = time.Hour
	sendTimeout    = 20 * time.Second
	// claimLasts is how long a claim may stand unchanged until others take its serve for dead: longer than all its sends.
	claimLasts   = 5 * time.Minute
	sendAttempts = 5
	firstRetry   = 10 * time.Second // doubled after each
	maxTold      = 1024             // things that wait to be put into the outbox
	// One node, or machine, is told of once in toldEvery for each kind; machines that have not joined, maxOfToken times for
	// each token and kind: what they say of themselves is all that is known of them.
	toldEvery  = time.Hour
	maxOfToken = 20
	maxHushed  = 10000
)

// hush remembers what was told lately.
type hush struct {
	mu   sync.Mutex
	told map[string]hushed
}

type hushed struct {
	since time.Time
	times int
}

// may reports whether something may be told once more, at most most times within toldEvery, and counts it.
func (h *hush) may(what string, most int, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.told) >= maxHushed {
		for key, one := range h.told {
			if now.Sub(one.since) >= toldEvery {
				delete(h.told, key)
			}
		}
	}
	one, ok := h.told[what]
	if !ok || now.Sub(one.since) >= toldEvery {
		if !ok && len(h.told) >= maxHushed {
			return false
		}
		one = hushed{since: now}
	}
	if one.times >= most {
		return false
	}
	one.times++
	if h.told == nil {
		h.told = map[string]hushed{}
	}
	h.told[what] = one
	return true
}

// noticeID names a thing that is told.
func noticeID(kind string, ref environments.Ref, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(append([]string{ref.String()}, parts...), "\x00")))
	return kind + "-" + hex.EncodeToString(sum[:8])
}

// tell has people told of a node; it never blocks.
func (k *Keeper) tell(n store.Notice) { k.tellOf(n.Node, "", n) }

// tellBoot has people told of a first boot.
func (k *Keeper) tellBoot(who string, b store.FirstBoot, n store.Notice) {
	token := b.Token
	if b.Joined {
		token = ""
	}
	k.tellOf(who, token, n)
}

// tellOf has people told of who, which is all that a token speaks for unless token is "".
func (k *Keeper) tellOf(who, token string, n store.Notice) {
	if len(k.senders) == 0 || !k.hush.may(strings.Join([]string{n.Kind, n.Environment, who}, " "), 1, k.Now()) {
		return
	}
	if token != "" && !k.hush.may(n.Kind+" by token "+token, maxOfToken, k.Now()) {
		return
	}
	n.At = k.Now().UTC().Truncate(time.Second)
	select {
	case k.told <- n:
	default:
		k.Log.Error("too much to tell at once: a notice is lost", "kind", n.Kind, "env", n.Environment, "node", n.Node)
	}
}

// FirstBoot takes note of what a machine said of its first boot; it never blocks.
func (k *Keeper) FirstBoot(ref environments.Ref, b store.FirstBoot) {
	who := b.Node
	if who == "" {
		who = "machine " + b.Machine
	}
	n := store.Notice{Environment: ref.String(), Node: b.Node}
	switch {
	case !b.Finished.IsZero():
		n.Kind, n.Title = "first-boot-finished", fmt.Sprintf("%s in %s is ready", who, ref)
		n.Text = fmt.Sprintf("Its first boot took %s.", b.Finished.Sub(b.Started).Round(time.Second))
		n.ID = noticeID(n.Kind, ref, b.Machine, b.Started.UTC().Format(time.RFC3339))
	case b.State == store.BootFailed:
		n.Kind, n.Title = "first-boot-failed", fmt.Sprintf("the first boot of %s in %s failed at step %s", who, ref, b.Step)
		n.Text = string(b.Error)
		n.ID = noticeID(n.Kind, ref, b.Machine, b.Started.UTC().Format(time.RFC3339), b.Step)
	default:
		return
	}
	k.tellBoot(who, b, n)
}

// Clone takes note of a second machine that came under a node's name; it never blocks.
func (k *Keeper) Clone(ref environments.Ref, node string, c store.Clone) {
	k.count("clone")
	k.tell(store.Notice{
		ID: noticeID("clone", ref, node, c.Machine, c.First.UTC().Format(time.RFC3339)), Kind: "clone", Environment: ref.String(), Node: node,
		Title: fmt.Sprintf("another machine came as %s in %s", node, ref),
		Text:  fmt.Sprintf("Machine %s (%s, from %s) was refused.", c.Machine, c.Hostname, c.From),
	})
}

// watchBoots finds first boots that stand still: nobody says that nothing happens.
func (k *Keeper) watchBoots(ctx context.Context) error {
	names, err := k.Store.Environments(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		ref, err := environments.ParseRef(name)
		if err != nil {
			continue
		}
		boots, _, err := k.Store.FirstBoots(ctx, ref)
		if err != nil {
			return err
		}
		for machine, b := range boots {
			if !b.Stands(k.Now()) || b.Unlocked != nil {
				continue
			}
			who := b.Node
			if who == "" {
				who = "machine " + machine
			}
			k.tellBoot(who, b, store.Notice{
				ID: noticeID("first-boot-stands-still", ref, machine, b.Started.UTC().Format(time.RFC3339), b.Step), Kind: "first-boot-stands-still",
				Environment: ref.String(), Node: b.Node, Title: fmt.Sprintf("the first boot of %s in %s stands still at step %s", who, ref, b.Step),
				Text: fmt.Sprintf("Nothing was heard of it since %s. %s", b.Heard.UTC().Format(time.RFC3339), b.Error),
			})
		}
		if err := k.forgetFloods(ctx, ref); err != nil {
			return err
		}
	}
	return nil
}

func (k *Keeper) forgetFloods(ctx context.Context, ref environments.Ref) error {
	floods, _, err := k.Store.Floods(ctx, ref)
	if err != nil {
		return err
	}
	before := k.Now().Add(-floodsKept)
	for node, f := range floods {
		if f.Last.Before(before) {
			if err := k.Store.ForgetFlood(ctx, ref, node, before); err != nil {
				return err
			}
		}
	}
	return nil
}

// keepOutbox puts what is to be told into the outbox, and sends what is there, until ctx ends.
func (k *Keeper) keepOutbox(ctx context.Context) {
	claims := map[string]claim{}
	ticker := time.NewTicker(k.outboxInterval)
	defer ticker.Stop()
	var late []store.Notice // etcd was away when they came
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-k.told:
			late = append(late, n)
		case <-ticker.C:
		}
		late = k.post(ctx, late)
		if err := k.empty(ctx, claims); err != nil {
			k.complain(ctx, "cannot look for notices", err)
		}
	}
}

// post returns what could not be put into the outbox.
func (k *Keeper) post(ctx context.Context, all []store.Notice) (late []store.Notice) {
	for len(all) < maxTold { // all that came at once
		select {
		case n := <-k.told:
			all = append(all, n)
			continue
		default:
		}
		break
	}
	for i, n := range all {
		if _, err := k.Store.AddNotice(ctx, n); err != nil {
			k.complain(ctx, "cannot put a notice into the outbox", err)
			return all[i:]
		}
	}
	return nil
}

// claim is how another serve's claim was when it was seen first: by this clock it is judged whether that serve lives.
type claim struct {
	revision int64
	since    time.Time
}

// empty sends what waits, and gives up what another serve claimed and never finished.
func (k *Keeper) empty(ctx context.Context, claims map[string]claim) error {
	all, damaged, err := k.Store.Notices(ctx)
	if err != nil {
		return err
	}
	for _, d := range damaged {
		k.complain(ctx, "cannot read a notice", errors.New(d))
	}
	standing := map[string]bool{}
	for _, n := range all {
		switch {
		case n.State == store.NoticeWaiting && !k.Now().Before(n.After):
			k.send(ctx, n)
		case n.State == store.NoticeClaimed && n.Owner != k.owner:
			standing[n.ID] = true
			c, seen := claims[n.ID]
			if !seen || c.revision != n.Revision {
				claims[n.ID] = claim{n.Revision, time.Now()}
			} else if time.Since(c.since) > k.claimLasts {
				k.giveUp(ctx, n)
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	for id := range claims {
		if !standing[id] {
			delete(claims, id)
		}
	}
	return nil
}

// giveUp says that nobody knows whether a notice was sent. It is not sent again.
func (k *Keeper) giveUp(ctx context.Context, n store.Notice) {
	n.State, n.Error = store.NoticeUnsure, "the serve that was sending it ended"
	if _, err := k.Store.ChangeNotice(ctx, n); err == nil {
		k.Log.Error("a notice may not have been sent: the serve that was sending it ended", "kind", n.Kind, "env", n.Environment, "node", n.Node, "title", n.Title)
	}
}

// send claims a notice, sends it to everybody who has not got it, and writes down what came of it.
func (k *Keeper) send(ctx context.Context, n store.Notice) {
	n.State, n.Owner = store.NoticeClaimed, k.owner
	n.Attempts++
	n, err := k.Store.ChangeNotice(ctx, n)
	if err != nil {
		if !errors.Is(err, store.ErrConflict) { // then another serve sends it
			k.complain(ctx, "cannot claim a notice", err)
		}
		return
	}
	n.State, n.Error = store.NoticeSent, ""
	for _, s := range k.senders {
		if slices.Contains(n.Done, s.digest) {
			continue
		}
		err := s.send(n.Title, n.Text)
		var unsure *unsureError
		switch {
		case err == nil:
			n.Done = append(n.Done, s.digest)
			k.count("sent")
		case errors.As(err, &unsure):
			n.Done = append(n.Done, s.digest)
			n.Error = err.Error()
			k.Log.Error("a notice may not have been sent", "kind", n.Kind, "to", s.name, "title", n.Title, "error", err)
		default:
			n.State, n.Error = store.NoticeWaiting, err.Error()
			k.Log.Warn("cannot send a notice", "kind", n.Kind, "to", s.name, "title", n.Title, "attempt", n.Attempts, "error", err)
		}
	}
	switch {
	case n.State == store.NoticeWaiting && n.Attempts >= sendAttempts:
		n.State = store.NoticeFailed
	case n.State == store.NoticeWaiting:
		n.After = k.Now().Add(k.firstRetry << (n.Attempts - 1)).UTC()
	case n.Error != "":
		n.State = store.NoticeUnsure
	}
	// Also when serve is about to end: what is sent has to be known as sent.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.DefaultTimeout)
	defer cancel()
	if _, err := k.Store.ChangeNotice(ctx, n); err != nil {
		k.Log.Error("cannot write down what became of a notice", "kind", n.Kind, "title", n.Title, "error", err)
	}
}
