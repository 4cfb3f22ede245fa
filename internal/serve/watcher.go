package serve

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/store"
)

// A node that writes more than this within a minute floods. One that is well writes a status of a few kilobytes every five
// minutes; one that was cut off for long, five records of at most 8 KiB at each tick.
const (
	FloodBytes  = 1 << 20
	FloodWrites = 300
)

const (
	slot           = 10 * time.Second // of the minute that is added up
	slots          = 6
	recordInterval = 10 * time.Second // between two records of one flood
	quietAfter     = 10 * time.Minute // a flood is over
	floodsKept     = 24 * time.Hour   // a note of one
	bootsKept      = 4                // of a node: the last different ones
)

// kernelID is what an id of a machine or of a boot looks like.
var kernelID = regexp.MustCompile(`^[0-9A-Za-z-]{1,64}$`)

// nodeKey names a node of any environment.
type nodeKey struct {
	ref  environments.Ref
	node string
}

// watcher adds up what nodes write. It decides by what was written, never by what a node says of others.
type watcher struct {
	now func() time.Time
	log *slog.Logger

	mu         sync.Mutex
	tally      map[nodeKey]*tally
	boots      map[nodeKey][]string // boot ids, the present one last
	floods     map[nodeKey]store.Flood
	duplicates map[nodeKey]duplicate
	wake       chan struct{}
}

// tally is what one node wrote in the last minute, in slots.
type tally struct {
	bytes, writes [slots]int64
	at            int64 // number of the newest slot
	told          bool  // that it floods
	noted         time.Time
	last          time.Time
}

// duplicate is a node as which two machines run.
type duplicate struct{ boot, other, machine string }

func newWatcher(now func() time.Time, log *slog.Logger) *watcher {
	return &watcher{
		now: now, log: log, tally: map[nodeKey]*tally{}, boots: map[nodeKey][]string{},
		floods: map[nodeKey]store.Flood{}, duplicates: map[nodeKey]duplicate{}, wake: make(chan struct{}, 1),
	}
}

// saw takes one write into account.
func (w *watcher) saw(write store.NodeWrite) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k, now := nodeKey{write.Ref, write.Node}, w.now()
	t := w.tally[k]
	if t == nil {
		t = &tally{}
		w.tally[k] = t
	}
	bytes, writes := t.add(now, write.Bytes)
	if (bytes > FloodBytes || writes > FloodWrites) && now.Sub(t.noted) >= recordInterval {
		if !t.told {
			w.log.Warn("a node writes far more than a node does", "env", k.ref.String(), "node", k.node, "bytes", bytes, "writes", writes, "within", "1m")
		}
		t.told, t.noted = true, now
		w.floods[k] = store.Flood{Node: k.node, Bytes: bytes, Writes: writes, First: now, Last: now}
		w.signal()
	}
	if write.Status != nil && kernelID.MatchString(write.Status.Boot) { // what goes on from here is written by serve
		st := agent.Status{Boot: write.Status.Boot}
		if kernelID.MatchString(write.Status.Machine) {
			st.Machine = write.Status.Machine
		}
		w.booted(k, st)
	}
}

func (t *tally) add(now time.Time, bytes int64) (sumBytes, sumWrites int64) {
	at := now.UnixNano() / int64(slot)
	for t.at < at { // empty the slots that are of an earlier minute
		t.at = max(t.at+1, at-slots+1)
		t.bytes[t.at%slots], t.writes[t.at%slots] = 0, 0
	}
	i := ((at % slots) + slots) % slots
	t.bytes[i] += bytes
	t.writes[i]++
	t.last = now
	for i := range slots {
		sumBytes += t.bytes[i]
		sumWrites += t.writes[i]
	}
	return sumBytes, sumWrites
}

// booted notices a boot that was over: a machine that is started again has a new boot id, and an old one never comes back.
func (w *watcher) booted(k nodeKey, st agent.Status) {
	seen := w.boots[k]
	if len(seen) > 0 && seen[len(seen)-1] == st.Boot {
		return
	}
	if slices.Contains(seen, st.Boot) {
		w.duplicates[k] = duplicate{boot: st.Boot, other: seen[len(seen)-1], machine: st.Machine}
		w.boots[k] = []string{st.Boot} // it has to be seen again before it is told again
		w.signal()
		return
	}
	seen = append(seen, st.Boot)
	w.boots[k] = seen[max(0, len(seen)-bootsKept):]
}

// signal needs the lock.
func (w *watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take returns what is to be noted.
func (w *watcher) take() (floods map[nodeKey]store.Flood, duplicates map[nodeKey]duplicate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	floods, duplicates = w.floods, w.duplicates
	w.floods, w.duplicates = map[nodeKey]store.Flood{}, map[nodeKey]duplicate{}
	return floods, duplicates
}

// back puts back what could not be noted, unless something newer is there.
func (w *watcher) back(k nodeKey, f store.Flood) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, newer := w.floods[k]; !newer {
		w.floods[k] = f
	}
}

func (w *watcher) backDuplicate(k nodeKey, d duplicate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.duplicates[k] = d
}

// forget drops what is over, so that memory does not grow with nodes that are gone.
func (w *watcher) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	for k, t := range w.tally {
		switch idle := now.Sub(t.last); {
		case idle > time.Hour:
			delete(w.tally, k)
			delete(w.boots, k)
		case now.Sub(t.noted) > quietAfter:
			t.told = false
		}
	}
}

// watchNodes watches until ctx ends, and records floods and duplicate machines.
func (t *Tasks) watchNodes(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() {
		t.every(ctx, watchPause, "cannot watch nodes", func(ctx context.Context) error { return t.Store.Fleet.Watch(ctx, t.watcher.saw) })
	})
	defer both.Wait()
	ticker := time.NewTicker(recordInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.watcher.wake:
		case <-ticker.C:
			t.watcher.forget()
		}
		floods, duplicates := t.watcher.take()
		for key, f := range floods {
			t.recordFlood(ctx, key, f)
		}
		for key, d := range duplicates {
			t.recordDuplicate(ctx, key, d)
		}
	}
}

func (t *Tasks) recordFlood(ctx context.Context, key nodeKey, f store.Flood) {
	first, err := t.Store.Fleet.NoteFlood(ctx, key.ref, f)
	if err != nil {
		t.complain(ctx, "cannot record a flood", err, "env", key.ref.String(), "node", key.node)
		t.watcher.back(key, f) // etcd may be full or unreachable
		return
	}
	if first {
		t.events.WithLabelValues("flood").Inc()
		t.Notifier.Flood(key.ref, f)
	}
}

// recordDuplicate freezes a node as which two machines run. Neither may take a new target until an operator has decided.
func (t *Tasks) recordDuplicate(ctx context.Context, key nodeKey, d duplicate) {
	now := t.Now().UTC().Truncate(time.Second)
	hold := agent.Hold{
		Mode: agent.Freeze, Kind: agent.DuplicateHold, Who: "pulley serve", Since: now,
		Why: agent.Prose(fmt.Sprintf("boot ids %s and %s", d.other, d.boot)),
	}
	held, err := t.Store.Fleet.HoldUnlessHeld(ctx, key.ref, store.Scope{Node: key.node}, hold)
	noted := false
	if err == nil {
		noted, err = t.Store.Identities.NoteDuplicateBoot(ctx, key.ref, key.node, store.Clone{Machine: d.machine, Boot: d.boot, At: now})
	}
	if err != nil {
		t.complain(ctx, "cannot record a duplicate machine", err, "env", key.ref.String(), "node", key.node)
		t.watcher.backDuplicate(key, d)
		return
	}
	t.Log.Warn("two machines run as one node", "env", key.ref.String(), "node", key.node, "boot", d.boot, "other", d.other, "frozen", held)
	if held || noted {
		t.events.WithLabelValues("duplicate").Inc()
		t.Notifier.DuplicateRuns(key.ref, key.node, [2]string{d.other, d.boot})
	}
}
