package serve

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/fleet"
	"pulley/internal/notify"
	"pulley/internal/store"
)

const (
	silenceTrusted = 10 * time.Minute // two heartbeats: after etcd, or serve, was away, nodes have not reported yet
	lacksFor       = 15 * time.Minute // before an environment counts as degraded
	removalsKnown  = 24 * time.Hour   // a removal before that is not announced any more
	removalsWithin = time.Minute      // removals for one reason make one notice
	endsSoon       = 14 * 24 * time.Hour
)

// nodeTroubles are the kinds that a read of all nodes finds.
var nodeTroubles = []store.NoticeKind{store.NodesFail, store.PromotionFails, store.NodesSilent, store.Degraded}

// troubles announces what lasts for two reads of an environment: the nodes of one batch then make one notice. It is not safe for
// concurrent use.
type troubles struct {
	*Tasks
	of map[environments.Ref]*troubled
}

// troubled is what the reads of an environment found.
type troubled struct {
	since  time.Time                   // of the first read without an error after it
	before map[string]store.NoticeKind // ids of the read before; nil: this is the first one
	folded map[string]bool             // ids of causes that still last, of failures that are or were not told apart
	lacks  map[string]time.Time        // since when nodes are missing, unregistered or pending
}

// look announces what a read found.
func (t *troubles) look(ctx context.Context, ref environments.Ref, tally fleet.Tally) error {
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
	found := map[string]store.NoticeKind{}
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
			if kind == store.NodesFail || kind == store.PromotionFails {
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
	trouble := notify.Trouble{Kind: store.NodesFail, Cause: one.Cause, Release: one.Release, Nodes: one.Nodes, Count: one.Count, Text: agent.Prose(one.Text), Stuck: one.Stuck > 0}
	switch {
	case one.Silent:
		trouble.Kind = store.NodesSilent
	case one.Release != "":
		trouble.Kind = store.PromotionFails
	}
	return trouble
}

// degraded returns the trouble of an environment that lacks nodes, and whether some are lacking for long enough.
func (s *troubled) degraded(lacking map[string]agent.NodeState, now time.Time) (trouble notify.Trouble, certain bool) {
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
	trouble = notify.Trouble{Kind: store.Degraded, Nodes: nodes[:min(len(nodes), notify.MaxNames)], Count: len(nodes), Text: agent.Prose(counts.Sentence())}
	return trouble, len(nodes) > 0
}

// unread forgets what an earlier read found: how long nodes have been silent is not known while etcd does not answer.
func (t *troubles) unread(ref environments.Ref) { delete(t.of, ref) }

// identified announces removals of nodes, and nodes that do not renew their certificates, from the holders of an environment's names.
func (t *Tasks) identified(ctx context.Context, ref environments.Ref, identities map[string]store.Identity) error {
	now := t.Now()
	removed := map[store.Removal][]string{}
	ending := notify.Trouble{Kind: store.CertificatesEnd, Text: "They renew them when a third of their time is left. Check the nodes: `pulley doctor` names each."}
	var nodes []string
	for node, i := range identities {
		switch {
		case i.Live() && !i.Until.IsZero() && i.Until.Sub(now) < i.Until.Sub(i.Issued)/6: // as pulley doctor warns
			nodes = append(nodes, node)
		case i.Removed != nil && now.Sub(i.Removed.At) < removalsKnown:
			r := store.Removal{At: i.Removed.At.Truncate(removalsWithin), By: i.Removed.By, Why: i.Removed.Why, Left: i.Removed.Left}
			removed[r] = append(removed[r], node)
		}
	}
	for r, nodes := range removed {
		if now.Sub(r.At) >= 2*removalsWithin { // no more follow
			slices.SortFunc(nodes, fleet.CompareNatural)
			t.Notifier.Removed(ref, r, nodes)
		}
	}
	return t.certificatesEnd(ctx, ref, ending, nodes)
}

// certificatesEnd announces certificates that end soon, until they were renewed.
func (t *Tasks) certificatesEnd(ctx context.Context, ref environments.Ref, trouble notify.Trouble, names []string) error {
	slices.Sort(names)
	trouble.Nodes, trouble.Count = names[:min(len(names), notify.MaxNames)], len(names)
	var all []notify.Trouble
	if len(names) > 0 {
		all = append(all, trouble)
	}
	return t.Notifier.Troubles(ctx, ref, []store.NoticeKind{trouble.Kind}, all, func(string) bool { return len(names) > 0 })
}

// drifts gathers the runs that corrected something, until the next read of all nodes: by environment and resource.
type drifts map[environments.Ref]map[string][]string

// drifted notes a run that corrected something.
func (t *Tasks) drifted(ref environments.Ref, run agent.Run, node string) {
	i := slices.IndexFunc(run.Resources, func(r agent.ResourceEvent) bool { return r.Status == string(agent.Changed) })
	if run.Outcome != agent.Changed || i < 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.drifts[ref] == nil {
		t.drifts[ref] = map[string][]string{}
	}
	resource := run.Resources[i].Resource
	if more := len(run.Resources) - 1; more > 0 {
		resource += fmt.Sprintf(" and %d more", more)
	}
	if nodes := t.drifts[ref][resource]; !slices.Contains(nodes, node) {
		t.drifts[ref][resource] = append(nodes, node)
	}
}

// tellDrifts announces what runs corrected.
func (t *Tasks) tellDrifts() {
	t.mu.Lock()
	found := t.drifts
	t.drifts = drifts{}
	t.mu.Unlock()
	for ref, resources := range found {
		for _, resource := range slices.SortedFunc(maps.Keys(resources), strings.Compare) {
			t.Notifier.Drifted(ref, resource, resources[resource])
		}
	}
}
