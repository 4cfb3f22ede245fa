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
	slot         = 10 * time.Second // of the minute that is added up
	slots        = 6
	noteInterval = 10 * time.Second // between two notes of one flood
	quietAfter   = 10 * time.Minute // a flood is over
	floodsKept   = 24 * time.Hour   // a note of one
	bootsKept    = 4                // of a node: the last different ones
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

	mu     sync.Mutex
	tally  map[nodeKey]*tally
	boots  map[nodeKey][]string // boot ids, the present one last
	floods map[nodeKey]store.Flood
	twins  map[nodeKey]twin
	wake   chan struct{}
}

// tally is what one node wrote in the last minute, in slots.
type tally struct {
	bytes, writes [slots]int64
	at            int64 // number of the newest slot
	told          bool  // that it floods
	noted         time.Time
	last          time.Time
}

// twin is that two machines run as one node.
type twin struct{ boot, other, machine string }

func newWatcher(now func() time.Time, log *slog.Logger) *watcher {
	return &watcher{
		now: now, log: log, tally: map[nodeKey]*tally{}, boots: map[nodeKey][]string{},
		floods: map[nodeKey]store.Flood{}, twins: map[nodeKey]twin{}, wake: make(chan struct{}, 1),
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
	if (bytes > FloodBytes || writes > FloodWrites) && now.Sub(t.noted) >= noteInterval {
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
		w.twins[k] = twin{boot: st.Boot, other: seen[len(seen)-1], machine: st.Machine}
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
func (w *watcher) take() (floods map[nodeKey]store.Flood, twins map[nodeKey]twin) {
	w.mu.Lock()
	defer w.mu.Unlock()
	floods, twins = w.floods, w.twins
	w.floods, w.twins = map[nodeKey]store.Flood{}, map[nodeKey]twin{}
	return floods, twins
}

// back puts back what could not be noted, unless something newer is there.
func (w *watcher) back(k nodeKey, f store.Flood) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, newer := w.floods[k]; !newer {
		w.floods[k] = f
	}
}

func (w *watcher) backTwin(k nodeKey, t twin) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.twins[k] = t
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

// watchNodes watches until ctx ends, and notes what it sees.
func (k *Keeper) watchNodes(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() {
		k.untilDone(ctx, "watch nodes", func(ctx context.Context) error { return k.Store.WatchNodes(ctx, k.watcher.saw) })
	})
	defer both.Wait()
	ticker := time.NewTicker(noteInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.watcher.wake:
		case <-ticker.C:
			k.watcher.forget()
		}
		floods, twins := k.watcher.take()
		for key, f := range floods {
			k.noteFlood(ctx, key, f)
		}
		for key, t := range twins {
			k.noteTwin(ctx, key, t)
		}
	}
}

func (k *Keeper) noteFlood(ctx context.Context, key nodeKey, f store.Flood) {
	first, err := k.Store.NoteFlood(ctx, key.ref, f)
	if err != nil {
		k.complain(ctx, "cannot note a flood", err, "env", key.ref.String(), "node", key.node)
		k.watcher.back(key, f) // etcd may be full, or away
		return
	}
	if first {
		k.count("flood")
		k.tell(store.Notice{
			ID: noticeID("flood", key.ref, key.node, f.First.UTC().Format(time.RFC3339)), Kind: "flood", Environment: key.ref.String(), Node: key.node,
			Title: fmt.Sprintf("%s in %s floods etcd", key.node, key.ref),
			Text:  fmt.Sprintf("It wrote %d bytes in %d writes within a minute. `pulley nodes remove %s -e %s --forget` shuts it out.", f.Bytes, f.Writes, key.node, key.ref),
		})
	}
}

// noteTwin freezes a node as which two machines run: neither is to take anything new until a person has looked.
func (k *Keeper) noteTwin(ctx context.Context, key nodeKey, t twin) {
	now := k.Now().UTC().Truncate(time.Second)
	why := fmt.Sprintf("boot ids %s and %s", t.other, t.boot)
	held, err := k.Store.HoldUnlessHeld(ctx, key.ref, store.Scope{Node: key.node}, agent.Hold{Mode: agent.Freeze, Kind: agent.DuplicateHold, Who: "pulley serve", Why: agent.Prose(why), Since: now})
	noted := false
	if err == nil {
		noted, err = k.Store.NoteTwin(ctx, key.ref, key.node, store.Clone{Machine: t.machine, Boot: t.boot, At: now})
	}
	if err != nil {
		k.complain(ctx, "cannot note a clone", err, "env", key.ref.String(), "node", key.node)
		k.watcher.backTwin(key, t)
		return
	}
	k.Log.Warn("two machines run as one node", "env", key.ref.String(), "node", key.node, "boot", t.boot, "other", t.other, "frozen", held)
	if held || noted {
		k.count("clone")
		k.tell(store.Notice{
			ID: noticeID("clone", key.ref, key.node, t.other, t.boot), Kind: "clone", Environment: key.ref.String(), Node: key.node,
			Title: fmt.Sprintf("two machines run as %s in %s", key.node, key.ref), Text: "Two machines run as this node, with " + why + ". The node is frozen until `pulley unhold`.",
		})
	}
}
