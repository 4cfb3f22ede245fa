package serve

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"pulley/internal/access"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/notify"
)

const (
	silenceTrusted = 10 * time.Minute // two heartbeats: after etcd, or serve, was away, nodes have not reported yet
	lacksFor       = 15 * time.Minute // before an environment counts as degraded
	removalsKnown  = 24 * time.Hour   // a removal before that is not announced any more
	removalsWithin = time.Minute      // removals for one reason make one notice
	endsSoon       = 14 * 24 * time.Hour
)

// nodeTroubles are the kinds that a read of all nodes finds.
var nodeTroubles = []notify.NoticeKind{notify.NodesFail, notify.PromotionFails, notify.NodesSilent, notify.Degraded}

// troubles announces what lasts for two reads of an environment: the nodes of one batch then make one notice. It is not safe for
// concurrent use.
type troubles struct {
	*Tasks
	of map[model.Ref]*troubled
}

// troubled is what the reads of an environment found.
type troubled struct {
	since  time.Time                    // of the first read without an error after it
	before map[string]notify.NoticeKind // ids of the read before; nil: this is the first one
	folded map[string]bool              // ids of causes that still last, of failures that are or were not told apart
	lacks  map[string]time.Time         // since when nodes are missing, unregistered or pending
}

// look announces what a read found.
func (t *troubles) look(ctx context.Context, ref model.Ref, tally fleet.Tally) error {
	now, s := t.Now(), t.of[ref]
	if s == nil {
		s = &troubled{since: now, folded: map[string]bool{}, lacks: map[string]time.Time{}}
		t.of[ref] = s
	}
	if rewound, err := t.rewound(ctx, ref); err != nil || rewound { // what etcd has is old
		delete(t.of, ref)
		return err
	}
	var lasting []notify.Trouble
	found := map[string]notify.NoticeKind{}
	add := func(trouble notify.Trouble, certain bool) {
		id := trouble.ID(ref)
		if found[id] = trouble.Kind; certain && s.before[id] != "" {
			lasting = append(lasting, trouble)
		}
	}
	shown := map[string]bool{}
	for _, one := range fleet.Fold(tally.Troubles) {
		trouble := ofNodes(one)
		shown[trouble.ID(ref)] = true
		add(trouble, !one.Silent || now.Sub(s.since) >= silenceTrusted)
	}
	for _, one := range tally.Troubles { // also those that are announced as one: none of them has ended
		trouble := ofNodes(one)
		id := trouble.ID(ref)
		if found[id] = trouble.Kind; !shown[id] {
			s.folded[id] = true
		}
	}
	if len(tally.Lacking) > 0 {
		add(s.degraded(tally.Lacking, now))
	} else {
		clear(s.lacks)
	}
	before := s.before
	if tally.Unsure {
		for id, kind := range before {
			if kind == notify.NodesFail || kind == notify.PromotionFails {
				found[id] = kind
			}
		}
	}
	maps.DeleteFunc(s.folded, func(id string, _ bool) bool { return found[id] == "" })
	if len(s.folded) > 0 {
		rest := ofNodes(fleet.Trouble{Cause: fleet.Others})
		found[rest.ID(ref)] = rest.Kind
	}
	s.before = found
	if before == nil { // nothing that began before this serve ends now
		return nil
	}
	return t.Notifier.Troubles(ctx, ref, nodeTroubles, lasting, func(id string) bool { return found[id] != "" || before[id] != "" })
}

// ofNodes returns the trouble of nodes for a notice.
func ofNodes(one fleet.Trouble) notify.Trouble {
	trouble := notify.Trouble{Kind: notify.NodesFail, Cause: one.Cause, Release: one.Release, Nodes: one.Nodes, Count: one.Count, Text: model.Prose(one.Text), Stuck: one.Stuck > 0}
	switch {
	case one.Silent:
		trouble.Kind = notify.NodesSilent
	case one.Release != "":
		trouble.Kind = notify.PromotionFails
	}
	return trouble
}

// degraded returns the trouble of an environment that lacks nodes, and whether some are lacking for long enough.
func (s *troubled) degraded(lacking map[string]model.NodeState, now time.Time) (trouble notify.Trouble, certain bool) {
	maps.DeleteFunc(s.lacks, func(node string, _ time.Time) bool { return lacking[node] == "" })
	counts := fleet.Counts{}
	var nodes []string
	for node, state := range lacking {
		since, known := s.lacks[node]
		if !known {
			s.lacks[node] = now
		} else if now.Sub(since) >= lacksFor {
			counts[state]++
			nodes = append(nodes, node)
		}
	}
	slices.SortFunc(nodes, fleet.CompareNatural)
	trouble = notify.Trouble{Kind: notify.Degraded, Nodes: nodes[:min(len(nodes), notify.MaxNames)], Count: len(nodes), Text: model.Prose(counts.Sentence())}
	return trouble, len(nodes) > 0
}

// unread forgets what an earlier read found: how long nodes have been silent is not known while etcd does not answer.
func (t *troubles) unread(ref model.Ref) { delete(t.of, ref) }

// identified announces removals of nodes, and nodes that do not renew their certificates, from the holders of an environment's names.
func (t *Tasks) identified(ctx context.Context, ref model.Ref, identities map[string]access.Identity) error {
	now := t.Now()
	removed := map[access.Removal][]string{}
	ending := notify.Trouble{Kind: notify.CertificatesEnd, Text: "They renew them when a third of their time is left. Check the nodes: `pulley doctor` names each."}
	var nodes []string
	for node, i := range identities {
		switch {
		case i.Live() && !i.Until.IsZero() && i.Until.Sub(now) < i.Until.Sub(i.Issued)/6: // as pulley doctor warns
			nodes = append(nodes, node)
		case i.Removed != nil && now.Sub(i.Removed.At) < removalsKnown:
			r := access.Removal{At: i.Removed.At.Truncate(removalsWithin), By: i.Removed.By, Why: i.Removed.Why, Left: i.Removed.Left}
			removed[r] = append(removed[r], node)
		}
	}
	newest := slices.SortedFunc(maps.Keys(removed), func(a, b access.Removal) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.By, b.By), cmp.Compare(a.Why, b.Why))
	})
	for _, r := range newest {
		if now.Sub(r.At) >= 2*removalsWithin { // no more follow
			nodes := removed[r]
			slices.SortFunc(nodes, fleet.CompareNatural)
			t.once(fmt.Sprint(ref, " ", r.At, r.Left, r.By, " ", r.Why), now.Add(removalsKnown), func() bool { return t.Notifier.Removed(ref, r, nodes) })
		}
	}
	var all []notify.Trouble
	if slices.Sort(nodes); len(nodes) > 0 {
		ending.Nodes, ending.Count = nodes[:min(len(nodes), notify.MaxNames)], len(nodes)
		all = append(all, ending)
	}
	return t.certificatesEnd(ctx, ref, all, false)
}

// once sends a notice that reads find again and again, unless it was queued before. A repetition would use up what its source may send.
func (t *Tasks) once(key string, until time.Time, send func() bool) {
	now := t.Now()
	t.mu.Lock()
	maps.DeleteFunc(t.queued, func(_ string, until time.Time) bool { return !now.Before(until) })
	_, known := t.queued[key]
	t.mu.Unlock()
	if known || !send() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queued[key] = until
}

// certificatesEnd announces certificates that end soon, or have ended, until they were renewed. unsure is that some could not be read: none was renewed.
func (t *Tasks) certificatesEnd(ctx context.Context, ref model.Ref, ending []notify.Trouble, unsure bool) error {
	lasts := map[string]bool{}
	for _, one := range ending {
		lasts[one.ID(ref)] = true
	}
	return t.Notifier.Troubles(ctx, ref, []notify.NoticeKind{notify.CertificatesEnd}, ending, func(id string) bool { return unsure || lasts[id] })
}

// maxDrifts is the number of resources of an environment that drifts gathers: nodes name them.
const maxDrifts = 100

// drifts gathers the runs that corrected something, until the next read of all nodes: by environment and resource.
type drifts map[model.Ref]map[string]*drift

// drift is what runs corrected beside one resource.
type drift struct {
	nodes map[string]bool
	more  int // other resources, at most
}

// drifted notes a run that corrected something. The catalog of a Puppet server may differ without a change of the node.
func (t *Tasks) drifted(ref model.Ref, run model.Run, node string) {
	if run.Outcome != model.Changed || run.Served != nil {
		return
	}
	resource, changed := "", 0
	for _, r := range run.Resources {
		if r.Status == string(model.Changed) {
			resource = cmp.Or(resource, r.Resource)
			changed++
		}
	}
	if resource == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.drifts[ref] == nil {
		t.drifts[ref] = map[string]*drift{}
	}
	d := t.drifts[ref][resource]
	if d == nil && len(t.drifts[ref]) >= maxDrifts {
		return
	}
	if d == nil {
		d = &drift{nodes: map[string]bool{}}
		t.drifts[ref][resource] = d
	}
	d.nodes[node], d.more = true, max(d.more, changed-1)
}

// tellDrifts announces what runs corrected.
func (t *Tasks) tellDrifts() {
	t.mu.Lock()
	found := t.drifts
	t.drifts = drifts{}
	t.mu.Unlock()
	for ref, resources := range found {
		for _, resource := range slices.Sorted(maps.Keys(resources)) {
			d := resources[resource]
			now := t.Now() // a notice is one a day: a repetition would take the place of another one
			t.once(fmt.Sprint(ref, " ", now.UTC().Format(time.DateOnly), " ", resource), now.Add(24*time.Hour), func() bool {
				return t.Notifier.Drifted(ref, resource, d.more, slices.SortedFunc(maps.Keys(d.nodes), fleet.CompareNatural))
			})
		}
	}
}
